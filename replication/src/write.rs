//! A change on its way to every replica, in modes A, B and C; flushes and new generations travel the same way.
//!
//! A command is answered when each replica that its change was sent to reached what the mode of that replica awaits,
//! and at least one good disk completed it. The change itself stays in the log until every replica has it on its
//! disk, whatever the mode: what a lost peer misses is read from there.

use block::{Command, Extent, Failure, Payload, Status};

use crate::{
    AckMode, DiskError, DiskRequest, DiskState, Effect, Generation, LinkId, NodeId, NodeSet, Packet,
    Resource, Role, Sequence,
    job::Kind,
    range_lock::Access,
    sabotage::{Fault, planted},
    task::State,
};

/// How far a change has come at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// On its way.
    Queued,
    /// Handed to the socket.
    Sent,
    /// In the peer's memory.
    Received,
    /// Completed by the peer's disk.
    Stable,
}

impl AckMode {
    /// What a change waits for at a replica of this mode.
    pub(crate) const fn awaits(self) -> Progress {
        match self {
            Self::A => Progress::Sent,
            Self::B => Progress::Received,
            Self::C => Progress::Stable,
        }
    }
}

/// One replica of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) peer: usize,
    /// The mode that the change began with.
    pub(crate) mode: AckMode,
    pub(crate) progress: Progress,
    /// The peer is gone, or its disk is.
    pub(crate) lost: bool,
}

/// The local replica of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// There is none.
    Absent,
    /// The disk works on it.
    Pending,
    /// The disk completed it.
    Done,
    /// The disk failed it.
    Failed(DiskError),
}

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// These bytes.
    Data(Extent),
    /// Nothing: everything before becomes stable.
    Flush,
    /// The generation: from which one, and who is left behind.
    Generation { previous: Generation, missing: NodeSet },
}

/// A change that is not on every replica yet.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) volume: usize,
    pub(crate) sequence: Sequence,
    pub(crate) what: What,
    /// The command that waits for it.
    pub(crate) task: Option<usize>,
    pub(crate) local: Local,
    pub(crate) legs: Vec<Leg>,
    /// What it holds of the activity log, until it is everywhere.
    active: Option<Extent>,
    stalled: bool,
}

/// A place in the log; `None` once the change is everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    sequence: Sequence,
    key: Option<usize>,
}

impl Resource {
    /// Sends a command's change to every replica.
    pub(crate) fn change(&mut self, task: usize) {
        let volume = self.tasks[task].volume;
        let data = self.tasks[task].command.changes();
        if data && self.needs_generation(volume) && self.volumes[volume].generation.is_none() {
            self.start_generation(volume);
        }
        let sequence = self.next_sequence();
        let what = self.tasks[task].command.extent().map_or(What::Flush, What::Data);
        let key = self.log_change(volume, sequence, what, Some(task));
        self.tasks[task].state = State::Changing(key);
        self.changes[key].active = self.take_extents(task);
        let missing = self.absent(volume);
        if let What::Data(extent) = what
            && !planted(Fault::ForgetMissed)
        {
            self.volumes[volume].mark(missing, extent);
        }
        let local_good = self.volumes[volume].state == DiskState::UpToDate;
        for peer in 0..self.peers.len() {
            let mode = self.peers[peer].mode;
            let here_only = mode == AckMode::A || planted(Fault::FlushHereOnly);
            let spared = what == What::Flush && here_only && local_good;
            if !self.peers[peer].receives(volume) || spared {
                continue;
            }
            let packet = self.change_packet(task, sequence, mode, missing);
            self.changes[key].legs.push(Leg { peer, mode, progress: Progress::Queued, lost: false });
            self.send(peer, packet);
            if let Some(link) = self.peers[peer].link.as_mut().filter(|_| mode == AckMode::A) {
                link.to_hand.push_back((link.packets, sequence));
            }
        }
        if self.volumes[volume].disk.is_some() {
            self.changes[key].local = Local::Pending;
            let request = self.change_request(task);
            let range = self.tasks[task].command.extent().map(|extent| (extent, Access::Exclusive));
            self.start_job(volume, range, Kind::Change(key), Some(request));
        }
        self.advance(key);
    }

    pub(crate) fn log_change(
        &mut self,
        volume: usize,
        sequence: Sequence,
        what: What,
        task: Option<usize>,
    ) -> usize {
        let legs = self.spare_legs.pop().unwrap_or_default();
        let (local, active) = (Local::Absent, None);
        let change = Change { volume, sequence, what, task, local, legs, active, stalled: false };
        let key = self.changes.insert(change);
        self.log.push_back(Logged { sequence, key: Some(key) });
        key
    }

