//! What operators of this node ask of peers, and what operators of peers ask of this node: a replica follows another one, or
//! replicas that were just created are equal.

use block::VolumeNumber;

use crate::{
    DiskState, Generation, LinkId, NodeId, OperatorRequest, Packet, Plan, Refusal, Resource, Role,
    VolumeState, job::After,
};

/// Something that peers were asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    request: OperatorRequest,
    /// Who has not answered yet.
    waits: Vec<usize>,
    volume: usize,
    then: Then,
}

/// What follows once everyone has done it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// Nothing: the operator is answered.
    Reply,
    /// This node's replica is equal to theirs as well, in this generation.
    Declare(Generation),
    /// This node's replica is given up.
    GiveUp,
}

impl Resource {
    /// Asks peers, and answers the operator once all of them have done it.
    pub(crate) fn send_errand(
        &mut self,
        request: OperatorRequest,
        volume: usize,
        waits: Vec<usize>,
        then: Then,
        packet: &Packet,
    ) {
        for &peer in &waits {
            self.send(peer, packet.clone());
        }
        self.errands.push(Errand { request, waits, volume, then });
    }

    /// A peer did what it was asked to, or refused.
    pub(crate) fn errand_answered(&mut self, peer: usize, request: u64, granted: bool) {
        let named = |errand: &Errand| errand.request.0 == request && errand.waits.contains(&peer);
        let Some(at) = self.errands.iter().position(named) else { return };
        self.errands[at].waits.retain(|waiting| *waiting != peer);
        if !granted {
            let request = self.errands.swap_remove(at).request;
            let name = &self.peers[peer].name;
            let what = format!("{name} refused: its role or its replica has changed meanwhile");
            let remedy = format!("see how it stands: evenkeel why {}", self.config.name);
            return self.reply(request, Err(Refusal { what, remedy }));
        }
        if self.errands[at].waits.is_empty() {
            let errand = self.errands.swap_remove(at);
            match errand.then {
                Then::Reply => self.reply(errand.request, Ok(())),
                Then::Declare(current) => {
                    self.enter_declared(errand.volume, current, After::Told(errand.request));
                }
                Then::GiveUp => self.allowed_to_follow(peer, errand.volume, errand.request),
            }
        }
    }

    /// Whether something that peers were asked about a volume is not answered yet.
    pub(crate) fn is_asking_about(&self, volume: usize) -> bool {
        self.errands.iter().any(|errand| errand.volume == volume)
    }

    /// A peer is gone before it answered.
    pub(crate) fn errands_lost(&mut self, peer: usize) {
        let errands = std::mem::take(&mut self.errands);
        let (lost, kept): (Vec<_>, Vec<_>) =
            errands.into_iter().partition(|errand| errand.waits.contains(&peer));
        self.errands = kept;
        for errand in lost {
            let what = format!("the connection to {} broke before it answered", self.peers[peer].name);
            let remedy = format!("see how it stands, and ask again: evenkeel status {}", self.config.name);
            self.reply(errand.request, Err(Refusal { what, remedy }));
        }
    }

    /// The superblock that an operator's request changed is on the disk.
    pub(crate) fn told(&mut self, request: OperatorRequest, kept: bool) {
        let name = &self.config.name;
        let failed = || Refusal {
            what: "the metadata could not be written, so the disk was given up".to_owned(),
            remedy: format!("evenkeel why {name}"),
        };
        let result = if kept { Ok(()) } else { Err(failed()) };
        self.reply(request, result);
    }

    /// The superblock that a peer's request changed is on the disk, or nothing was changed.
    pub(crate) fn say(&mut self, peer: usize, link: LinkId, request: u64, granted: bool) {
        if self.peers[peer].link.as_ref().is_some_and(|current| current.id == link) {
            self.send(peer, Packet::Answer { request, granted });
        }
    }

    /// Declares replicas that were just created to be equal: the peers' first, this node's last.
    pub(crate) fn declare_equal(&mut self, request: OperatorRequest, number: VolumeNumber) {
        match self.creators(number) {
            Err(refusal) => self.reply(request, Err(refusal)),
            Ok((volume, peers)) => {
                let current = self.new_generation();
                let packet = Packet::Declare { volume: number, request: request.0, current };
                self.send_errand(request, volume, peers, Then::Declare(current), &packet);
            }
        }
    }

    /// The volume and everyone else with a disk for it, where all replicas were just created.
    fn creators(&self, number: VolumeNumber) -> Result<(usize, Vec<usize>), Refusal> {
        let volume = self.named_volume(number)?;
        let name = &self.config.name;
        let refuse = |what: String, remedy: String| Err(Refusal { what, remedy });
        if !self.is_created(volume) {
            return refuse(
                format!("the replica of {name}/{number} here was not just created"),
                format!("replace what others have: evenkeel invalidate-remote {name}/{number} --peer NODE"),
            );
        }
        let mut peers = Vec::new();
        for node in self.volumes[volume].config.disks.without(self.config.node).iter() {
            let Some(peer) = self.peer_at(node) else { continue };
            let who = &self.peers[peer].name;
            let Some(theirs) = self.peers[peer].up().map(|state| &state.volumes[volume]) else {
                let remedy = format!("evenkeel wait {name} connected");
                return refuse(format!("{who} is not connected"), remedy);
            };
            if !is_created(theirs) {
                let what = format!("the replica of {name}/{number} on {who} was not just created");
                return refuse(what, "connect it: it copies what differs by itself".to_owned());
            }
            peers.push(peer);
        }
        if peers.is_empty() {
            let what = format!("{name}/{number} has no other replica");
            return refuse(what, format!("evenkeel primary {name} --force"));
        }
        Ok((volume, peers))
    }

