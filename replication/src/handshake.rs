//! Meeting a peer: both ends tell what they are, and each decides from the two states. What changes later is told as
//! it changes; where it changes in between, the ends start over.

use std::collections::VecDeque;

use crate::{
    ConnectionState, DiskState, Divergence, Effect, Event, Farewell, LinkId, NodeId, NodeSet, NodeState,
    Packet, Plan, Resource, Role, VolumeState, Written,
    balance::Latency,
    bitmap::BLOCK,
    generation::{DAY_ZERO, REIGN_SHIFT, Side, decide, yields},
    meta,
    peer_write::Incoming,
    resource::{Link, Pair, Volume},
    sabotage::{Fault, planted},
    split_brain::{Loser, Settled},
    write::Progress,
};

impl Resource {
    /// A peer was met.
    pub(crate) fn peer_connected(&mut self, node: NodeId, id: LinkId) {
        let refuse = |resource: &mut Self, reason: &str| {
            resource.out.push(Effect::Disconnect { peer: node, link: id, reason: reason.to_owned() });
        };
        let Some(peer) = self.peer_at(node) else { return refuse(self, "it is not a node of the resource") };
        if self.stopping.is_some() {
            return refuse(self, "the node is stopping");
        }
        if !self.peers[peer].wanted && !self.peers[peer].diverged {
            return refuse(self, "the connection is not wanted");
        }
        if self.peers[peer].link.is_some() {
            self.part(peer, Farewell::Retry, "it connected anew");
        }
        let told = self.state_for(peer);
        self.peers[peer].link = Some(Link {
            id,
            told: told.clone(),
            theirs: None,
            parting: false,
            packets: 0,
            to_hand: VecDeque::new(),
            pairs: Vec::new(),
            received: crate::Sequence(0),
            everywhere: crate::Sequence(0),
            applying: VecDeque::new(),
            flushes: VecDeque::new(),
            sync_waits: Vec::new(),
            sync_sent: VecDeque::new(),
            reads: Vec::new(),
            latency: Latency::new(self.now),
            sent_bytes: 0,
            received_bytes: 0,
        });
        self.send(peer, Packet::State(Box::new(told)));
    }

    /// A packet came.
    pub(crate) fn packet(&mut self, node: NodeId, link: LinkId, packet: Packet) {
        let Some(peer) = self.link_at(node, link) else { return };
        let Some(link) = &self.peers[peer].link else { return };
        let result = match packet {
            Packet::Goodbye { farewell } => {
                self.goodbye(peer, farewell);
                Ok(())
            }
            _ if link.parting => Ok(()),
            Packet::State(state) => self.state(peer, *state),
            _ if link.theirs.is_none() => Err("its first packet does not tell its state"),
            packet => self.dispatch(peer, packet),
        };
        if let Err(reason) = result {
            self.violation(peer, reason);
        }
    }