    /// The nodes with a disk that a change of the volume does not reach now.
    pub(crate) fn absent(&self, volume: usize) -> NodeSet {
        let mut absent = self.volumes[volume].config.disks;
        if self.volumes[volume].disk.is_some() {
            absent = absent.without(self.config.node);
        }
        let reached = self.peers.iter().filter(|peer| peer.receives(volume));
        reached.fold(absent, |absent, peer| absent.without(peer.node))
    }

    /// The local disk ended its part of a change.
    pub(crate) fn local_change_ended(&mut self, volume: usize, key: usize, result: Result<(), DiskError>) {
        let change = &mut self.changes[key];
        change.local = result.map_or_else(Local::Failed, |()| Local::Done);
        let extent = if let What::Data(extent) = change.what { Some(extent) } else { None };
        if let Some(extent) = change.active.take_if(|_| planted(Fault::EvictEarly)) {
            self.release_extents(volume, extent);
        }
        if result.is_err() {
            self.store_failed(volume, extent);
        }
        self.advance(key);
    }

    /// A peer told how far a change has come.
    pub(crate) fn progressed(&mut self, peer: usize, sequence: Sequence, progress: Progress) {
        let Some(key) = self.find_change(sequence) else { return };
        let legs = self.changes[key].legs.iter_mut();
        for leg in legs.filter(|leg| leg.peer == peer && !leg.lost) {
            leg.progress = leg.progress.max(progress);
        }
        self.advance(key);
    }

    /// A peer's disk failed a change; which disk it was, its next state tells.
    pub(crate) fn leg_failed(&mut self, peer: usize, sequence: Sequence) {
        let Some(key) = self.find_change(sequence) else { return };
        let node = self.peers[peer].node;
        let change = &mut self.changes[key];
        let (volume, what) = (change.volume, change.what);
        let mut newly = false;
        for leg in change.legs.iter_mut().filter(|leg| leg.peer == peer) {
            newly |= !std::mem::replace(&mut leg.lost, true);
        }
        if let What::Data(extent) = what {
            let target = &mut self.volumes[volume];
            target.mark(NodeSet::EMPTY.with(node), extent);
            if newly {
                target.failing = target.failing.with(node);
            }
        }
        self.advance(key);
        self.changed = true;
    }

    /// Packets were handed to the socket of a link.
    pub(crate) fn handed(&mut self, node: NodeId, link: LinkId, packets: u64) {
        let Some(peer) = self.link_at(node, link) else { return };
        while let Some(link) = self.peers[peer].link.as_mut() {
            match link.to_hand.front() {
                Some(&(packet, sequence)) if packet <= packets => {
                    link.to_hand.pop_front();
                    self.progressed(peer, sequence, Progress::Sent);
                }
                _ => break,
            }
        }
    }

    /// Takes a peer out of every change of one volume, or of all: what it may not have is marked.
    pub(crate) fn lose_legs(&mut self, peer: usize, volume: Option<usize>) {
        let node = self.peers[peer].node;
        for at in 0..self.log.len() {
            let Some(key) = self.log.get(at).and_then(|logged| logged.key) else { continue };
            let change = &mut self.changes[key];
            if volume.is_some_and(|volume| volume != change.volume) {
                continue;
            }
            let mut hit = false;
            for leg in change.legs.iter_mut().filter(|leg| leg.peer == peer && !leg.lost) {
                leg.lost = true;
                hit = leg.progress < Progress::Stable;
            }
            if let (true, What::Data(extent)) = (hit, change.what) {
                let of = change.volume;
                if !planted(Fault::ForgetInFlight) {
                    self.volumes[of].mark(NodeSet::EMPTY.with(node), extent);
                    self.volumes[of].uneven = self.volumes[of].uneven.with(node);
                }
            }
        }
        for at in 0..self.volumes.len() {
            let target = &mut self.volumes[at];
            if volume.is_none_or(|volume| volume == at) && target.failing.contains(node) {
                target.failing = target.failing.without(node);
                target.uneven = target.uneven.with(node);
            }
            // Until it notices, it may still catch up with the generation from others: the next change begins one.
            if volume.is_none_or(|volume| volume == at) {
                self.volumes[at].left = self.volumes[at].left.without(node);
            }
        }
        self.revisit_changes();
    }

    /// Looks at every change in the log again.
    fn revisit_changes(&mut self) {
        let keys: Vec<usize> = self.log.iter().filter_map(|logged| logged.key).collect();
        for key in keys {
            if self.changes.contains(key) {
                self.advance(key);
            }
        }
        self.changed = true;
    }

