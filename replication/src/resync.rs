//! Catching up while serving: the SyncTarget asks for what its bitmap has, block run by block run.
//!
//! While a run is asked for, the target holds its range: changes of the Primary that overlap wait and are applied
//! after it. The source answers once it has seen the order as far as the target had, with a read that is ordered
//! behind overlapping changes. So what is fetched is never older than what the target had.

use block::{Extent, Payload};

use crate::{
    DiskAnswer, DiskError, DiskRequest, DiskState, Instant, LinkId, NodeSet, NodeState, Packet, Plan,
    ReplicationState, Resource, Role, Scope, Sequence,
    bitmap::BLOCK,
    job::Kind,
    range_lock::Access,
    sabotage::{Fault, planted},
};

/// A resync that this node is the target of.
#[derive(Clone, Debug)]
pub(crate) struct Resync {
    pub(crate) source: usize,
    /// Runs that are asked for: their jobs, and whether they became dirty again meanwhile.
    runs: Vec<Run>,
    /// The block at which the next run is looked for.
    pub(crate) cursor: u64,
    pub(crate) finishing: bool,
    pub(crate) started: Instant,
    /// Blocks at the start.
    pub(crate) total: u64,
}

#[derive(Clone, Debug)]
struct Run {
    job: usize,
    extent: Extent,
    asked: bool,
    again: bool,
    /// How far the source had seen the order.
    seen: Sequence,
}

impl Resource {
    /// Begins, goes on with, or gives up the resync of each volume.
    pub(crate) fn update_resyncs(&mut self) {
        self.sync_requests_due();
        for volume in 0..self.volumes.len() {
            if let Some(resync) = &self.volumes[volume].resync
                && !self.may_fetch_from(resync.source, volume)
            {
                self.stop_resync(volume);
            }
            if self.volumes[volume].resync.is_none()
                && self.volumes[volume].disk.is_some()
                && self.volumes[volume].state != DiskState::UpToDate
                && let Some(source) = self.choose_source(volume)
            {
                self.start_resync(volume, source);
            }
            self.fetch(volume);
        }
    }

    fn choose_source(&self, volume: usize) -> Option<usize> {
        // What a resync that was given up had asked for must not pass for an answer of the next one.
        let idle = |&peer: &usize| self.peers[peer].pair(volume).is_some_and(|pair| pair.asked == 0);
        let sources = (0..self.peers.len()).filter(|&peer| self.may_fetch_from(peer, volume)).filter(idle);
        sources.min_by_key(|&peer| {
            let primary = self.peers[peer].up().is_some_and(|state| state.role == Role::Primary);
            (!primary, self.peers[peer].node)
        })
    }

    /// Whether a peer is a source for this node's replica. It must see the same Primary as this node does: else one
    /// of the two misses changes that the other one gets.
    fn may_fetch_from(&self, peer: usize, volume: usize) -> bool {
        let Some(state) = self.peers[peer].up() else { return false };
        let pair = self.peers[peer].pair(volume);
        let ready = pair.is_some_and(|pair| pair.bitmap_here && matches!(pair.plan, Plan::SyncTarget(_)));
        let wanted = self.volumes[volume].may_copy_from(self.peers[peer].node, self.now);
        let may = wanted && !self.is_paused(peer, volume);
        may && ready
            && self.peers[peer].disk(volume) == DiskState::UpToDate
            && state.primary == self.primary()
    }

    fn start_resync(&mut self, volume: usize, source: usize) {
        let node = self.peers[source].node;
        let target = &mut self.volumes[volume];
        if target.dirty(node) == 0
            && let Some(bitmap) = target.bitmap(node)
        {
            // One block is asked for all the same: only the source's answer says that the Primary counts this node in.
            bitmap.set(Extent::new(0, BLOCK));
        }
        let total = target.dirty(node);
        target.resync =
            Some(Resync { source, runs: Vec::new(), cursor: 0, finishing: false, started: self.now, total });
        if let Some(disk) = target.disk.as_mut() {
            disk.flags.consistent = false;
            disk.flags.fresh = false;
            disk.flags.in_use = true;
        }
        self.persist(volume, None);
        self.changed = true;
    }

    /// Gives a resync up: what was not fetched stays in the bitmap.
    pub(crate) fn stop_resync(&mut self, volume: usize) {
        let Some(resync) = self.volumes[volume].resync.take() else { return };
        for run in resync.runs {
            self.drop_job(run.job);
        }
        self.changed = true;
    }