    fn dispatch(&mut self, peer: usize, packet: Packet) -> Result<(), &'static str> {
        let Some(link) = self.peers[peer].link.as_ref().map(|link| link.id) else { return Ok(()) };
        let at = |number| self.volume_at(number).ok_or("a volume that is not here");
        match packet {
            Packet::Write { volume, sequence, extent, data, fua, mode, missing } => {
                let data = Some(data);
                let change = Incoming { sequence, extent, data, unmap: false, fua, mode, missing };
                self.incoming(peer, at(volume)?, change)?;
            }
            Packet::WriteZeroes { volume, sequence, extent, unmap, fua, mode, missing } => {
                let change = Incoming { sequence, extent, data: None, unmap, fua, mode, missing };
                self.incoming(peer, at(volume)?, change)?;
            }
            Packet::Flush { sequence } => self.incoming_flush(peer, sequence)?,
            Packet::NewGeneration { volume, sequence, current, missing } => {
                self.incoming_generation(peer, at(volume)?, sequence, current, missing)?;
            }
            Packet::Received { sequence } => self.progressed(peer, sequence, Progress::Received),
            Packet::Written { sequence } => self.progressed(peer, sequence, Progress::Stable),
            Packet::WriteFailed { sequence } => self.leg_failed(peer, sequence),
            Packet::Everywhere { sequence } => self.everywhere(peer, sequence),
            Packet::Read { volume, read, extent } => {
                self.serve(peer, link, at(volume)?, read, crate::DiskRequest::Read { extent });
            }
            Packet::Allocation { volume, read, extent } => {
                self.serve(peer, link, at(volume)?, read, crate::DiskRequest::Allocation { extent });
            }
            Packet::ReadData { read, data } => self.peer_read(peer, read, Some(Ok(data))),
            Packet::AllocationRuns { read, runs } => self.peer_read(peer, read, Some(Err(runs))),
            Packet::ReadFailed { read } => self.peer_read(peer, read, None),
            Packet::Bitmap { volume, first, words, last } => {
                self.bitmap_piece(peer, at(volume)?, first, &words, last);
            }
            Packet::SyncRequest { volume, extent, after } => {
                self.sync_request(peer, at(volume)?, extent, after);
            }
            Packet::SyncData { volume, extent, data, sequence } => {
                self.sync_data(peer, at(volume)?, extent, Some(data), sequence)?;
            }
            Packet::SyncZeroes { volume, extent, sequence } => {
                self.sync_data(peer, at(volume)?, extent, None, sequence)?;
            }
            Packet::SyncFailed { volume, .. } => self.sync_failed(peer, at(volume)?),
            Packet::SyncDone { volume, extent } => self.sync_done(peer, at(volume)?, extent),
            Packet::Promote { request, force } => self.asked_to_consent(peer, link, request, force),
            Packet::PromoteAnswer { request, granted, sequence } => {
                self.consent_answered(peer, request, granted, sequence);
            }
            Packet::Protocol { mode } => self.protocol_told(peer, mode),
            Packet::ProtocolKnown { mode } => self.protocol_known(peer, mode),
            Packet::Invalidate { volume, request } => {
                self.asked_to_follow(peer, link, at(volume)?, request);
            }
            Packet::Lead { volume, request } => {
                let granted = self.may_lead(at(volume)?);
                self.say(peer, link, request, granted);
            }
            Packet::Declare { volume, request, current } => {
                self.asked_to_declare(peer, link, at(volume)?, request, current);
            }
            Packet::Answer { request, granted } => self.errand_answered(peer, request, granted),
            Packet::State(_) | Packet::Goodbye { .. } => {}
        }
        Ok(())
    }

    /// The peer's state: its first word, or a change of it.
    fn state(&mut self, peer: usize, state: NodeState) -> Result<(), &'static str> {
        let numbers = state.volumes.iter().map(|volume| volume.volume);
        if !numbers.eq(self.volumes.iter().map(|volume| volume.config.number)) {
            return Err("it has other volumes");
        }
        let first = self.peers[peer].up().is_none();
        self.changed = true;
        if first {
            self.meet(peer, &state);
            Ok(())
        } else {
            self.learn(peer, state)
        }
    }

    /// Decides about a peer that told its state.
    fn meet(&mut self, peer: usize, state: &NodeState) {
        let Some(link) = &self.peers[peer].link else { return };
        let (told, node) = (link.told.clone(), self.peers[peer].node);
        if self.volumes.iter().any(|volume| volume.generation.is_some()) {
            return self.part(peer, Farewell::Retry, "a new generation is about to begin here");
        }
        let Settled { mine, theirs: state, loser, policy } = self.settle_split_brain(node, &told, state);
        let mut pairs = Vec::with_capacity(mine.volumes.len());
        let mut yielded = false;
        for (ours, theirs) in mine.volumes.iter().zip(&state.volumes) {
            let plan = if ours.disk == DiskState::Diskless || theirs.disk == DiskState::Diskless {
                Plan::InStep
            } else {
                let (ours, theirs) =
                    (Side::new(self.config.node, &mine, ours), Side::new(node, &state, theirs));
                yielded |= yields(&theirs, &ours);
                decide(&ours, &theirs)
            };
            pairs.push(Pair { plan, bitmap_here: false, equal: false, asked: 0 });
        }
        if pairs.iter().any(|pair| pair.plan == Plan::Unrelated) {
            self.peers[peer].parting = Some(crate::Parting::Unrelated);
            self.part(peer, Farewell::Unrelated, "its data has nothing in common with ours");
            return;
        }
        // Of two Primaries, the one that others went on without gives way.
        let (reign, theirs) = (mine.sequence.0 >> REIGN_SHIFT, state.sequence.0 >> REIGN_SHIFT);
        let two = mine.role == Role::Primary && state.role == Role::Primary;
        let later = supersedes(&mine, &state);
        // A later reign was consented to while this Primary was cut off: what it still holds came before. Unless that
        // reign is what the peer gives up.
        let replaced = mine.role == Role::Primary && reign < theirs && !later && !yielded;
        let superseded = self.is_superseded(&state) || replaced;
        let both = two && !superseded && !later && reign == theirs;
        if both || pairs.iter().any(|pair| pair.plan == Plan::SplitBrain) {
            let volumes = divergence(&mine, &state, &pairs);
            self.peers[peer].parting = Some(crate::Parting::Diverged { volumes, policy });
            self.part(peer, Farewell::Diverged, "the data diverged: split brain");
            return;
        }
        if let Some(loser) = loser {
            self.split_brain_settled(peer, loser, policy);
        }
        // The word to give up what is here, an operator's or a policy's, holds until what replaces it is here.
        self.peers[peer].discards &=
            pairs.iter().any(|pair| pair.plan == Plan::SyncTarget(crate::Scope::Full));
        if yielded && self.role == Role::Primary && reign <= theirs {
            // Its order goes on above what the peer saw without it.
            self.go_on_behind(theirs);
        }
        if superseded && self.role == Role::Primary {
            self.step_down();
        }
        self.connect(peer, state, &pairs);
    }

    /// A policy decided whose data goes. It holds, even if the link breaks before anything is copied.
    fn split_brain_settled(&mut self, peer: usize, loser: Loser, policy: String) {
        let node = self.peers[peer].node;
        let gives_up = if loser == Loser::Here { self.config.node } else { node };
        self.event(Event::SplitBrainSettled { peer: node, gives_up, policy });
        if loser == Loser::Here {
            self.peers[peer].discards = true;
            if self.role == Role::Primary {
                self.step_down();
            }
        }
    }

    /// Takes a peer in.
    fn connect(&mut self, peer: usize, mut state: NodeState, pairs: &[Pair]) {
        let node = self.peers[peer].node;
        for (volume, pair) in pairs.iter().enumerate() {
            let theirs = &mut state.volumes[volume];
            let target = &mut self.volumes[volume];
            let old = target.lags_behind_known(theirs) || matches!(pair.plan, Plan::SyncSource(_));
            if old && !planted(Fault::TrustReturning) {
                theirs.disk = theirs.disk.min(DiskState::Outdated);
            }
            if self.role == Role::Primary {
                // While it was away, others may have caught up with it: the next change leaves them behind anew.
                target.left = NodeSet::EMPTY;
            }
            target.learn_generation(node, theirs);
        }
        self.see(state.sequence);
        // The peer has not heard yet what is everywhere.
        self.everywhere_told = crate::Sequence(0);
        let role = state.role;
        if let Some(link) = self.peers[peer].link.as_mut() {
            link.received = if role == Role::Primary { state.sequence } else { crate::Sequence(0) };
            link.theirs = Some(state);
            link.pairs = pairs.to_vec();
        }
        self.peers[peer].state = ConnectionState::Connected;
        self.peers[peer].diverged = false;
        self.peers[peer].parting = None;
        self.event(Event::Connection { peer: node, state: ConnectionState::Connected });
        self.event(Event::PeerRole { peer: node, role });
        for (volume, pair) in pairs.iter().enumerate() {
            if matches!(pair.plan, Plan::SyncSource(_) | Plan::SyncTarget(_)) {
                self.mark_tail(volume, NodeSet::EMPTY.with(node));
            }
            match pair.plan {
                Plan::SyncSource(scope) => self.send_bitmap(peer, volume, scope),
                Plan::SyncTarget(scope) => {
                    self.fall_behind(volume, peer);
                    self.send_bitmap(peer, volume, scope);
                }
                _ => {}
            }
            self.left_behind_by_diskless(volume, peer);
            self.peer_disk_event(peer, volume);
            self.forget_differences(volume);
        }
    }

    /// Takes note of a place in the order that someone else has seen. A Primary gives the places itself.
    pub(crate) fn see(&mut self, sequence: crate::Sequence) {
        if self.role != Role::Primary {
            self.sequence = self.sequence.max(sequence);
        }
    }

    /// The order of this Primary goes on in the reign behind another one.
    fn go_on_behind(&mut self, reign: u64) {
        self.sequence = self.sequence.max(crate::Sequence(reign.saturating_add(1) << REIGN_SHIFT));
        let order = self.sequence.0;
        for volume in 0..self.volumes.len() {
            if let Some(disk) = self.volumes[volume].disk.as_mut() {
                disk.order = disk.order.max(order);
                self.persist(volume, None);
            }
        }
    }

    /// A peer has newer data: until it is here, ours is of no use.
    fn fall_behind(&mut self, volume: usize, peer: usize) {
        let theirs = self.peers[peer].up().and_then(|state| state.volumes.get(volume)).cloned();
        let target = &mut self.volumes[volume];
        if let Some(theirs) = theirs
            && self.role != Role::Primary
        {
            target.known = theirs.lineage.current;
            target.known_history.clone_from(&theirs.lineage.history);
        }
        if let Some(disk) = target.disk.as_mut().filter(|disk| disk.flags.consistent && !disk.flags.outdated)
            && !planted(Fault::TrustReturning)
        {
            disk.flags.outdated = true;
            self.persist(volume, None);
            self.set_disk_state(volume, DiskState::Outdated);
        }
    }

    /// A diskless peer knows a generation that the local replica is not in.
    pub(crate) fn left_behind_by_diskless(&mut self, volume: usize, peer: usize) {
        // A good replica learns of a generation from the Primary itself, be it after the others.
        let from_primary = self.volumes[volume].state == DiskState::UpToDate
            && self.primary().is_some_and(|primary| primary != self.peers[peer].node);
        if from_primary {
            return;
        }
        let Some(theirs) = self.peers[peer].up().and_then(|state| state.volumes.get(volume)) else { return };
        let current = theirs.lineage.current;
        let diskless = theirs.disk == DiskState::Diskless;
        let Some(disk) = self.volumes[volume].disk.as_mut() else { return };
        let behind = diskless
            && current.0 > DAY_ZERO.0
            && current != disk.current
            && !disk.history.contains(&current)
            && disk.flags.consistent
            && !disk.flags.outdated;
        if behind && self.role != Role::Primary {
            disk.flags.outdated = true;
            self.persist(volume, None);
            self.set_disk_state(volume, DiskState::Outdated);
        }
    }

    /// A connected peer's state changed.
    fn learn(&mut self, peer: usize, mut state: NodeState) -> Result<(), &'static str> {
        let Some(old) = self.peers[peer].up().cloned() else { return Ok(()) };
        if state.role == Role::Primary && self.role == Role::Primary {
            return Err("two Primaries");
        }
        let node = self.peers[peer].node;
        for (target, theirs) in self.volumes.iter_mut().zip(&mut state.volumes) {
            if target.lags_behind_known(theirs) && !planted(Fault::TrustReturning) {
                theirs.disk = theirs.disk.min(DiskState::Outdated);
            }
            target.learn_generation(node, theirs);
        }
        self.see(state.sequence);
        let role = state.role;
        if let Some(link) = self.peers[peer].link.as_mut() {
            if role == Role::Primary && old.role != Role::Primary {
                link.received = link.received.max(state.sequence);
            }
            link.theirs = Some(state.clone());
        }
        if self.consent.as_ref().is_some_and(|consent| consent.peer == peer) {
            self.consent = None;
        }
        if role != old.role {
            self.event(Event::PeerRole { peer: node, role });
        }
        for volume in 0..self.volumes.len() {
            let (before, now) = (&old.volumes[volume], &state.volumes[volume]);
            if before.disk != now.disk {
                if !self.peers[peer].receives(volume) {
                    self.lose_legs(peer, Some(volume));
                }
                self.peer_disk_event(peer, volume);
            }
            self.left_behind_by_diskless(volume, peer);
            let mine = self.volumes[volume]
                .disk
                .as_ref()
                .filter(|disk| disk.flags.consistent && !disk.flags.outdated);
            // A Primary tells its generation to everyone in its time; without one, a later one is news.
            let later = |mine: crate::Generation| {
                let lineage = &now.lineage;
                let known = lineage.current != mine && lineage.history.contains(&mine);
                self.primary().is_none() && now.disk > DiskState::Outdated && known
            };
            if mine.map(|mine| mine.current).is_some_and(|mine| {
                mine.0 != 0 && now.consistent && (now.lineage.base == mine || later(mine))
            }) {
                self.part(peer, Farewell::Retry, "it went on without this node");
                return Ok(());
            }
            self.forget_differences(volume);
        }
        Ok(())
    }

    /// Whether a peer's data is a later generation of what this node serves.
    fn is_superseded(&self, state: &NodeState) -> bool {
        self.volumes.iter().zip(&state.volumes).any(|(volume, theirs)| {
            volume.known.0 > DAY_ZERO.0
                && volume.known != theirs.lineage.current
                && theirs.lineage.history.contains(&volume.known)
        })
    }

    pub(crate) fn peer_disk_event(&mut self, peer: usize, volume: usize) {
        let disk = self.peers[peer].disk(volume);
        let replication = self.replication_state(peer, volume);
        let (peer, volume) = (self.peers[peer].node, self.number(volume));
        self.event(Event::PeerDisk { peer, volume, disk, replication });
    }

    /// The nodes that are connected, this one included.
    pub(crate) fn present(&self) -> NodeSet {
        let up = self.peers.iter().filter(|peer| peer.up().is_some()).map(|peer| peer.node);
        up.chain([self.config.node]).collect()
    }

    /// What this node tells a peer about itself.
    pub(crate) fn state_for(&self, peer: usize) -> NodeState {
        let node = self.peers[peer].node;
        let paused = |at: usize| self.peers[peer].paused.contains(&at);
        let volumes = self.volumes.iter().enumerate();
        let volumes = volumes.map(|(at, volume)| volume.state_for(node, paused(at))).collect();
        NodeState {
            role: self.role,
            primary: self.primary(),
            sequence: self.sequence,
            connected: self.present(),
            discard_my_data: self.peers[peer].discards,
            after_split_brain: self.peers[peer].after_split_brain,
            protocol: self.peers[peer].mode,
            volumes,
        }
    }

    /// Tells each peer what changed of this node.
    pub(crate) fn announce(&mut self) {
        for peer in 0..self.peers.len() {
            // Whoever was asked for its consent takes the next state for the end of the promotion.
            if self.promotion.as_ref().is_some_and(|promotion| promotion.asks(peer)) {
                continue;
            }
            let Some(link) = self.peers[peer].link.as_ref().filter(|link| !link.parting) else { continue };
            let up = link.theirs.is_some();
            let now = self.state_for(peer);
            if same_words(&link.told, &now) {
                continue;
            }
            if up {
                if let Some(link) = self.peers[peer].link.as_mut() {
                    link.told = now.clone();
                }
                self.send(peer, Packet::State(Box::new(now)));
            } else if !same_decision(&link.told, &now) {
                self.part(peer, Farewell::Retry, "this node changed while they told each other their states");
            }
        }
    }
}