    /// Acknowledges the changes that had to wait for quorum or for a generation.
    pub(crate) fn retry_stalled(&mut self) {
        for key in std::mem::take(&mut self.stalled) {
            if self.changes.contains(key) {
                self.advance(key);
            }
            if self.changes.get(key).is_some_and(|change| change.stalled && change.task.is_some()) {
                self.stalled.push(key);
            }
        }
    }

    /// Does what a change's progress allows: answers its command, takes it out of the log.
    pub(crate) fn advance(&mut self, key: usize) {
        if let Some(task) = self.changes[key].task
            && self.reached(key)
        {
            let volume = self.changes[key].volume;
            if self.is_durable(key) {
                if self.may_acknowledge(key) {
                    self.changes[key].task = None;
                    self.finish(task, Status::Done);
                } else if !std::mem::replace(&mut self.changes[key].stalled, true) {
                    self.stalled.push(key);
                    self.changed = true;
                }
            } else if !self.may_become_durable(key) {
                self.changes[key].task = None;
                match self.changes[key].local {
                    Local::Failed(error)
                        if !self.has_good_peer(volume) && self.volumes[volume].disk.is_some() =>
                    {
                        self.finish(task, Status::Failed(failure(error)));
                    }
                    _ => {
                        self.hold(task);
                        self.changed = true;
                    }
                }
            }
        }
        let change = &self.changes[key];
        let everywhere = |leg: &Leg| leg.lost || leg.progress == Progress::Stable;
        if change.task.is_none()
            && change.local != Local::Pending
            && change.legs.iter().all(everywhere)
            && !self.enter_generation(key)
        {
            self.retire(key);
        }
    }

    fn retire(&mut self, key: usize) {
        let mut change = self.changes.remove(key);
        change.legs.clear();
        self.spare_legs.push(change.legs);
        if let Some(extent) = change.active {
            self.release_extents(change.volume, extent);
        }
        if let Ok(at) = self.log.binary_search_by_key(&change.sequence, |logged| logged.sequence) {
            self.log[at].key = None;
        }
        while self.log.front().is_some_and(|logged| logged.key.is_none()) {
            self.log.pop_front();
        }
        if matches!(change.what, What::Generation { .. }) {
            self.volumes[change.volume].generation.take_if(|generation| *generation == key);
            self.changed = true;
        }
        self.changed |= self.stopping.is_some() || self.demotion.is_some();
        self.protocol_progress();
    }

    /// Whether every replica reached what its mode awaits.
    fn reached(&self, key: usize) -> bool {
        let change = &self.changes[key];
        let enough = |leg: &Leg| {
            let awaits =
                if planted(Fault::EarlyAcknowledgement) { Progress::Queued } else { leg.mode.awaits() };
            leg.lost || leg.progress >= awaits
        };
        change.local != Local::Pending && change.legs.iter().all(enough)
    }

    /// Whether a good disk completed it.
    fn is_durable(&self, key: usize) -> bool {
        let change = &self.changes[key];
        let good = |leg: &Leg| {
            leg.progress == Progress::Stable
                && self.peers[leg.peer].disk(change.volume) == DiskState::UpToDate
        };
        let state = self.volumes[change.volume].state;
        let trusted = planted(Fault::LateAcknowledgement) && state == DiskState::Consistent;
        let local = change.local == Local::Done && (state == DiskState::UpToDate || trusted);
        local || change.legs.iter().any(good) || planted(Fault::EarlyAcknowledgement)
    }

    /// Whether a good disk may still complete it.
    fn may_become_durable(&self, key: usize) -> bool {
        let change = &self.changes[key];
        let on_its_way = |leg: &Leg| {
            !leg.lost
                && leg.progress < Progress::Stable
                && self.peers[leg.peer].disk(change.volume) == DiskState::UpToDate
        };
        change.legs.iter().any(on_its_way)
    }

    fn may_acknowledge(&self, key: usize) -> bool {
        let change = &self.changes[key];
        let target = &self.volumes[change.volume];
        let settled = target.generation.is_none() && !self.needs_generation(change.volume)
            || planted(Fault::FlushWithoutGeneration) && change.what == What::Flush;
        (target.quorum || planted(Fault::LateAcknowledgement))
            && (settled || change.what == What::Flush && !target.was_written())
    }

    fn find_change(&self, sequence: Sequence) -> Option<usize> {
        let at = self.log.binary_search_by_key(&sequence, |logged| logged.sequence).ok()?;
        self.log[at].key
    }

