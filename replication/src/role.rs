//! Becoming Primary and Secondary, quorum, and the state of the local disks as far as others decide it.

use block::Failure;

use crate::{
    DiskState, Effect, Event, Generation, Instant, Plan, Quorum, Resource, Role,
    generation::DAY_ZERO,
    job::After,
    quorum::{Electorate, arbiter, tiebreakers},
    resource::Demotion,
    sabotage::{Fault, planted},
};

impl Resource {
    /// The Primary that this node knows of.
    pub(crate) fn primary(&self) -> Option<crate::NodeId> {
        if self.role == Role::Primary {
            return Some(self.config.node);
        }
        let is_primary =
            |peer: &&crate::resource::Peer| peer.up().is_some_and(|state| state.role == Role::Primary);
        self.peers.iter().find(is_primary).map(|peer| peer.node)
    }

    fn electorate(&self, volume: usize) -> Electorate {
        let diskful = self.volumes[volume].config.disks;
        let nodes = self.peers.iter().map(|peer| peer.node).chain([self.config.node]);
        Electorate {
            diskful,
            tiebreakers: tiebreakers(nodes, diskful),
            present: self.present(),
            replicas: self.replicas(volume),
            had_quorum: self.volumes[volume].quorum,
        }
    }

    /// Counts who is there.
    pub(crate) fn update_quorum(&mut self) {
        let rule = arbiter(self.config.quorum);
        for volume in 0..self.volumes.len() {
            let quorum = rule.allows(&self.electorate(volume)) || planted(Fault::IgnoreQuorum);
            let had = std::mem::replace(&mut self.volumes[volume].quorum, quorum);
            if had && !quorum && rule.doubts() && self.volumes[volume].state == DiskState::UpToDate {
                self.set_disk_state(volume, DiskState::Consistent);
            }
        }
    }

    /// Finds out how good the local disks are.
    pub(crate) fn update_disks(&mut self) {
        for volume in 0..self.volumes.len() {
            self.leave_fresh(volume);
            self.not_outdated(volume);
            let Some(disk) = &self.volumes[volume].disk else {
                self.set_disk_state(volume, DiskState::Diskless);
                self.forget_generation(volume);
                continue;
            };
            let flags = disk.flags;
            let trusted = flags.outdated && planted(Fault::TrustOutdated);
            let state = if flags.fresh || !flags.consistent {
                DiskState::Inconsistent
            } else if flags.outdated && !trusted {
                DiskState::Outdated
            } else if self.volumes[volume].state == DiskState::UpToDate || self.is_newest(volume) || trusted {
                DiskState::UpToDate
            } else {
                DiskState::Consistent
            };
            self.set_disk_state(volume, state);
            self.forget_differences(volume);
            self.decide_anew(volume);
        }
    }

    /// A replica that was outdated is in step again with a good one, or nobody has anything newer.
    fn not_outdated(&mut self, volume: usize) {
        let everyone = self.all_disks_present(volume);
        if self.volumes[volume].disk.as_ref().is_some_and(|disk| disk.flags.outdated && disk.flags.consistent)
            && (everyone || self.is_in_step(volume))
            && !self.is_behind(volume)
            && !self.is_overtaken(volume)
            && let Some(disk) = self.volumes[volume].disk.as_mut()
        {
            disk.flags.outdated = false;
            self.persist(volume, None);
        }
    }

    /// Whether a replica that was to copy from here became good by another one: an outdated replica serves nobody.
    fn is_overtaken(&self, volume: usize) -> bool {
        self.peers.iter().any(|peer| {
            let plan = peer.pair(volume).map(|pair| pair.plan);
            peer.disk(volume) == DiskState::UpToDate && matches!(plan, Some(Plan::SyncSource(_)))
        })
    }

    fn all_disks_present(&self, volume: usize) -> bool {
        let disks = self.volumes[volume].config.disks;
        disks.intersection(self.replicas(volume)) == disks
    }