impl Volume {
    fn state_for(&self, peer: NodeId, paused: bool) -> VolumeState {
        let flags = self.disk.as_ref().map(|disk| disk.flags).unwrap_or_default();
        let lineage = match &self.disk {
            Some(disk) => disk.lineage(peer),
            None => crate::Lineage {
                current: self.known,
                base: crate::Generation(0),
                history: self.known_history.clone(),
            },
        };
        VolumeState {
            volume: self.config.number,
            size: self.config.size,
            disk: self.state,
            lineage,
            fresh: flags.fresh,
            crashed: self.crashed && !planted(Fault::ForgetCrash),
            was_primary: flags.was_primary,
            lags: flags.lags,
            consistent: flags.consistent,
            dirty_blocks: self.dirty(peer),
            paused,
        }
    }

    /// Whether a replica is not in the generation that this node knows of, which has no replica of use itself.
    fn lags_behind_known(&self, theirs: &VolumeState) -> bool {
        let has_none = self.disk.is_none() || self.state < DiskState::Consistent;
        has_none
            && theirs.disk > DiskState::Outdated
            && self.known.0 > DAY_ZERO.0
            && theirs.lineage.current != self.known
            && !theirs.lineage.history.contains(&self.known)
    }

    /// Takes note of a newer generation that a good replica is in.
    fn learn_generation(&mut self, node: NodeId, theirs: &VolumeState) {
        let newer = self.known.0 <= DAY_ZERO.0 || theirs.lineage.history.contains(&self.known);
        let good = self.state == DiskState::UpToDate;
        if theirs.disk == DiskState::UpToDate && theirs.lineage.current != self.known && newer && !good {
            let old = std::mem::replace(&mut self.known, theirs.lineage.current);
            self.known_history.clone_from(&theirs.lineage.history);
            meta::remember(&mut self.known_history, old);
        }
        if theirs.disk == DiskState::UpToDate && theirs.lineage.current == self.known {
            self.left = self.left.without(node);
        }
    }

