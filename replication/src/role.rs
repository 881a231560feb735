//! Becoming Primary and Secondary, quorum, and the state of the local disks as far as others decide it.

use block::{Command, CommandId, Failure, Status, VolumeNumber};

use crate::{
    DiskState, Effect, Event, Generation, Instant, LinkId, OperatorRequest, Packet, Plan, Quorum, Refusal,
    Resource, Role, Sequence,
    generation::{DAY_ZERO, REIGN_SHIFT},
    job::After,
    quorum::{Electorate, arbiter, tiebreakers},
    resource::{Demotion, Stopping},
    sabotage::{Fault, planted},
};

/// A promotion under way.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) requests: Vec<OperatorRequest>,
    pub(crate) force: bool,
    pub(crate) deadline: Instant,
    request: u64,
    asked: Vec<usize>,
    waiting: Vec<usize>,
    denied: Option<usize>,
    /// Superblocks that are being written.
    persisting: usize,
    committed: bool,
}

/// A promise to know of no other Primary until a candidate says how it ended.
#[derive(Debug)]
pub(crate) struct Consent {
    pub(crate) peer: usize,
}

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
            had_quorum: self.volumes[volume].quorum,
        }
    }

    /// Counts who is there.
    pub(crate) fn update_quorum(&mut self) {
        let rule = arbiter(self.config.quorum);
        for volume in 0..self.volumes.len() {
            let quorum = rule.allows(&self.electorate(volume));
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
            let state = if flags.fresh || !flags.consistent {
                DiskState::Inconsistent
            } else if flags.outdated {
                DiskState::Outdated
            } else if self.volumes[volume].state == DiskState::UpToDate || self.is_newest(volume) {
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
            && let Some(disk) = self.volumes[volume].disk.as_mut()
        {
            disk.flags.outdated = false;
            self.persist(volume, None);
        }
    }

    fn all_disks_present(&self, volume: usize) -> bool {
        let disks = self.volumes[volume].config.disks;
        disks.intersection(self.present()) == disks
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

    /// A replica fell behind while it was connected to one that it was in step with: they start over.
    fn decide_anew(&mut self, volume: usize) {
        let target = &self.volumes[volume];
        let behind = target.disk.as_ref().is_some_and(|disk| !disk.flags.fresh && !disk.flags.consistent);
        if !behind || target.resync.is_some() || self.is_behind(volume) {
            return;
        }
        let source = self.peers.iter().position(|peer| {
            peer.disk(volume) == DiskState::UpToDate
                && peer.pair(volume).is_some_and(|pair| pair.plan == Plan::InStep)
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
                theirs.disk != DiskState::Diskless && (theirs.fresh || theirs.lineage.current == DAY_ZERO)
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
            })
        };
        let mine = (!target.crashed).then_some(self.config.node);
        self.peers.iter().filter(vouches).map(|peer| peer.node).chain(mine).collect()
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

    /// A command before the node is Primary: it may promote it.
    pub(crate) fn early_command(&mut self, volume: VolumeNumber, id: CommandId, command: Command) {
        let may_promote = self.config.auto_promote && self.demotion.is_none();
        if self.promotion.is_none() && (!may_promote || self.refusal(false).is_some()) {
            return self.complete(id, Status::Failed(Failure::Standby));
        }
        self.early.push((volume, id, command));
        if self.promotion.is_none() {
            self.auto_promoted = true;
            self.start_promotion(None, false);
        }
    }

    /// What stands against a promotion now.
    pub(crate) fn refusal(&self, force: bool) -> Option<Refusal> {
        let refuse = |what: String, remedy: &str| Some(Refusal { what, remedy: remedy.to_owned() });
        let resource = &self.config.name;
        if let Some(node) = self.primary().filter(|node| *node != self.config.node) {
            let name =
                self.peer_at(node).map_or_else(|| node.0.to_string(), |peer| self.peers[peer].name.clone());
            return refuse(
                format!("node {name} is Primary of {resource}"),
                "make it Secondary there first: evenkeel secondary",
            );
        }
        if self.stopping.is_some() {
            return refuse("the node is stopping".to_owned(), "start it again");
        }
        for volume in 0..self.volumes.len() {
            let target = &self.volumes[volume];
            let number = target.config.number;
            if !target.quorum {
                return refuse(
                    format!("this node has no quorum for volume {number} of {resource}"),
                    "connect more of its nodes",
                );
            }
            if !self.has_data(volume) && (!force || target.disk.is_none()) {
                return refuse(
                    format!(
                        "volume {number} of {resource} is {} here and no UpToDate peer is connected",
                        target.state
                    ),
                    "connect a node with newer data, or give up what it has: evenkeel primary --force",
                );
            }
        }
        None
    }

    pub(crate) fn start_promotion(&mut self, request: Option<OperatorRequest>, force: bool) {
        if let Some(promotion) = &mut self.promotion {
            promotion.requests.extend(request);
            return;
        }
        self.reads += 1;
        self.promotion = Some(Promotion {
            requests: request.into_iter().collect(),
            force,
            deadline: Instant(self.now.0 + self.config.promotion_timeout),
            request: self.reads,
            asked: Vec::new(),
            waiting: Vec::new(),
            denied: None,
            persisting: 0,
            committed: false,
        });
        self.changed = true;
    }

    /// Goes on with a promotion: waits for those who are being met, asks those who are there, begins.
    fn update_promotion(&mut self) {
        let Some(promotion) = &self.promotion else { return };
        if promotion.committed {
            return;
        }
        let late = promotion.deadline <= self.now;
        let (force, denied) = (promotion.force, promotion.denied);
        if let Some(peer) = denied {
            let what = format!("node {} does not consent", self.peers[peer].name);
            return self
                .end_promotion(Some(&Refusal { what, remedy: "see its status, and try again".to_owned() }));
        }
        if let Some(refusal) = self.refusal(force) {
            return self.end_promotion(Some(&refusal));
        }
        if self.grace_until.is_some_and(|until| until > self.now) && !late {
            return;
        }
        let meeting = self
            .peers
            .iter()
            .any(|peer| peer.link.as_ref().is_some_and(|link| link.theirs.is_none() && !link.parting));
        if meeting && !late {
            return;
        }
        self.ask_everyone();
        let Some(promotion) = &self.promotion else { return };
        if !promotion.waiting.is_empty() {
            if late {
                let what = "a node did not answer in time".to_owned();
                self.end_promotion(Some(&Refusal {
                    what,
                    remedy: "see its status, and try again".to_owned(),
                }));
            }
            return;
        }
        self.commit_promotion(force);
    }

    fn ask_everyone(&mut self) {
        for peer in 0..self.peers.len() {
            let Some(promotion) = &mut self.promotion else { return };
            if self.peers[peer].up().is_none() || promotion.asked.contains(&peer) {
                continue;
            }
            promotion.asked.push(peer);
            promotion.waiting.push(peer);
            let (request, force) = (promotion.request, promotion.force);
            self.send(peer, Packet::Promote { request, force });
        }
    }

    pub(crate) fn consent_answered(&mut self, peer: usize, request: u64, granted: bool, sequence: Sequence) {
        self.see(sequence);
        let Some(promotion) = self.promotion.as_mut().filter(|promotion| promotion.request == request) else {
            return;
        };
        promotion.waiting.retain(|waiting| *waiting != peer);
        if !granted {
            promotion.denied = Some(peer);
        }
        self.changed = true;
    }

    pub(crate) fn candidate_lost_peer(&mut self, peer: usize) {
        if let Some(promotion) = &mut self.promotion {
            promotion.waiting.retain(|waiting| *waiting != peer);
            promotion.asked.retain(|asked| *asked != peer);
        }
    }

    /// Everyone consents: it is written down, then told.
    fn commit_promotion(&mut self, force: bool) {
        let mut persisting = 0;
        for volume in 0..self.volumes.len() {
            if force && !self.has_data(volume) {
                self.force_data(volume);
            }
            if let Some(disk) = self.volumes[volume].disk.as_mut() {
                disk.flags.was_primary = true;
                disk.flags.in_use = true;
                persisting += 1;
            }
        }
        if let Some(promotion) = &mut self.promotion {
            promotion.committed = true;
            promotion.persisting = persisting.max(1);
        }
        if persisting == 0 {
            return self.promotion_persisted();
        }
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].disk.is_some() {
                self.persist(volume, Some(After::Promotion));
            }
        }
    }

    /// The operator takes what is here for good, whatever it is.
    fn force_data(&mut self, volume: usize) {
        self.stop_resync(volume);
        let generation = self.new_generation();
        let target = &mut self.volumes[volume];
        let Some(disk) = target.disk.as_mut() else { return };
        let old = disk.current;
        disk.enter(generation);
        disk.flags.fresh = false;
        disk.flags.consistent = true;
        disk.flags.outdated = false;
        let others = target.config.disks.without(disk.node);
        for node in others.iter() {
            let base = &mut disk.bases[usize::from(node.0)];
            *base = if base.0 == 0 { old } else { *base };
        }
        target.left = others;
        for (_, bitmap) in &mut target.bitmaps {
            bitmap.set_all();
        }
        target.known = generation;
        target.known_history.clone_from(&disk.history);
        self.set_disk_state(volume, DiskState::UpToDate);
    }

    pub(crate) fn promotion_persisted(&mut self) {
        let Some(promotion) = self.promotion.as_mut().filter(|promotion| promotion.committed) else { return };
        promotion.persisting -= 1;
        if promotion.persisting > 0 {
            return;
        }
        if let Some(refusal) = self.refusal(false) {
            return self.end_promotion(Some(&refusal));
        }
        self.role = Role::Primary;
        // Above everything that anyone saw: the order of the new Primary.
        self.sequence = self.next_reign();
        self.everywhere_told = self.sequence;
        for volume in &mut self.volumes {
            volume.tail.clear();
            if volume.disk.is_none() || volume.state != DiskState::UpToDate {
                volume.left = crate::NodeSet::EMPTY;
            }
        }
        self.event(Event::Role(Role::Primary));
        self.end_promotion(None);
    }

    fn next_reign(&self) -> Sequence {
        Sequence((self.sequence.0 >> REIGN_SHIFT).saturating_add(1) << REIGN_SHIFT)
    }

    fn end_promotion(&mut self, refusal: Option<&Refusal>) {
        let Some(promotion) = self.promotion.take() else { return };
        for request in promotion.requests {
            let result = refusal.cloned().map_or(Ok(()), Err);
            self.out.push(Effect::Reply { request, result });
        }
        if refusal.is_some() {
            self.auto_promoted = false;
            // Whoever consented is free again.
            for peer in promotion.asked {
                let state = self.state_for(peer);
                self.send(peer, Packet::State(Box::new(state)));
            }
        }
        self.announce();
        for (volume, id, command) in std::mem::take(&mut self.early) {
            if refusal.is_some() {
                self.complete(id, Status::Failed(Failure::Standby));
            } else {
                self.admit(volume, id, command);
            }
        }
        self.changed = true;
    }

    /// A peer wants to become Primary.
    pub(crate) fn asked_to_consent(&mut self, peer: usize, link: LinkId, request: u64, force: bool) {
        if self.grace_until.is_some_and(|until| until > self.now) {
            return self.deferred.push((peer, link, request, force));
        }
        let node = self.peers[peer].node;
        let candidate = self.promotion.as_ref().is_some_and(|own| own.committed || self.config.node < node);
        let taken = self.consent.as_ref().is_some_and(|consent| consent.peer != peer);
        let other = self.primary().is_some_and(|primary| primary != node);
        let granted = !other && !candidate && !taken && (force || !self.knows_newer(peer))
            || planted(Fault::SecondPrimary);
        if granted {
            self.consent = Some(Consent { peer });
            // Whoever this node consents to next comes after it, even if nobody heard of this one.
            self.sequence = self.next_reign();
            if let Some(own) = self.promotion.as_mut().filter(|own| !own.committed) {
                own.denied = Some(peer);
            }
        }
        let sequence = self.sequence;
        self.send(peer, Packet::PromoteAnswer { request, granted, sequence });
    }

    /// Whether this node, diskless, knows that a candidate's replica is not in the newest generation.
    fn knows_newer(&self, candidate: usize) -> bool {
        (0..self.volumes.len()).any(|volume| {
            let target = &self.volumes[volume];
            let good = |state: DiskState| state == DiskState::UpToDate;
            let in_generation = |current: Generation| current == target.known;
            let current = |peer: &crate::resource::Peer| {
                peer.up().and_then(|state| state.volumes.get(volume)).map(|theirs| theirs.lineage.current)
            };
            let source = self
                .peers
                .iter()
                .any(|peer| good(peer.disk(volume)) && current(peer).is_some_and(in_generation));
            let candidate = &self.peers[candidate];
            target.disk.is_none()
                && target.known.0 > DAY_ZERO.0
                && candidate.receives(volume)
                && !current(candidate).is_some_and(in_generation)
                && !source
        })
    }

    /// The Primary is gone without a word.
    pub(crate) fn primary_lost(&mut self, peer: usize) {
        if self.config.quorum == Quorum::Majority {
            self.grace_until = Some(Instant(self.now.0 + self.config.peer_timeout));
        }
        self.compare_tails(peer);
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
        self.sessions = count;
        self.changed = true;
    }

    /// The node stops.
    pub(crate) fn stop(&mut self) {
        if self.stopping.is_none() {
            self.stopping = Some(Stopping::Draining);
            self.changed = true;
        }
    }

    /// Goes on with a stop.
    pub(crate) fn update_stop(&mut self) {
        let Some(stopping) = self.stopping else { return };
        let held = self.tasks.iter().all(|(_, task)| task.state == crate::task::State::Held);
        match stopping {
            Stopping::Draining => {
                let cut_off =
                    (0..self.volumes.len()).any(|at| !self.volumes[at].quorum || !self.has_data(at));
                if held || cut_off {
                    self.fail_tasks(Failure::Stopping);
                }
                if self.tasks.is_empty() && self.log.is_empty() && self.promotion.is_none() {
                    self.leave();
                }
            }
            Stopping::Saving if self.disks_idle() => {
                self.stopping = Some(Stopping::Stopped);
                self.out.push(Effect::Stopped);
            }
            Stopping::Saving | Stopping::Stopped => {}
        }
    }

    /// Takes leave of every peer and writes down what is known.
    fn leave(&mut self) {
        if self.role == Role::Primary {
            self.become_secondary();
            self.announce();
        }
        for peer in 0..self.peers.len() {
            self.part(peer, crate::Farewell::Leaving, "the node is stopping");
        }
        self.stopping = Some(Stopping::Saving);
        self.save();
        for volume in 0..self.volumes.len() {
            self.persist(volume, None);
        }
        // A diskless node has nothing to write, so nothing else would bring it on.
        self.changed = true;
    }

    /// Tells the front ends whether this node serves, or could.
    pub(crate) fn update_serves(&mut self) {
        let able = self.stopping.is_none()
            && match self.role {
                Role::Primary => {
                    (0..self.volumes.len()).all(|volume| self.volumes[volume].quorum && self.has_data(volume))
                }
                _ => self.config.auto_promote && self.refusal(false).is_none(),
            };
        if self.serves != Some(able) {
            self.serves = Some(able);
            self.event(Event::Serves { able });
        }
    }
}