    /// The nodes here whose replica can be asked what it has. Nobody knows what was on a disk that was lost, unless its
    /// node knew until then, and tells, that it was nothing else than what is here.
    fn replicas(&self, volume: usize) -> crate::NodeSet {
        let target = &self.volumes[volume];
        let current = target.disk.as_ref().map(|disk| disk.current).filter(|current| current.0 != 0);
        let can_tell = |peer: &&crate::resource::Peer| {
            peer.receives(volume)
                || peer.up().is_some_and(|state| Some(state.volumes[volume].lineage.current) == current)
        };
        let own = target.disk.as_ref().map(|_| self.config.node);
        self.peers.iter().filter(can_tell).map(|peer| peer.node).chain(own).collect()
    }

    /// A diskless node forgets a generation that no disk has, once it sees them all.
    fn forget_generation(&mut self, volume: usize) {
        let known = self.volumes[volume].known;
        let has = |peer: &crate::resource::Peer| {
            peer.up().is_some_and(|state| {
                let lineage = &state.volumes[volume].lineage;
                lineage.current == known || lineage.history.contains(&known)
            })
        };
        if self.volumes[volume].generation.is_none()
            && self.all_disks_present(volume)
            && !self.peers.iter().any(has)
        {
            self.volumes[volume].known = Generation(0);
            self.volumes[volume].known_history.clear();
        }
    }

    /// A replica that has nothing of use is connected to a good one, and they did not decide that when they met: one of
    /// them changed since. They start over.
    fn decide_anew(&mut self, volume: usize) {
        let target = &self.volumes[volume];
        let behind = target.disk.as_ref().is_some_and(|disk| disk.flags.fresh || !disk.flags.consistent);
        // A source that crashed, whose target became good by another one.
        let crashed = target.crashed && target.state != DiskState::UpToDate && self.role != Role::Primary;
        let overtaken = crashed || target.state == DiskState::Outdated;
        if target.is_to_meet() || !(behind || overtaken) || target.resync.is_some() || self.is_behind(volume)
        {
            return;
        }
        let undecided = |plan| match plan {
            Plan::InStep | Plan::Wait => behind,
            Plan::SyncSource(_) => overtaken,
            _ => false,
        };
        let source = self.peers.iter().position(|peer| {
            let good = peer.up().is_some_and(|state| {
                let theirs = &state.volumes[volume];
                let written = theirs.lineage.current.0 > DAY_ZERO.0 || theirs.dirty_blocks > 0;
                theirs.disk == DiskState::UpToDate && written
            });
            good && peer.pair(volume).is_some_and(|pair| undecided(pair.plan))
        });
        if let Some(peer) = source {
            self.part(peer, crate::Farewell::Retry, "the replica here is not in step any more");
        }
    }

    /// Fresh replicas become good together, once all of them have met.
    fn leave_fresh(&mut self, volume: usize) {
        let target = &self.volumes[volume];
        if target.disk.as_ref().is_none_or(|disk| !disk.flags.fresh) {
            return;
        }
        let others = target.config.disks.without(self.config.node);
        let blank = others.iter().all(|node| {
            let peer = self.peer_at(node).and_then(|peer| self.peers[peer].up());
            peer.and_then(|state| state.volumes.get(volume)).is_some_and(|theirs| {
                let blank = theirs.fresh || theirs.lineage.current == DAY_ZERO;
                theirs.disk != DiskState::Diskless && blank && !theirs.crashed && theirs.dirty_blocks == 0
            })
        });
        let peers_know = self.peers.iter().any(|peer| {
            let theirs = peer.up().and_then(|state| state.volumes.get(volume));
            theirs.is_some_and(|theirs| theirs.lineage.current.0 > DAY_ZERO.0)
        });
        let target = &mut self.volumes[volume];
        if let Some(disk) = target.disk.as_mut().filter(|_| blank && !peers_know) {
            disk.flags.fresh = false;
            disk.flags.consistent = true;
            disk.current = DAY_ZERO;
            target.known = DAY_ZERO;
            self.persist(volume, None);
        }
    }

