//! Operators and resyncs: a replica is given up for another one, and resyncs are held up.

use block::VolumeNumber;

use crate::{
    DiskState, Farewell, Generation, Instant, LinkId, NodeId, OperatorRequest, Packet, Refusal, Resource,
    Role,
    errand::Then,
    job::After,
    resource::Volume,
    sabotage::{Fault, planted},
};

/// A replica that was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenUp {
    /// The only node to copy from, where an operator named one, and until when: without it, another one will do.
    source: Option<(NodeId, Instant)>,
    /// Whether the peers were met again, to decide what replaces it.
    met: bool,
}

impl Volume {
    /// Whether what replaces the replica is still to be decided.
    pub(crate) fn is_to_meet(&self) -> bool {
        self.given_up.is_some_and(|given_up| !given_up.met)
    }

    pub(crate) fn may_copy_from(&self, node: NodeId, now: Instant) -> bool {
        let source = self.given_up.and_then(|given_up| given_up.source);
        source.is_none_or(|(source, until)| source == node || now >= until)
    }

    /// When another source than the one that an operator named will do.
    pub(crate) fn any_source_at(&self, now: Instant) -> Option<Instant> {
        let (_, until) = self.given_up?.source?;
        (until > now).then_some(until)
    }
}

impl Resource {
    /// Holds resyncs up, or lets them go on.
    pub(crate) fn pause_sync(
        &mut self,
        volume: Option<VolumeNumber>,
        peer: Option<NodeId>,
        paused: bool,
    ) -> Result<(), Refusal> {
        let volumes = match volume {
            None => 0..self.volumes.len(),
            Some(number) => {
                let at = self.named_volume(number)?;
                at..at + 1
            }
        };
        self.each_peer(peer, |resource, peer| {
            for volume in volumes.clone() {
                let held = &mut resource.peers[peer].paused;
                if paused {
                    held.insert(volume)
                } else {
                    held.remove(&volume)
                };
                resource.peer_disk_event(peer, volume);
            }
        })
    }

    /// Whether an operator of either end holds resyncs up.
    pub(crate) fn is_paused(&self, peer: usize, volume: usize) -> bool {
        self.peers[peer].paused.contains(&volume) || self.paused_there(peer, volume)
    }

    pub(crate) fn paused_there(&self, peer: usize, volume: usize) -> bool {
        let theirs = self.peers[peer].up().and_then(|state| state.volumes.get(volume));
        theirs.is_some_and(|theirs| theirs.paused)
    }

    /// This node's replica is to become a copy of a peer's. The peer is asked first: of two that give themselves up for
    /// each other at the same time, both would be lost.
    pub(crate) fn invalidate(&mut self, request: OperatorRequest, number: VolumeNumber) {
        let checked = self.named_volume(number).and_then(|volume| {
            self.may_give_up(volume, None)?;
            Ok(volume)
        });
        let volume = match checked {
            Ok(volume) => volume,
            Err(refusal) => return self.reply(request, Err(refusal)),
        };
        let good = |peer: &usize| self.peers[*peer].disk(volume) == DiskState::UpToDate;
        let leader = (0..self.peers.len()).filter(good).take(1).collect();
        let packet = Packet::Lead { volume: number, request: request.0 };
        self.send_errand(request, volume, leader, Then::GiveUp, &packet);
    }

    /// Whether a peer that gives its replica up may follow this node's: it is good, and stays so.
    pub(crate) fn may_lead(&self, volume: usize) -> bool {
        let target = &self.volumes[volume];
        target.disk.is_some() && target.state == DiskState::UpToDate && !self.is_asking_about(volume)
    }

    /// A peer lets this node's replica follow its own.
    pub(crate) fn allowed_to_follow(&mut self, peer: usize, volume: usize, request: OperatorRequest) {
        match self.may_give_up(volume, Some(peer)) {
            Ok(()) => self.give_up_data(volume, None, After::Told(request)),
            Err(refusal) => self.reply(request, Err(refusal)),
        }
    }

    /// A peer's replica is to become a copy of this node's.
    pub(crate) fn invalidate_remote(&mut self, request: OperatorRequest, number: VolumeNumber, node: NodeId) {
        match self.may_be_followed(number, node) {
            Ok((volume, peer)) => {
                let packet = Packet::Invalidate { volume: number, request: request.0 };
                self.send_errand(request, volume, vec![peer], Then::Reply, &packet);
            }
            Err(refusal) => self.reply(request, Err(refusal)),
        }
    }