    fn is_created(&self, volume: usize) -> bool {
        let disk = self.volumes[volume].disk.as_ref();
        disk.is_some_and(|disk| disk.flags.fresh || disk.current.0 == 0 && !disk.flags.consistent)
    }

    /// A peer's operator declares that the replicas are equal.
    pub(crate) fn asked_to_declare(
        &mut self,
        peer: usize,
        link: LinkId,
        volume: usize,
        request: u64,
        current: Generation,
    ) {
        if !self.is_created(volume) || self.role == Role::Primary {
            return self.say(peer, link, request, false);
        }
        self.volumes[volume].declarer = Some(peer);
        self.enter_declared(volume, current, After::Said { peer, link, request });
    }

    /// Whether the operator's own replica is not declared yet: until it is, nobody is good.
    pub(crate) fn waits_for_declarer(&self, volume: usize) -> bool {
        self.volumes[volume].declarer.is_some_and(|peer| {
            self.peers[peer].up().is_some() && self.peers[peer].disk(volume) != DiskState::UpToDate
        })
    }

    fn enter_declared(&mut self, volume: usize, current: Generation, after: After) {
        let target = &mut self.volumes[volume];
        target.known = current;
        target.known_history.clear();
        for (_, bitmap) in &mut target.bitmaps {
            bitmap.clear_all();
        }
        if let Some(disk) = target.disk.as_mut() {
            disk.current = current;
            disk.history.clear();
            disk.bases = [Generation(0); 32];
            disk.flags.fresh = false;
            disk.flags.consistent = true;
            disk.flags.outdated = false;
        }
        for link in self.peers.iter_mut().filter_map(|peer| peer.link.as_mut()) {
            if let Some(pair) = link.pairs.get_mut(volume).filter(|pair| pair.plan == Plan::Wait) {
                pair.plan = Plan::InStep;
            }
        }
        self.persist(volume, Some(after));
        self.changed = true;
    }

    /// Begins a generation as the Primary does when a replica is lost.
    pub(crate) fn begin_generation(&mut self, request: OperatorRequest, number: VolumeNumber) {
        match self.may_begin_generation(number) {
            Err(refusal) => self.reply(request, Err(refusal)),
            Ok(volume) => {
                let (current, missing) = (self.new_generation(), self.absent(volume));
                self.tell_generation(volume, current, missing);
                self.beginning.push((volume, request));
            }
        }
    }

    /// Answers the operators whose generation has begun, or was given up.
    pub(crate) fn answer_beginnings(&mut self) {
        let (waiting, done): (Vec<_>, Vec<_>) = std::mem::take(&mut self.beginning)
            .into_iter()
            .partition(|(volume, _)| self.volumes[*volume].generation.is_some());
        self.beginning = waiting;
        for (_, request) in done {
            self.reply(request, Ok(()));
        }
    }

    fn may_begin_generation(&self, number: VolumeNumber) -> Result<usize, Refusal> {
        let volume = self.named_volume(number)?;
        let (name, target) = (&self.config.name, &self.volumes[volume]);
        if self.role != Role::Primary {
            let what = format!("a new generation begins on the Primary, and this node is {}", self.role);
            return Err(Refusal { what, remedy: format!("there: evenkeel new-generation {name}/{number}") });
        }
        if !target.quorum || !self.has_data(volume) || target.generation.is_some() {
            let what = "writes wait, so no generation can begin".to_owned();
            return Err(Refusal { what, remedy: format!("evenkeel why {name}") });
        }
        Ok(volume)
    }

    pub(crate) fn named_volume(&self, number: VolumeNumber) -> Result<usize, Refusal> {
        self.volume_at(number).ok_or_else(|| Refusal {
            what: format!("{} has no volume {number}", self.config.name),
            remedy: "see its volumes: evenkeel status".to_owned(),
        })
    }

    pub(crate) fn named_peer(&self, node: NodeId) -> Result<usize, Refusal> {
        let connected = self.peer_at(node).filter(|&peer| self.peers[peer].up().is_some());
        connected.ok_or_else(|| Refusal {
            what: "the peer is not connected".to_owned(),
            remedy: format!("evenkeel connect {name}; evenkeel why {name}", name = self.config.name),
        })
    }
}

fn is_created(replica: &VolumeState) -> bool {
    replica.disk != DiskState::Diskless
        && (replica.fresh || replica.lineage.current.0 == 0 && !replica.consistent)
}
