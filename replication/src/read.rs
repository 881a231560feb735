//! Which replica serves a read, and what happens when it fails.
//!
//! Only good replicas are asked. A peer orders a read behind every overlapping change that was sent to it before, and
//! the Primary holds conflicting commands back, so a read returns the same from every good replica.

use block::{Extent, Failure, Run, Status};

use crate::{
    DiskAnswer, DiskError, DiskRequest, DiskState, LinkId, NodeId, Packet, Resource,
    balance::Candidate,
    job::Kind,
    range_lock::Access,
    sabotage::{Fault, planted},
    task::State,
};

/// A read that a peer was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadKey {
    pub(crate) read: u64,
    pub(crate) task: usize,
}

impl Resource {
    /// Reads for a command, from the replica that serves it best.
    pub(crate) fn read(&mut self, task: usize, extent: Extent) {
        let volume = self.tasks[task].volume;
        let mut balancer = self.volumes[volume].balancer;
        let chosen = balancer.choose(self.config.read_balancing, extent, self.candidates(task));
        self.volumes[volume].balancer = balancer;
        let Some(chosen) = chosen else { return self.nobody_reads(task) };
        self.reads += 1;
        let read = self.reads;
        self.tasks[task].state = State::Reading;
        self.tasks[task].read = read;
        self.tasks[task].asked = self.now;
        let allocation = matches!(self.tasks[task].command, block::Command::Allocation { .. });
        let Some(peer) = chosen.peer else {
            let request =
                if allocation { DiskRequest::Allocation { extent } } else { DiskRequest::Read { extent } };
            let target = &mut self.volumes[volume];
            target.local_reads += 1;
            target.read_bytes += if allocation { 0 } else { extent.len };
            self.start_job(volume, Some((extent, Access::Shared)), Kind::Read { task, read }, Some(request));
            return;
        };
        let volume = self.number(volume);
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.reads.push(ReadKey { read, task });
        }
        let packet = if allocation {
            Packet::Allocation { volume, read, extent }
        } else {
            Packet::Read { volume, read, extent }
        };
        self.send(peer, packet);
    }

    fn candidates(&self, task: usize) -> impl Iterator<Item = Candidate> + Clone {
        let task = &self.tasks[task];
        let volume = &self.volumes[task.volume];
        let target = planted(Fault::ReadFromTarget) && volume.disk.is_some();
        let local =
            (volume.state == DiskState::UpToDate || target) && !task.failed.contains(self.config.node);
        let peers = self.peers.iter().enumerate().filter_map(|(at, peer)| {
            let state = peer.disk(task.volume);
            let good = state == DiskState::UpToDate
                || planted(Fault::ReadFromTarget) && state == DiskState::Inconsistent;
            let link = peer.link.as_ref().filter(|_| good && !task.failed.contains(peer.node))?;
            let (pending, latency_ns) = (link.reads.len() as u64, link.latency.expected_ns(self.now));
            Some(Candidate { peer: Some(at), pending, latency_ns })
        });
        let (pending, latency_ns) = (volume.local_reads.into(), volume.latency.expected_ns(self.now));
        local.then_some(Candidate { peer: None, pending, latency_ns }).into_iter().chain(peers)
    }

    /// No good replica is left that did not fail.
    fn nobody_reads(&mut self, task: usize) {
        if self.tasks[task].failed.is_empty() {
            self.hold(task);
        } else {
            self.finish(task, Status::Failed(Failure::ReadError));
        }
    }

    /// The local disk read for a command.
    pub(crate) fn local_read_ended(
        &mut self,
        volume: usize,
        task: usize,
        read: u64,
        result: Result<DiskAnswer, DiskError>,
    ) {
        self.volumes[volume].local_reads -= 1;
        if !self.awaits_read(task, read) {
            return;
        }
        self.volumes[volume].latency.add(self.tasks[task].asked, self.now);
        match result {
            Ok(DiskAnswer::Data(data)) => self.read_done(task, data),
            Ok(DiskAnswer::Allocation(runs)) => self.finish(task, Status::Allocation(runs)),
            Ok(DiskAnswer::Done) | Err(_) => {
                if self.has_good_peer(volume) {
                    self.detach(volume);
                }
                self.read_failed(task, self.config.node);
            }
        }
    }

    /// A peer answered a read with bytes or with what occupies space.
    pub(crate) fn peer_read(
        &mut self,
        peer: usize,
        read: u64,
        answer: Option<Result<block::Payload, Vec<Run>>>,
    ) {
        let node = self.peers[peer].node;
        let Some(link) = self.peers[peer].link.as_mut() else { return };
        let Some(at) = link.reads.iter().position(|key| key.read == read) else { return };
        let task = link.reads.swap_remove(at).task;
        if !self.awaits_read(task, read) {
            return;
        }
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.latency.add(self.tasks[task].asked, self.now);
        }
        let wanted = self.tasks[task].command.extent().map_or(0, |extent| extent.len);
        match answer {
            Some(Ok(data)) if data.len() as u64 == wanted => {
                if let Some(link) = self.peers[peer].link.as_mut() {
                    link.received_bytes += wanted;
                }
                self.read_done(task, data);
            }
            Some(Err(runs)) if matches!(self.tasks[task].command, block::Command::Allocation { .. }) => {
                self.finish(task, Status::Allocation(runs));
            }
            _ => self.read_failed(task, node),
        }
    }

    /// Whether a command still waits for that very read.
    fn awaits_read(&self, task: usize, read: u64) -> bool {
        self.tasks.get(task).is_some_and(|task| task.state == State::Reading && task.read == read)
    }

    /// One replica could not read: another one is asked.
    fn read_failed(&mut self, task: usize, node: NodeId) {
        if planted(Fault::ReadOnce) {
            return self.finish(task, Status::Failed(Failure::ReadError));
        }
        self.tasks[task].failed = self.tasks[task].failed.with(node);
        self.granted.push_back(crate::resource::Granted::Task(task));
    }

    /// Asks others for what a lost peer was asked for.
    pub(crate) fn reissue_reads(&mut self, reads: &[ReadKey]) {
        for key in reads {
            if self.awaits_read(key.task, key.read) {
                self.granted.push_back(crate::resource::Granted::Task(key.task));
            }
        }
    }

    /// A peer asks for bytes, or for what occupies space.
    pub(crate) fn serve(
        &mut self,
        peer: usize,
        link: LinkId,
        volume: usize,
        read: u64,
        request: DiskRequest,
    ) {
        let extent = match &request {
            DiskRequest::Read { extent } | DiskRequest::Allocation { extent } => *extent,
            _ => return,
        };
        let target = &self.volumes[volume];
        let serves = target.state == DiskState::UpToDate
            || planted(Fault::ReadFromTarget) && target.state == DiskState::Inconsistent;
        if serves && target.holds(extent) {
            let access = (!planted(Fault::UnorderedRead)).then_some((extent, Access::Shared));
            self.start_job(volume, access, Kind::Serve { peer, link, read }, Some(request));
        } else {
            self.send(peer, Packet::ReadFailed { read });
        }
    }

    /// The disk ended what a peer asked for.
    pub(crate) fn served(
        &mut self,
        volume: usize,
        peer: usize,
        link: LinkId,
        read: u64,
        result: Result<DiskAnswer, DiskError>,
    ) {
        if self.peers[peer].link.as_ref().is_none_or(|current| current.id != link) {
            return;
        }
        let packet = match result {
            Ok(DiskAnswer::Data(data)) => {
                self.volumes[volume].read_bytes += data.len() as u64;
                Packet::ReadData { read, data }
            }
            Ok(DiskAnswer::Allocation(runs)) => Packet::AllocationRuns { read, runs },
            Ok(DiskAnswer::Done) | Err(_) => Packet::ReadFailed { read },
        };
        self.send(peer, packet);
    }
}
