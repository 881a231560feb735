//! Becoming Primary: what stands against it, the consent of everyone who is there, and the first step after it.

use block::{Command, CommandId, Failure, Status, VolumeNumber};

use crate::{
    DiskState, Effect, Event, Generation, Instant, LinkId, OperatorRequest, Packet, Refusal, Resource, Role,
    Sequence,
    generation::{DAY_ZERO, REIGN_SHIFT},
    job::After,
    meta,
    sabotage::{Fault, planted},
};

/// A promotion under way.
#[derive(Clone, Debug)]
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
    pub(crate) committed: bool,
}

impl Promotion {
    /// Whether that peer was asked for its consent.
    pub(crate) fn asks(&self, peer: usize) -> bool {
        self.asked.contains(&peer)
    }
}

/// A promise to know of no other Primary until a candidate says how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Consent {
    pub(crate) peer: usize,
}

impl Resource {
    /// A command before the node is Primary: it may promote it.
    pub(crate) fn early_command(&mut self, volume: VolumeNumber, id: CommandId, command: Command) {
        let may_promote = self.config.auto_promote && !self.barred && self.demotion.is_none();
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
            let remedy = format!("make it Secondary there first: evenkeel secondary {resource}");
            return refuse(format!("node {name} is Primary of {resource}"), &remedy);
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
                    &if target.disk.is_none() {
                        format!("connect a node with data; see evenkeel why {resource}")
                    } else {
                        format!(
                            "connect a node with newer data, or give up what it has: evenkeel primary {resource} --force"
                        )
                    },
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
    pub(crate) fn update_promotion(&mut self) {
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
        let order = self.next_reign().0;
        for volume in 0..self.volumes.len() {
            if force && !self.has_data(volume) {
                self.force_data(volume);
            }
            if let Some(disk) = self.volumes[volume].disk.as_mut() {
                disk.flags.was_primary = true;
                disk.flags.in_use = true;
                // After a crash of several nodes, it tells the last Primary from those before it.
                disk.order = disk.order.max(order);
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
        let replaced =
            self.peers.iter().filter_map(|peer| peer.up()).filter_map(|state| state.volumes.get(volume));
        let replaced: Vec<_> = replaced.map(|theirs| theirs.lineage.current).collect();
        let target = &mut self.volumes[volume];
        let Some(disk) = target.disk.as_mut() else { return };
        let old = disk.current;
        disk.enter(generation);
        if old.0 == 0 {
            // Data that comes from nowhere replaces what those who are there have: they take everything.
            for generation in replaced {
                meta::remember_given_up(&mut disk.history, generation);
            }
        }
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
        target.books.before_superblock = true;
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
            // Others may have caught up meanwhile with the generation that is known here.
            volume.left = crate::NodeSet::EMPTY;
            volume.uneven = crate::NodeSet::EMPTY;
            volume.failing = crate::NodeSet::EMPTY;
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
            if refusal.is_some() && planted(Fault::ReplayFenced) {
                self.early.push((volume, id, command));
            } else if refusal.is_some() {
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
            // Not after a crash either: a candidate without a disk cannot write its reign down itself.
            let order = self.sequence.0;
            for volume in 0..self.volumes.len() {
                if let Some(disk) = self.volumes[volume].disk.as_mut() {
                    disk.order = disk.order.max(order);
                    return self.persist(volume, Some(After::Consent { peer, link, request }));
                }
            }
        }
        self.answer_candidate(peer, link, request, granted);
    }

    pub(crate) fn answer_candidate(&mut self, peer: usize, link: LinkId, request: u64, granted: bool) {
        if self.peers[peer].link.as_ref().is_some_and(|current| current.id == link) {
            let sequence = self.sequence;
            self.send(peer, Packet::PromoteAnswer { request, granted, sequence });
        }
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
}