    /// Asks for as much as the window allows.
    fn fetch(&mut self, volume: usize) {
        loop {
            let target = &self.volumes[volume];
            let Some(resync) = &target.resync else { return };
            if resync.runs.len() >= WINDOW || resync.finishing || self.tail_is_full(volume) {
                return;
            }
            let source = self.peers[resync.source].node;
            let Some((_, bitmap)) = target.bitmaps.iter().find(|(node, _)| *node == source) else { return };
            // Within one extent of the activity log: where a change holds it, the run has it too and cannot wait for it.
            let most = RUN_BLOCKS.min(self.config.al_extent_len / BLOCK).max(1);
            let found = bitmap.run(resync.cursor, most);
            let busy = |extent: Extent| resync.runs.iter().any(|run| run.extent.overlaps(extent));
            match found {
                Some(extent) if !busy(extent) => self.fetch_run(volume, extent),
                None if bitmap.dirty() == 0 && resync.runs.is_empty() => return self.finish_resync(volume),
                None if resync.runs.is_empty() => self.rewind(volume),
                // What became dirty again is looked at once its run is through.
                Some(_) | None => return,
            }
        }
    }

    fn rewind(&mut self, volume: usize) {
        if let Some(resync) = &mut self.volumes[volume].resync {
            resync.cursor = 0;
        }
    }

    fn fetch_run(&mut self, volume: usize, extent: Extent) {
        let held = !planted(Fault::SyncOverWrite);
        let range = held.then_some((extent, Access::Exclusive));
        let job = self.start_job(volume, range, Kind::SyncBlock { extent }, None);
        if let Some(resync) = &mut self.volumes[volume].resync {
            resync.cursor = extent.end().div_ceil(BLOCK);
            resync.runs.push(Run { job, extent, asked: false, again: false, seen: Sequence(0) });
        }
    }

    /// The range of a run is held: ask for it.
    pub(crate) fn sync_block_granted(&mut self, job: usize, volume: usize, extent: Extent) {
        let Some(resync) = &mut self.volumes[volume].resync else { return self.drop_job(job) };
        let Some(run) = resync.runs.iter_mut().find(|run| run.job == job) else { return self.drop_job(job) };
        run.asked = true;
        let source = resync.source;
        if let Some(pair) = self.peers[source].link.as_mut().and_then(|link| link.pairs.get_mut(volume)) {
            pair.asked += 1;
        }
        let after = self.received().unwrap_or_default();
        if planted(Fault::ClearWhenAsked) {
            self.equal_now(volume, source, extent, after);
        }
        let volume = self.number(volume);
        self.send(source, Packet::SyncRequest { volume, extent, after });
    }

    /// The source of a resync answered a run, in whatever way.
    fn answered(&mut self, peer: usize, volume: usize) {
        if let Some(pair) = self.peers[peer].link.as_mut().and_then(|link| link.pairs.get_mut(volume)) {
            pair.asked = pair.asked.saturating_sub(1);
            // Perhaps another resync waits for it.
            self.changed |= pair.asked == 0;
        }
    }

    /// How far the order of another Primary is here, where one is connected.
    fn received(&self) -> Option<Sequence> {
        let primary =
            self.peers.iter().find(|peer| peer.up().is_some_and(|state| state.role == Role::Primary));
        primary.and_then(|peer| peer.link.as_ref()).map(|link| link.received.max(link.everywhere))
    }

    /// A SyncTarget asks.
    pub(crate) fn sync_request(&mut self, peer: usize, volume: usize, extent: Extent, after: Sequence) {
        let target = &self.volumes[volume];
        if target.state != DiskState::UpToDate
            || !target.holds(extent)
            || extent.is_empty()
            || extent.len > RUN_MAX
        {
            let volume = self.number(volume);
            return self.send(peer, Packet::SyncFailed { volume, extent });
        }
        // Without a Primary nothing more comes: it stepped down with nothing under way, or it is lost, and the target
        // was told so before this answer.
        if self.received().is_some_and(|received| received < after) || !self.primary_counts_in(peer) {
            let most = WINDOW * self.volumes.len();
            let Some(link) = self.peers[peer].link.as_mut() else { return };
            if link.sync_waits.len() < most {
                return link.sync_waits.push((volume, extent, after));
            }
            let volume = self.number(volume);
            return self.send(peer, Packet::SyncFailed { volume, extent });
        }
        let most = WINDOW * self.volumes.len();
        let Some(link) = self.peers[peer].link.as_mut() else { return };
        // A run that became dirty again meanwhile is asked for once more, and not said to be done before.
        link.sync_sent.retain(|(of, sent)| *of != volume || !sent.overlaps(extent));
        link.sync_sent.push_back((volume, extent));
        while link.sync_sent.len() > most {
            link.sync_sent.pop_front();
        }
        let link = link.id;
        let request = Some(DiskRequest::Read { extent });
        self.start_job(
            volume,
            Some((extent, Access::Shared)),
            Kind::SyncRead { peer, link, extent },
            request,
        );
    }