    /// The newer one of the generation that is known and that of a source.
    pub(crate) fn newest(&self, source: &crate::Lineage) -> crate::Generation {
        if self.known_history.contains(&source.current) && !source.history.contains(&self.known) {
            self.known
        } else {
            source.current
        }
    }
}

/// What both ends wrote while they were apart.
fn divergence(mine: &NodeState, theirs: &NodeState, pairs: &[Pair]) -> Vec<Divergence> {
    let written = |node: &NodeState, volume: &VolumeState| Written {
        changed: volume.dirty_blocks.saturating_mul(BLOCK).min(volume.size),
        generation: volume.lineage.current.0,
        since: volume.lineage.base.0,
        primary: node.role == Role::Primary,
    };
    let volumes = mine.volumes.iter().zip(&theirs.volumes).zip(pairs);
    let diverged = volumes.filter(|(_, pair)| pair.plan == Plan::SplitBrain);
    diverged
        .map(|((ours, other), _)| Divergence {
            volume: ours.volume,
            here: written(mine, ours),
            there: written(theirs, other),
        })
        .collect()
}

/// Whether our data, as told, is a later generation of theirs.
fn supersedes(mine: &NodeState, theirs: &NodeState) -> bool {
    mine.volumes.iter().zip(&theirs.volumes).any(|(mine, theirs)| {
        let current = theirs.lineage.current;
        current.0 > DAY_ZERO.0 && mine.lineage.current != current && mine.lineage.history.contains(&current)
    })
}

/// Whether two states say the same but for what changes with every write.
fn same_words(told: &NodeState, now: &NodeState) -> bool {
    let counts = |state: &NodeState| {
        let mut state = state.clone();
        state.sequence = crate::Sequence(0);
        state.volumes.iter_mut().for_each(|volume| volume.dirty_blocks = 0);
        state
    };
    counts(told) == counts(now)
}

/// Whether two states lead to the same decision.
fn same_decision(told: &NodeState, now: &NodeState) -> bool {
    let relevant = |state: &NodeState| {
        let mut state = state.clone();
        state.sequence = crate::Sequence(0);
        state.connected = NodeSet::EMPTY;
        for volume in &mut state.volumes {
            volume.dirty_blocks = u64::from(volume.dirty_blocks > 0);
            volume.paused = false;
            volume.disk =
                if volume.disk == DiskState::Diskless { DiskState::Diskless } else { DiskState::Consistent };
        }
        state
    };
    relevant(told) == relevant(now)
}