    /// Whether the local replica has everything that was ever acknowledged.
    fn is_newest(&self, volume: usize) -> bool {
        let target = &self.volumes[volume];
        let Some(disk) = &target.disk else { return false };
        if self.waits_for_declarer(volume) {
            return false;
        }
        if self.is_in_step(volume) {
            return true;
        }
        if self.is_behind(volume) {
            return false;
        }
        let others = target.config.disks.without(self.config.node);
        // A Primary that went on alone knows that the others did not: unless they could have without it.
        let others_left = others.iter().all(|node| disk.bases[usize::from(node.0 & 31)].0 != 0);
        let alone = disk.flags.was_primary && others_left && !arbiter(self.config.quorum).doubts();
        alone || arbiter(self.config.quorum).hold_newest(&self.electorate(volume), self.witnesses(volume))
    }

    /// The nodes whose replicas vouch that nothing newer was acknowledged: whole, not crashed, and not known to be
    /// behind another generation.
    fn witnesses(&self, volume: usize) -> crate::NodeSet {
        let target = &self.volumes[volume];
        let current = target.disk.as_ref().map(|disk| disk.current);
        let vouches = |peer: &&crate::resource::Peer| {
            peer.up().is_some_and(|state| {
                let theirs = &state.volumes[volume];
                let in_generation =
                    theirs.disk > DiskState::Outdated || Some(theirs.lineage.current) == current;
                theirs.consistent && !theirs.crashed && !theirs.fresh && in_generation
            }) && !self.is_overtaken_by(peer, volume)
        };
        let mine = (!target.crashed).then_some(self.config.node);
        self.peers.iter().filter(vouches).map(|peer| peer.node).chain(mine).collect()
    }

    /// Whether a peer that was to copy from here became whole by someone else, who may have more than is here.
    fn is_overtaken_by(&self, peer: &crate::resource::Peer, volume: usize) -> bool {
        let target = &self.volumes[volume];
        let to_copy = peer.pair(volume).is_some_and(|pair| matches!(pair.plan, Plan::SyncSource(_)));
        let whole = peer.up().is_some_and(|state| state.volumes[volume].disk > DiskState::Outdated);
        target.state != DiskState::UpToDate && to_copy && whole && target.dirty(peer.node) > 0
    }

    /// Whether a good replica, or a diskless Primary, is of the same generation and nothing else differs.
    fn is_in_step(&self, volume: usize) -> bool {
        let Some(current) = self.volumes[volume].disk.as_ref().map(|disk| disk.current) else { return false };
        self.peers.iter().any(|peer| {
            let Some(state) = peer.up() else { return false };
            let theirs = &state.volumes[volume];
            let good = match theirs.disk {
                DiskState::UpToDate => true,
                // It knows the generation, but not what a crash may have cost.
                DiskState::Diskless => state.role == Role::Primary && !self.volumes[volume].crashed,
                _ => false,
            };
            let in_step = peer.pair(volume).is_some_and(|pair| pair.plan == Plan::InStep);
            good && in_step && theirs.lineage.current == current
        })
    }

    /// Whether a connected node has, or knows of, newer data.
    fn is_behind(&self, volume: usize) -> bool {
        let current = self.volumes[volume].disk.as_ref().map(|disk| disk.current);
        let everyone = self.all_disks_present(volume);
        self.peers.iter().any(|peer| {
            let plan = peer.pair(volume).map(|pair| pair.plan);
            let diskless = peer.up().is_some_and(|state| {
                let theirs = &state.volumes[volume];
                let known = theirs.lineage.current;
                // What no disk has, nobody was ever told to have.
                !everyone
                    && theirs.disk == DiskState::Diskless
                    && known.0 > DAY_ZERO.0
                    && Some(known) != current
            });
            matches!(plan, Some(Plan::SyncTarget(_))) || diskless
        })
    }