    /// Whether a peer's replica may be replaced by this node's.
    pub(crate) fn may_be_followed(
        &self,
        number: VolumeNumber,
        node: NodeId,
    ) -> Result<(usize, usize), Refusal> {
        let volume = self.named_volume(number)?;
        let peer = self.named_peer(node)?;
        self.is_free(volume)?;
        let (name, who) = (&self.config.name, &self.peers[peer].name);
        let state = self.volumes[volume].state;
        if state != DiskState::UpToDate {
            let what = format!("the replica here is {state}, so nobody may become a copy of it");
            return Err(Refusal { what, remedy: format!("evenkeel why {name}") });
        }
        let theirs = self.peers[peer].up();
        if theirs.is_some_and(|state| state.role == Role::Primary) {
            let what = format!("{who} is Primary, and its replica is in use");
            return Err(Refusal { what, remedy: format!("on {who}: evenkeel secondary {name}") });
        }
        if self.peers[peer].disk(volume) == DiskState::Diskless {
            let what = format!("{who} has no disk for {name}/{number}");
            return Err(Refusal { what, remedy: format!("on {who}: evenkeel why {name}") });
        }
        Ok((volume, peer))
    }

    /// Whether this node's replica may be given up for that of `source`, or of anyone.
    pub(crate) fn may_give_up(&self, volume: usize, source: Option<usize>) -> Result<(), Refusal> {
        self.is_free(volume)?;
        let (name, number) = (&self.config.name, self.number(volume));
        if self.volumes[volume].disk.is_none() {
            let what = format!("this node has no disk for {name}/{number}");
            return Err(Refusal { what, remedy: format!("evenkeel why {name}") });
        }
        if self.role == Role::Primary {
            let what = "this node is Primary, and its replica is in use".to_owned();
            return Err(Refusal { what, remedy: format!("evenkeel secondary {name}") });
        }
        let good = |peer: usize| self.peers[peer].disk(volume) == DiskState::UpToDate;
        if source.map_or_else(|| self.has_good_peer(volume), good) {
            return Ok(());
        }
        let what = format!("no connected peer has {name}/{number} UpToDate: this may be the only good copy");
        Err(Refusal { what, remedy: format!("connect one: evenkeel connect {name}; evenkeel why {name}") })
    }

    fn is_free(&self, volume: usize) -> Result<(), Refusal> {
        if !self.is_asking_about(volume) {
            return Ok(());
        }
        let what = "a peer has not answered an earlier request about this volume".to_owned();
        Err(Refusal { what, remedy: "ask again once it has".to_owned() })
    }

    /// A peer's operator wants this node's replica to follow that of the peer.
    pub(crate) fn asked_to_follow(&mut self, peer: usize, link: LinkId, volume: usize, request: u64) {
        if self.may_give_up(volume, Some(peer)).is_err() {
            return self.say(peer, link, request, false);
        }
        let node = self.peers[peer].node;
        self.give_up_data(volume, Some(node), After::Said { peer, link, request });
    }

    /// Gives up what is here, as if the replica were adopted just now. What replaces it is decided when the peers meet
    /// again.
    fn give_up_data(&mut self, volume: usize, source: Option<NodeId>, after: After) {
        self.stop_resync(volume);
        let target = &mut self.volumes[volume];
        let until = Instant(self.now.0 + self.config.peer_timeout * PATIENCE);
        target.given_up = Some(GivenUp { source: source.map(|source| (source, until)), met: false });
        if let Some(disk) = target.disk.as_mut() {
            disk.flags.consistent = false;
            disk.flags.fresh = false;
            disk.flags.outdated = false;
            disk.flags.lags = false;
            disk.flags.in_use = true;
            if !planted(Fault::KeepGivenUp) {
                disk.current = Generation(0);
                disk.bases = [Generation(0); 32];
                disk.history.clear();
            }
        }
        for (_, bitmap) in target.bitmaps.iter_mut().filter(|_| !planted(Fault::KeepGivenUp)) {
            bitmap.set_all();
        }
        self.set_disk_state(volume, DiskState::Inconsistent);
        self.persist(volume, Some(after));
        self.changed = true;
    }

    /// Once the request that gave a replica up is answered, its peers are met again.
    pub(crate) fn meet_after_giving_up(&mut self) {
        for volume in 0..self.volumes.len() {
            let target = &mut self.volumes[volume];
            let Some(given_up) = target.given_up.as_mut().filter(|_| !target.superblocks.pending()) else {
                continue;
            };
            if std::mem::replace(&mut given_up.met, true) {
                continue;
            }
            for peer in 0..self.peers.len() {
                if self.peers[peer].disk(volume) == DiskState::UpToDate {
                    self.part(peer, Farewell::Retry, "the replica here was given up");
                }
            }
        }
    }
}

/// For how many times the peer timeout a replica that was given up waits for the source that an operator named.
const PATIENCE: u32 = 5;