    /// Whether the Primary, where there is one, sends its changes to the peer as well. One that it does not send them
    /// to must not catch up: it would miss them and not know.
    fn primary_counts_in(&self, peer: usize) -> bool {
        if planted(Fault::ServeUncounted) {
            return true;
        }
        let node = self.peers[peer].node;
        let primary =
            self.peers.iter().filter_map(|peer| peer.up()).find(|state| state.role == Role::Primary);
        primary.is_none_or(|state| state.connected.contains(node))
    }

    /// A change came: requests that waited for it can be answered.
    pub(crate) fn sync_requests_due(&mut self) {
        for peer in 0..self.peers.len() {
            let Some(link) = self.peers[peer].link.as_mut().filter(|link| !link.sync_waits.is_empty()) else {
                continue;
            };
            for (volume, extent, after) in std::mem::take(&mut link.sync_waits) {
                self.sync_request(peer, volume, extent, after);
            }
        }
    }

    /// The source has read what it was asked for.
    pub(crate) fn sync_read_ended(
        &mut self,
        at: usize,
        peer: usize,
        link: LinkId,
        extent: Extent,
        result: Result<DiskAnswer, DiskError>,
    ) {
        if self.peers[peer].link.as_ref().is_none_or(|current| current.id != link) {
            return;
        }
        let volume = self.number(at);
        let sequence = self.sequence;
        let packet = match result {
            Ok(DiskAnswer::Data(data)) if is_zero(&data) => Packet::SyncZeroes { volume, extent, sequence },
            Ok(DiskAnswer::Data(data)) => Packet::SyncData { volume, extent, data, sequence },
            _ => Packet::SyncFailed { volume, extent },
        };
        self.send(peer, packet);
    }

