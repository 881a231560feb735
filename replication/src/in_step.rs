//! The end of a resync: the replica takes over the generation of its source, and both forget what differed.

use crate::{ConnectionState, DiskState, Effect, Plan, Resource, job::After, meta};

impl Resource {
    /// Takes over the source's generation.
    pub(crate) fn adopt(&mut self, volume: usize) {
        let target = &self.volumes[volume];
        let Some(resync) = &target.resync else { return };
        let source = resync.source;
        if target.dirty(self.peers[source].node) > 0 {
            // Something was missed meanwhile.
            if let Some(resync) = &mut self.volumes[volume].resync {
                resync.finishing = false;
                resync.cursor = 0;
            }
            self.changed = true;
            return;
        }
        let state = self.peers[source].up().and_then(|state| state.volumes.get(volume));
        let Some(theirs) = state.map(|state| state.lineage.clone()) else { return };
        let node = self.peers[source].node;
        let target = &mut self.volumes[volume];
        let current = target.newest(&theirs);
        let Some(disk) = target.disk.as_mut() else { return };
        let old = disk.current;
        disk.current = current;
        let before = std::mem::replace(&mut disk.history, theirs.history);
        if theirs.current != current {
            meta::remember(&mut disk.history, theirs.current);
        }
        if old != current {
            meta::remember_given_up(&mut disk.history, old);
        }
        // What was given up stays known: someone may still come with it.
        for generation in before.into_iter().rev() {
            if generation != current && !disk.history.contains(&generation) {
                meta::remember_given_up(&mut disk.history, generation);
            }
        }
        disk.bases[usize::from(node.0)] = crate::Generation(0);
        // Whoever was left behind in that very generation is in it like this replica now.
        for base in disk.bases.iter_mut().filter(|base| **base == current) {
            *base = crate::Generation(0);
        }
        self.persist(volume, Some(After::Synced));
    }

    /// The generation is on the disk: unless it moved on meanwhile, the replica is good.
    pub(crate) fn sync_persisted(&mut self, volume: usize) {
        let target = &mut self.volumes[volume];
        let Some(resync) = &target.resync else { return };
        let source = resync.source;
        let node = self.peers[source].node;
        let told = self.peers[source].up().and_then(|state| state.volumes.get(volume));
        let Some(current) = told.map(|told| target.newest(&told.lineage)) else { return };
        let Some(disk) = target.disk.as_mut() else { return };
        if disk.current != current
            || !disk.flags.consistent
                && target.bitmaps.iter().any(|(owner, bitmap)| *owner == node && bitmap.dirty() > 0)
        {
            return self.adopt(volume);
        }
        if !disk.flags.consistent {
            // In two steps: the generation first, then the claim to have it.
            disk.flags.consistent = true;
            disk.flags.outdated = false;
            disk.flags.lags = false;
            return self.persist(volume, Some(After::Synced));
        }
        target.known = current;
        target.crashed = false;
        target.resync = None;
        target.given_up = None;
        self.peers[source].discards = false;
        if let Some(link) = self.peers[source].link.as_mut() {
            link.pairs[volume].plan = Plan::InStep;
        }
        self.set_disk_state(volume, DiskState::UpToDate);
        self.forget_differences(volume);
        self.meet_again();
    }

    /// Whoever the data had diverged from: that data is replaced, so they are met again.
    fn meet_again(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.diverged && peer.link.is_none()) {
            peer.diverged = false;
            peer.wanted = true;
            peer.state = ConnectionState::Connecting;
            self.out.push(Effect::Want { peer: peer.node, wanted: true });
        }
    }

    /// Where both replicas are good and of one generation, nothing is left of what differed.
    pub(crate) fn forget_differences(&mut self, volume: usize) {
        let good = self.volumes[volume].state == DiskState::UpToDate;
        let current = self.volumes[volume].disk.as_ref().map(|disk| disk.current);
        let mut persists = false;
        for peer in 0..self.peers.len() {
            let told = self.peers[peer].up().and_then(|state| state.volumes.get(volume));
            let equal = good
                && told.is_some_and(|told| {
                    told.disk == DiskState::UpToDate && Some(told.lineage.current) == current
                });
            let history = told.filter(|_| equal).map(|told| told.lineage.history.clone());
            let node = self.peers[peer].node;
            let pair = self.peers[peer].link.as_mut().and_then(|link| link.pairs.get_mut(volume));
            let Some(pair) = pair else { continue };
            if !std::mem::replace(&mut pair.equal, equal) && equal {
                self.changed |= pair.plan != Plan::InStep;
                pair.plan = Plan::InStep;
                let target = &mut self.volumes[volume];
                if let Some(bitmap) = target.bitmap(node) {
                    bitmap.clear_all();
                    target.books.tidying = true;
                    self.books_due = true;
                }
                target.left = target.left.without(node);
                if let Some(disk) = target.disk.as_mut() {
                    let base = &mut disk.bases[usize::from(node.0)];
                    persists |= base.0 != 0;
                    *base = crate::Generation(0);
                    // What either of them gave up, both know.
                    for generation in history.into_iter().flatten().rev() {
                        if !disk.history.contains(&generation) && generation != disk.current {
                            meta::remember_given_up(&mut disk.history, generation);
                            persists = true;
                        }
                    }
                }
            }
        }
        if persists {
            self.persist(volume, None);
        }
    }
}