    /// The last place in the order that is on every replica, with all before.
    pub(crate) fn low_water(&self) -> Sequence {
        self.log.front().map_or(self.sequence, |logged| Sequence(logged.sequence.0 - 1))
    }

    pub(crate) fn log_is_full(&self) -> bool {
        self.log.len() >= LOG_MAX
    }

    /// Tells the peers, now and then, what is everywhere.
    pub(crate) fn tell_everywhere(&mut self) {
        let node = self.config.node;
        let needed = self.volumes.iter().any(|volume| volume.config.disks.without(node).len() >= 2);
        // Who may lack something is told first.
        let uneven =
            self.volumes.iter().any(|volume| !volume.uneven.is_empty() || !volume.failing.is_empty());
        if self.role != Role::Primary || !needed || uneven {
            self.everywhere_due = None;
            return;
        }
        let low = self.low_water();
        if low <= self.everywhere_told {
            return;
        }
        let due = *self.everywhere_due.get_or_insert(crate::Instant(self.now.0 + EVERYWHERE_DELAY));
        if low.0 - self.everywhere_told.0 >= EVERYWHERE_CHANGES || due <= self.now {
            self.everywhere_told = low;
            self.everywhere_due = None;
            for peer in 0..self.peers.len() {
                if self.peers[peer].up().is_some() {
                    self.send(peer, Packet::Everywhere { sequence: low });
                }
            }
        }
    }

    /// Appends a packet to a peer's link.
    pub(crate) fn send(&mut self, peer: usize, packet: Packet) {
        let node = self.peers[peer].node;
        let Some(link) = self.peers[peer].link.as_mut() else { return };
        link.packets += 1;
        if let Packet::Write { extent, .. } | Packet::SyncData { extent, .. } = &packet {
            link.sent_bytes += extent.len;
        }
        self.out.push(Effect::Send { peer: node, link: link.id, packet });
    }

    fn change_packet(&self, task: usize, sequence: Sequence, mode: AckMode, missing: NodeSet) -> Packet {
        let task = &self.tasks[task];
        let volume = self.number(task.volume);
        match body(task) {
            Body::Flush => Packet::Flush { sequence },
            Body::Zeroes { extent, unmap, fua } => {
                let fua = fua && !planted(Fault::ForgetForce);
                Packet::WriteZeroes { volume, sequence, extent, unmap, fua, mode, missing }
            }
            Body::Data { extent, data, fua } => {
                let fua = fua && !planted(Fault::ForgetForce);
                Packet::Write { volume, sequence, extent, data, fua, mode, missing }
            }
        }
    }

    fn change_request(&self, task: usize) -> DiskRequest {
        match body(&self.tasks[task]) {
            Body::Flush => DiskRequest::Flush,
            Body::Zeroes { extent, unmap, fua } => DiskRequest::WriteZeroes { extent, unmap, fua },
            Body::Data { extent, data, fua } => DiskRequest::Write { extent, data, fua },
        }
    }
}

/// What a command changes, as replicas see it.
enum Body {
    Flush,
    Zeroes { extent: Extent, unmap: bool, fua: bool },
    Data { extent: Extent, data: Payload, fua: bool },
}

fn body(task: &crate::task::Task) -> Body {
    let computed = || task.computed.clone().unwrap_or_default();
    match &task.command {
        Command::Write { extent, data, fua } => Body::Data { extent: *extent, data: data.clone(), fua: *fua },
        Command::CompareAndWrite { extent, fua, .. } | Command::OrWrite { extent, fua, .. } => {
            Body::Data { extent: *extent, data: computed(), fua: *fua }
        }
        Command::Discard { extent } => Body::Zeroes { extent: *extent, unmap: true, fua: false },
        Command::WriteZeroes { extent, unmap, fua } => {
            Body::Zeroes { extent: *extent, unmap: *unmap, fua: *fua }
        }
        Command::Flush | Command::Read { .. } | Command::Allocation { .. } => Body::Flush,
    }
}

const fn failure(error: DiskError) -> Failure {
    match error {
        DiskError::NoSpace => Failure::NoSpace,
        DiskError::Io { .. } => Failure::WriteError,
    }
}

/// How many changes may be on their way; more commands wait.
const LOG_MAX: usize = 8192;
/// After how many changes, or how long, the peers are told what is everywhere.
const EVERYWHERE_CHANGES: u64 = 64;
const EVERYWHERE_DELAY: std::time::Duration = std::time::Duration::from_millis(100);
