//! A change that came from the Primary: applied in the order of the stream where it overlaps another one, answered
//! once it is in memory (mode B) and once the disk has it.

use block::{Extent, Payload};

use crate::{
    AckMode, DiskError, DiskRequest, DiskState, Generation, LinkId, NodeSet, Packet, Resource, Role,
    Sequence,
    bitmap::BLOCK,
    job::{After, Kind},
    meta,
    range_lock::Access,
    sabotage::{Fault, planted},
};

/// A change as a packet brought it.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) sequence: Sequence,
    pub(crate) extent: Extent,
    /// The bytes; `None` for zeros.
    pub(crate) data: Option<Payload>,
    pub(crate) unmap: bool,
    pub(crate) fua: bool,
    pub(crate) mode: AckMode,
    pub(crate) missing: NodeSet,
}

impl Resource {
    /// The next place in the Primary's stream.
    ///
    /// # Errors
    /// When the sender is not Primary, or goes back in the order.
    pub(crate) fn enter_stream(&mut self, peer: usize, sequence: Sequence) -> Result<(), &'static str> {
        let primary = self.peers[peer].up().is_some_and(|state| state.role == Role::Primary);
        if !primary || self.role == Role::Primary {
            return Err("a change from a node that is not Primary");
        }
        let Some(link) = self.peers[peer].link.as_mut() else { return Ok(()) };
        if sequence <= link.received {
            return Err("a change that is not behind the one before");
        }
        link.received = sequence;
        self.sequence = self.sequence.max(sequence);
        Ok(())
    }

    /// A change arrives.
    ///
    /// # Errors
    /// When the packet is one that no peer may send.
    pub(crate) fn incoming(
        &mut self,
        peer: usize,
        volume: usize,
        change: Incoming,
    ) -> Result<(), &'static str> {
        let Incoming { sequence, extent, data, unmap, fua, mode, missing } = change;
        self.enter_stream(peer, sequence)?;
        let target = &self.volumes[volume];
        if !target.holds(extent)
            || extent.is_empty()
            || data.as_ref().is_some_and(|data| data.len() as u64 != extent.len)
        {
            return Err("a change outside the volume");
        }
        if target.disk.is_none() {
            self.send(peer, Packet::WriteFailed { sequence });
            return Ok(());
        }
        self.before_change(volume, mode);
        self.note_missed(volume, missing, extent);
        self.remember_tail(volume, peer, sequence, extent)?;
        let Some(link) = self.peers[peer].link.as_mut() else { return Ok(()) };
        link.received_bytes += extent.len;
        link.applying.push_back((sequence, false));
        let id = link.id;
        if mode == AckMode::B {
            self.send(peer, Packet::Received { sequence });
        }
        let request = match data {
            Some(data) => DiskRequest::Write { extent, data, fua },
            None => DiskRequest::WriteZeroes { extent, unmap, fua },
        };
        let range = (!planted(Fault::UnorderedApply)).then_some((extent, Access::Exclusive));
        self.start_job(volume, range, Kind::Incoming { peer, link: id, sequence }, Some(request));
        self.sync_requests_due();
        Ok(())
    }

    /// What has to be on the disk about the replica before a change of the Primary is.
    fn before_change(&mut self, volume: usize, mode: AckMode) {
        let good = self.volumes[volume].state == DiskState::UpToDate;
        let Some(disk) = self.volumes[volume].disk.as_mut() else { return };
        let before = disk.flags;
        disk.flags.in_use = true;
        disk.flags.was_primary = false;
        disk.flags.lags = mode == AckMode::A;
        if !good {
            // Without what was missed before, this makes the data one of no moment.
            disk.flags.consistent = false;
            disk.flags.fresh = false;
        }
        if disk.flags != before {
            self.persist(volume, None);
            self.changed = true;
        }
    }

    /// Marks what other nodes do not get, and tells those of them that are connected here.
    fn note_missed(&mut self, volume: usize, missing: NodeSet, extent: Extent) {
        if missing.is_empty() || planted(Fault::ForgetMissed) {
            return;
        }
        self.volumes[volume].mark(missing, extent);
        for peer in 0..self.peers.len() {
            if missing.contains(self.peers[peer].node) && self.peers[peer].receives(volume) {
                self.send_marks(peer, volume, extent);
            }
        }
    }

    /// Tells a peer blocks in which it differs.
    pub(crate) fn send_marks(&mut self, peer: usize, volume: usize, extent: Extent) {
        let volume = self.number(volume);
        let (mut block, end) = (extent.offset / BLOCK, extent.end().div_ceil(BLOCK));
        while block < end {
            let stop = end.min((block / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (stop - block))) << (block % 64);
            self.send(peer, Packet::Bitmap { volume, first: block / 64, words: vec![mask], last: false });
            block = stop;
        }
    }

    /// Remembers a change until the Primary says that it is everywhere.
    pub(crate) fn remember_tail(
        &mut self,
        volume: usize,
        primary: usize,
        sequence: Sequence,
        extent: Extent,
    ) -> Result<(), &'static str> {
        let others = self.volumes[volume].config.disks.without(self.config.node);
        if others.without(self.peers[primary].node).is_empty() {
            return Ok(());
        }
        let target = &mut self.volumes[volume];
        if target.tail.len() >= TAIL_MAX {
            return Err("too many changes of which it is not known whether they are everywhere");
        }
        target.tail.push_back((sequence, extent));
        Ok(())
    }

    /// The Primary says what is everywhere.
    pub(crate) fn everywhere(&mut self, peer: usize, sequence: Sequence) {
        if self.peers[peer].up().is_none_or(|state| state.role != Role::Primary) {
            return;
        }
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.everywhere = link.everywhere.max(sequence);
        }
        for volume in &mut self.volumes {
            self.changed |= volume.resync.is_some();
            // Entries of a resync may stand out of order, behind later ones: they only stay longer.
            while volume.tail.front().is_some_and(|(place, _)| *place <= sequence) {
                volume.tail.pop_front();
            }
        }
    }

    /// Marks what may not be everywhere as different from `nodes`. Whether there was any.
    pub(crate) fn mark_tail(&mut self, volume: usize, nodes: NodeSet) -> bool {
        let target = &mut self.volumes[volume];
        let tail = std::mem::take(&mut target.tail);
        if planted(Fault::ForgetTail) {
            return false;
        }
        for (_, extent) in &tail {
            target.mark(nodes, *extent);
        }
        let any = !tail.is_empty();
        target.tail = tail;
        any
    }

    /// The disk ended a change of the Primary.
    pub(crate) fn incoming_ended(
        &mut self,
        volume: usize,
        peer: usize,
        link: LinkId,
        sequence: Sequence,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            self.detach(volume);
        }
        self.answer(peer, link, sequence, result.is_ok());
        let Some(link) = self.peers[peer].link.as_mut().filter(|current| current.id == link) else { return };
        if let Ok(at) = link.applying.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            link.applying[at].1 = true;
        }
        while link.applying.front().is_some_and(|(_, done)| *done) {
            link.applying.pop_front();
        }
        self.start_flushes(peer);
    }

    /// Answers a change, if the link is still there.
    pub(crate) fn answer(&mut self, peer: usize, link: LinkId, sequence: Sequence, done: bool) {
        if self.peers[peer].link.as_ref().is_some_and(|current| current.id == link) {
            let packet = if done { Packet::Written { sequence } } else { Packet::WriteFailed { sequence } };
            self.send(peer, packet);
        }
    }

    /// The Primary wants everything before to be stable.
    pub(crate) fn incoming_flush(&mut self, peer: usize, sequence: Sequence) -> Result<(), &'static str> {
        self.enter_stream(peer, sequence)?;
        self.send(peer, Packet::Received { sequence });
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.flushes.push_back(sequence);
        }
        if planted(Fault::EarlyFlush) {
            self.send(peer, Packet::Written { sequence });
        }
        self.start_flushes(peer);
        Ok(())
    }

    /// Starts the flushes before which every change is on the disk.
    fn start_flushes(&mut self, peer: usize) {
        while let Some(link) = self.peers[peer].link.as_mut() {
            let Some(&sequence) = link.flushes.front() else { return };
            if link.applying.front().is_some_and(|(change, _)| *change < sequence) {
                return;
            }
            link.flushes.pop_front();
            let id = link.id;
            if self.volumes.iter().all(|volume| volume.disk.is_none()) {
                self.answer(peer, id, sequence, true);
            }
            // The last disk's answer counts: one flush after the other.
            self.flush_next(peer, id, sequence, 0);
        }
    }

    fn flush_next(&mut self, peer: usize, link: LinkId, sequence: Sequence, from: usize) {
        let next = (from..self.volumes.len()).find(|&volume| self.volumes[volume].disk.is_some());
        if let Some(volume) = next {
            let kind = Kind::IncomingFlush { peer, link, sequence };
            self.start_job(volume, None, kind, Some(DiskRequest::Flush));
        } else if from > 0 {
            self.answer(peer, link, sequence, true);
        }
    }

    pub(crate) fn incoming_flush_ended(
        &mut self,
        volume: usize,
        peer: usize,
        link: LinkId,
        sequence: Sequence,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            self.detach(volume);
            self.answer(peer, link, sequence, false);
        } else {
            let rest = if planted(Fault::FlushOneVolume) { self.volumes.len() } else { volume + 1 };
            self.flush_next(peer, link, sequence, rest);
        }
    }

    /// The Primary began a generation, or tells who misses what is under way.
    pub(crate) fn incoming_generation(
        &mut self,
        peer: usize,
        volume: usize,
        sequence: Sequence,
        current: Generation,
        missing: NodeSet,
    ) -> Result<(), &'static str> {
        self.enter_stream(peer, sequence)?;
        let Some(link) = self.peers[peer].link.as_ref().map(|link| link.id) else { return Ok(()) };
        self.mark_tail(volume, missing);
        let target = &mut self.volumes[volume];
        let old = std::mem::replace(&mut target.known, current);
        if old != current {
            meta::remember(&mut target.known_history, old);
        }
        target.left = NodeSet(target.left.0 | missing.0);
        self.leave_behind(peer, volume, missing);
        let target = &mut self.volumes[volume];
        let good = target.state == DiskState::UpToDate;
        let mut persists = false;
        if let Some(disk) = target.disk.as_mut().filter(|disk| good && disk.current != current) {
            let old = disk.current;
            disk.enter(current);
            for node in missing.without(self.config.node).iter() {
                let base = &mut disk.bases[usize::from(node.0)];
                *base = if base.0 == 0 { old } else { *base };
            }
            disk.flags.in_use = true;
            persists = true;
        }
        if persists {
            self.persist(volume, Some(After::Answer { peer, link, sequence }));
        } else {
            self.answer(peer, link, sequence, true);
        }
        self.changed = true;
        Ok(())
    }

    /// Whoever does not take part in a generation has to learn it, and what it misses; and nobody here goes by what it
    /// has. A Primary that leaves its own failed disk behind knows (P12).
    fn leave_behind(&mut self, primary: usize, volume: usize, missing: NodeSet) {
        for other in 0..self.peers.len() {
            let left = missing.contains(self.peers[other].node);
            if other != primary && left && self.peers[other].receives(volume) {
                self.part(other, crate::Farewell::Retry, "it does not take part in the new generation");
            }
        }
        self.update_disks();
    }
}

/// How many changes may be remembered that are perhaps not everywhere.
const TAIL_MAX: usize = 65536;