    /// Bytes from the source: written under the range that is held. `None` for zeros.
    pub(crate) fn sync_data(
        &mut self,
        peer: usize,
        volume: usize,
        extent: Extent,
        data: Option<Payload>,
        sequence: Sequence,
    ) -> Result<(), &'static str> {
        if data.as_ref().is_some_and(|data| data.len() as u64 != extent.len) {
            return Err("resync data of another length");
        }
        self.answered(peer, volume);
        let Some(resync) = self.volumes[volume].resync.as_mut().filter(|resync| resync.source == peer) else {
            return Ok(());
        };
        let Some(run) = resync.runs.iter_mut().find(|run| run.extent == extent && run.asked) else {
            return Ok(());
        };
        run.seen = sequence;
        let job = run.job;
        if !self.awaits_bytes(job) {
            return Err("resync data sent twice");
        }
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.received_bytes += extent.len;
        }
        let request = match data {
            Some(data) => DiskRequest::Write { extent, data, fua: false },
            None => DiskRequest::WriteZeroes { extent, unmap: true, fua: false },
        };
        self.submit_fetched(job, request);
        Ok(())
    }

    /// The source could not read: the run stays in the bitmap, and the resync is given up with this source.
    pub(crate) fn sync_failed(&mut self, peer: usize, volume: usize) {
        self.answered(peer, volume);
        if self.volumes[volume].resync.as_ref().is_some_and(|resync| resync.source == peer) {
            self.stop_resync(volume);
            self.part(peer, crate::Farewell::Retry, "it could not read for the resync");
        }
    }

    /// A run is on the disk: it is equal to the source's.
    pub(crate) fn sync_block_ended(
        &mut self,
        volume: usize,
        job: usize,
        extent: Extent,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            return self.detach(volume);
        }
        let Some(resync) = &mut self.volumes[volume].resync else {
            // It came too late to be told; the others' bitmaps still have it.
            return;
        };
        let Some(at) = resync.runs.iter().position(|run| run.job == job) else { return };
        let run = resync.runs.swap_remove(at);
        let source = resync.source;
        self.changed = true;
        if run.again {
            return self.rewind(volume);
        }
        self.equal_now(volume, source, extent, run.seen);
    }

    fn equal_now(&mut self, volume: usize, source: usize, extent: Extent, seen: Sequence) {
        let number = self.number(volume);
        let mut others = self.volumes[volume].config.disks.without(self.config.node);
        for peer in 0..self.peers.len() {
            let good = self.peers[peer].disk(volume) == DiskState::UpToDate;
            let node = self.peers[peer].node;
            if peer == source || good && self.are_in_step(source, peer, volume) {
                others = others.without(node);
                if let Some(bitmap) = self.volumes[volume].bitmap(node) {
                    bitmap.clear(extent);
                }
                self.send(peer, Packet::SyncDone { volume: number, extent });
            }
        }
        if planted(Fault::ForgetThird) {
            return self.remember_fetched(volume, seen, extent);
        }
        // Whoever else there is may differ from what came, and learns it: it may be about to copy from here.
        self.volumes[volume].mark(others, extent);
        for peer in 0..self.peers.len() {
            if others.contains(self.peers[peer].node) && self.peers[peer].receives(volume) {
                self.send_marks(peer, volume, extent);
            }
        }
        self.remember_fetched(volume, seen, extent);
    }

    /// What was fetched may hold changes that the Primary has not brought to everyone yet, whoever the source is: like
    /// changes that came from the Primary itself, they may be missing elsewhere.
    fn remember_fetched(&mut self, volume: usize, seen: Sequence, extent: Extent) {
        let primary =
            self.peers.iter().find(|peer| peer.up().is_some_and(|state| state.role == Role::Primary));
        let Some(primary) = primary else { return };
        let everywhere = primary.link.as_ref().is_some_and(|link| seen <= link.everywhere);
        let target = &mut self.volumes[volume];
        let third = target.config.disks.without(self.config.node).without(primary.node);
        if !everywhere && !third.is_empty() {
            target.tail.push_back((seen, extent));
        }
    }

    /// Whether no more can be fetched until the Primary says what is everywhere.
    fn tail_is_full(&self, volume: usize) -> bool {
        let full = self.volumes[volume].tail.len() >= TAIL_OF_RESYNC_MAX;
        full && self.primary().is_some()
    }

    /// Bytes of a resync with a peer that were asked for, and are not said to be on the SyncTarget's disk.
    pub(crate) fn sync_in_flight(&self, peer: usize, volume: usize) -> u64 {
        match self.replication_state(peer, volume) {
            ReplicationState::SyncTarget => {
                let runs = self.volumes[volume].resync.iter().flat_map(|resync| &resync.runs);
                runs.filter(|run| run.asked).map(|run| run.extent.len).sum()
            }
            ReplicationState::SyncSource => {
                let sent = self.peers[peer].link.iter().flat_map(|link| &link.sync_sent);
                sent.filter(|(of, _)| *of == volume).map(|(_, extent)| extent.len).sum()
            }
            _ => 0,
        }
    }

    /// Whether two peers that are both good have the same: those who lost each other may differ by what was under way.
    fn are_in_step(&self, one: usize, other: usize, volume: usize) -> bool {
        let [Some(here), Some(there)] = [one, other].map(|peer| self.peers[peer].up()) else { return false };
        let linked =
            here.connected.contains(self.peers[other].node) && there.connected.contains(self.peers[one].node);
        let current = |state: &NodeState| state.volumes.get(volume).map(|volume| volume.lineage.current);
        linked && current(here) == current(there)
    }

    /// The SyncTarget has a run on its disk.
    pub(crate) fn sync_done(&mut self, peer: usize, volume: usize, extent: Extent) {
        let node = self.peers[peer].node;
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.sync_sent.retain(|sent| *sent != (volume, extent));
        }
        if self.volumes[volume].holds(extent)
            && let Some(bitmap) = self.volumes[volume].bitmap(node)
        {
            bitmap.clear(extent);
        }
    }

    /// Pieces of a peer's bitmap about this node.
    pub(crate) fn bitmap_piece(&mut self, peer: usize, volume: usize, first: u64, words: &[u64], last: bool) {
        let node = self.peers[peer].node;
        if self.peers[peer].pair(volume).is_some_and(|pair| pair.equal) {
            // It was sent before both ends knew that nothing differs any more.
            return;
        }
        if let Some(bitmap) = self.volumes[volume].bitmap(node) {
            bitmap.merge(first, words);
        }
        if let Some(pair) = self.peers[peer].link.as_mut().and_then(|link| link.pairs.get_mut(volume)) {
            pair.bitmap_here |= last;
        }
        if let Some(resync) = self.volumes[volume].resync.as_mut().filter(|resync| resync.source == peer) {
            for run in &mut resync.runs {
                let blocks = run.extent.offset / BLOCK..run.extent.end().div_ceil(BLOCK);
                let touched = blocks.clone().any(|block| {
                    let word = (block / 64).checked_sub(first).and_then(|word| usize::try_from(word).ok());
                    word.and_then(|word| words.get(word)).is_some_and(|word| word & (1 << (block % 64)) != 0)
                });
                run.again |= touched;
            }
        }
        self.changed = true;
    }

    /// Sends this node's bitmap about a peer, or for a full resync only says that everything differs.
    pub(crate) fn send_bitmap(&mut self, peer: usize, volume: usize, scope: Scope) {
        let node = self.peers[peer].node;
        let number = self.number(volume);
        let Some(bitmap) = self.volumes[volume].bitmap(node) else { return };
        if scope == Scope::Full {
            bitmap.set_all();
            let target = self.peers[peer].pair(volume).map(|pair| pair.plan) == Some(Plan::SyncTarget(scope));
            // The target goes on by its bitmap should it crash meanwhile.
            self.volumes[volume].books.before_superblock |= target;
        } else {
            let pieces: Vec<_> = (0..)
                .zip(bitmap.words().chunks(Packet::BITMAP_WORDS_MAX))
                .filter(|(_, words)| words.iter().any(|&word| word != 0))
                .map(|(piece, words)| (piece * Packet::BITMAP_WORDS_MAX as u64, words.to_vec()))
                .collect();
            for (first, words) in pieces {
                self.send(peer, Packet::Bitmap { volume: number, first, words, last: false });
            }
        }
        self.send(peer, Packet::Bitmap { volume: number, first: 0, words: Vec::new(), last: true });
    }

    /// Everything was fetched: make it stable, then claim it.
    fn finish_resync(&mut self, volume: usize) {
        if let Some(resync) = &mut self.volumes[volume].resync {
            resync.finishing = true;
        }
        if planted(Fault::UnflushedResync) {
            return self.adopt(volume);
        }
        self.start_job(volume, None, Kind::SyncFlush, Some(DiskRequest::Flush));
    }

    pub(crate) fn sync_flushed(&mut self, volume: usize, result: Result<(), DiskError>) {
        if result.is_err() {
            return self.detach(volume);
        }
        self.adopt(volume);
    }

    /// After the loss of a Primary: the nodes that remain compare what only one of them may have received.
    pub(crate) fn compare_tails(&mut self, lost: usize) {
        for volume in 0..self.volumes.len() {
            let me = NodeSet::EMPTY.with(self.config.node).with(self.peers[lost].node);
            let others = NodeSet(self.volumes[volume].config.disks.0 & !me.0);
            if !self.mark_tail(volume, others) {
                continue;
            }
            self.volumes[volume].tail.clear();
            for peer in 0..self.peers.len() {
                if others.contains(self.peers[peer].node) && self.peers[peer].receives(volume) {
                    self.part(
                        peer,
                        crate::Farewell::Retry,
                        "the Primary is lost; what it sent has to be compared",
                    );
                }
            }
        }
    }
}

fn is_zero(data: &Payload) -> bool {
    data.parts().iter().all(|part| {
        let (words, rest) = part.as_chunks::<8>();
        words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
    })
}

/// How many runs are asked for at a time, and how long they are, in blocks and bytes.
const WINDOW: usize = 16;
const RUN_BLOCKS: u64 = 32;
const RUN_MAX: u64 = RUN_BLOCKS * BLOCK;
/// With so many changes and runs of which it is not known whether they are everywhere, a resync waits.
const TAIL_OF_RESYNC_MAX: usize = 16384;
