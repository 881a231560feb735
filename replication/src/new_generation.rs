//! The beginning of a generation: when a Primary goes on without a replica that has the current one.

use crate::{
    AckMode, DiskState, Generation, NodeSet, Packet, Resource, Role,
    generation::DAY_ZERO,
    job::After,
    meta,
    sabotage::{Fault, planted},
    write::{Change, Leg, Local, Progress, What},
};

impl Resource {
    /// Whether a change may not be acknowledged before a new generation began: someone does not take part in it who
    /// still has the current one, or there is none yet.
    pub(crate) fn needs_generation(&self, volume: usize) -> bool {
        if planted(Fault::NoNewGeneration) {
            return false;
        }
        let target = &self.volumes[volume];
        let leaving = self.absent(volume).0 & !target.left.0;
        target.known.0 <= DAY_ZERO.0 || leaving != 0
    }

    /// Begins a generation without those who are absent.
    pub(crate) fn start_generation(&mut self, volume: usize) {
        let missing = self.absent(volume);
        let current =
            if self.needs_generation(volume) { self.new_generation() } else { self.volumes[volume].known };
        self.tell_generation(volume, current, missing);
    }

    /// Tells everyone the generation and who does not take part in it. The peers take it over first, this node's disk
    /// last: a Primary that is cut off before anyone knew never began it.
    pub(crate) fn tell_generation(&mut self, volume: usize, current: Generation, missing: NodeSet) {
        let sequence = self.next_sequence();
        let target = &mut self.volumes[volume];
        let previous = std::mem::replace(&mut target.known, current);
        if previous != current {
            meta::remember(&mut target.known_history, previous);
        }
        target.uneven = NodeSet(target.uneven.0 & !missing.0);
        let newly = NodeSet(missing.0 & !target.left.0);
        target.left = NodeSet(target.left.0 | missing.0);
        let number = target.config.number;
        let key = self.log_change(volume, sequence, What::Generation { previous, missing: newly }, None);
        self.volumes[volume].generation = Some(key);
        for peer in 0..self.peers.len() {
            let told = self.changes[key].legs.is_empty() || !planted(Fault::UntoldGeneration);
            if self.peers[peer].up().is_some() && told {
                let leg = Leg { peer, mode: AckMode::C, progress: Progress::Queued, lost: false };
                self.changes[key].legs.push(leg);
                self.send(peer, Packet::NewGeneration { volume: number, sequence, current, missing });
            }
        }
        self.advance(key);
        self.changed = true;
    }

    /// Every peer that is still there knows the generation: now this node's disk takes it over. Whether that is under
    /// way.
    pub(crate) fn enter_generation(&mut self, key: usize) -> bool {
        let change = &self.changes[key];
        let What::Generation { previous, missing } = change.what else { return false };
        let volume = change.volume;
        let current = self.volumes[volume].known;
        if previous == current || change.local != Local::Absent {
            return false;
        }
        let taken = change.legs.iter().any(|leg| {
            leg.progress == Progress::Stable && self.peers[leg.peer].disk(volume) == DiskState::UpToDate
        });
        let target = &mut self.volumes[volume];
        let good = target.state == DiskState::UpToDate && target.quorum;
        if let Some(disk) = target.disk.as_mut().filter(|_| good) {
            let old = disk.current;
            disk.enter(current);
            for node in missing.iter() {
                let base = &mut disk.bases[usize::from(node.0)];
                *base = if base.0 == 0 { old } else { *base };
            }
            disk.flags.in_use = true;
            self.changes[key].local = Local::Pending;
            self.persist(volume, Some(After::Generation(key)));
            return true;
        }
        if !taken {
            // Nobody is known to have taken it over, nothing was acknowledged in it: it is given up. Whoever took it
            // over all the same has nothing that the history does not have.
            target.known = previous;
            target.left = NodeSet(target.left.0 & !missing.0);
            meta::remember_given_up(&mut target.known_history, current);
            if let Some(disk) = target.disk.as_mut() {
                meta::remember_given_up(&mut disk.history, current);
                self.persist(volume, None);
            }
        }
        false
    }

    pub(crate) fn generation_persisted(&mut self, change: usize, kept: bool) {
        let Some(target) = self.changes.get_mut(change) else { return };
        target.local = if kept { Local::Done } else { Local::Failed(crate::job::DETACHED) };
        self.advance(change);
    }

    /// Begins the generations that changes in flight wait for, or that tell who lacks some of them.
    pub(crate) fn update_generations(&mut self) {
        if self.role != Role::Primary {
            return;
        }
        for volume in 0..self.volumes.len() {
            let target = &self.volumes[volume];
            if !target.quorum || target.generation.is_some() || !self.has_data(volume) {
                continue;
            }
            // A flush as well: what it makes stable here, the absent ones may lose with their power.
            let waits = |change: &Change| {
                change.volume == volume
                    && (matches!(change.what, What::Data(_))
                        || change.what == What::Flush && target.was_written())
            };
            let back = NodeSet(target.uneven.0 & !self.absent(volume).0);
            if !back.is_empty() {
                // It is met again before the others know what it lacks.
                self.tell_generation(volume, target.known, back);
            } else if self.needs_generation(volume)
                && (!target.uneven.is_empty() || self.changes.iter().any(|(_, change)| waits(change)))
            {
                self.start_generation(volume);
            }
        }
    }
}