    pub(crate) fn set_disk_state(&mut self, volume: usize, state: DiskState) {
        let target = &mut self.volumes[volume];
        if target.state == state {
            return;
        }
        target.state = state;
        if state == DiskState::UpToDate {
            target.crashed = false;
            target.known = target.disk.as_ref().map_or(target.known, |disk| disk.current);
        }
        let volume = target.config.number;
        self.event(Event::Disk { volume, state });
        self.changed = true;
    }

    /// The Primary is gone without a word.
    pub(crate) fn primary_lost(&mut self, peer: usize) {
        self.wait_for_lost();
        for volume in 0..self.volumes.len() {
            for other in 0..self.peers.len() {
                self.left_behind_by_diskless(volume, other);
            }
        }
        self.compare_tails(peer);
    }

    /// With quorum, nobody follows a lost node before that one must know that it is alone.
    pub(crate) fn wait_for_lost(&mut self) {
        if self.config.quorum == Quorum::Majority {
            self.grace_until = Some(Instant(self.now.0 + self.config.peer_timeout));
        }
    }

    /// Goes on with promotions and demotions.
    pub(crate) fn update_roles(&mut self) {
        if self.grace_until.is_some_and(|until| until <= self.now) {
            self.grace_until = None;
            for (peer, link, request, force) in std::mem::take(&mut self.deferred) {
                if self.peers[peer]
                    .link
                    .as_ref()
                    .is_some_and(|current| current.id == link && !current.parting)
                {
                    self.asked_to_consent(peer, link, request, force);
                }
            }
        }
        self.update_promotion();
        let unused = self.auto_promoted && self.sessions == 0 && self.tasks.is_empty();
        if self.role == Role::Primary && unused && self.demotion.is_none() && self.config.auto_promote {
            self.demotion = Some(Demotion { requests: Vec::new(), force: false });
        }
        self.update_demotion();
    }

    fn update_demotion(&mut self) {
        let Some(demotion) = &self.demotion else { return };
        if demotion.force {
            self.fail_tasks(Failure::Standby);
        }
        if self.tasks.is_empty() && self.log.is_empty() {
            self.become_secondary();
        }
    }

    /// Another node went on: what is not acknowledged here never will be.
    pub(crate) fn step_down(&mut self) {
        self.fail_tasks(Failure::Standby);
        self.become_secondary();
    }

    pub(crate) fn become_secondary(&mut self) {
        self.role = Role::Secondary;
        self.auto_promoted = false;
        for volume in 0..self.volumes.len() {
            self.volumes[volume].generation = None;
            if let Some(disk) = self.volumes[volume].disk.as_mut() {
                disk.flags.was_primary = false;
                self.persist(volume, Some(After::Demotion));
            }
        }
        self.event(Event::Role(Role::Secondary));
        if let Some(demotion) = self.demotion.take() {
            for request in demotion.requests {
                self.out.push(Effect::Reply { request, result: Ok(()) });
            }
        }
        self.changed = true;
    }

    pub(crate) fn set_sessions(&mut self, count: u32) {
        // A new one is somebody's wish to use the node, the operator's too.
        self.barred &= count <= self.sessions;
        self.sessions = count;
        self.changed = true;
    }

    /// Tells the front ends whether this node serves, or could.
    pub(crate) fn update_serves(&mut self) {
        let able = self.stopping.is_none()
            && match self.role {
                // Without quorum or data, commands wait here: initiators that were told so would fail them.
                Role::Primary => true,
                _ => self.config.auto_promote && !self.barred && self.refusal(false).is_none(),
            };
        if self.serves != Some(able) {
            self.serves = Some(able);
            self.event(Event::Serves { able });
        }
    }
}
