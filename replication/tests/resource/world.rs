//! A few cores in one thread: packets and disk operations are carried out at once, unless a test holds a disk.

use std::{collections::VecDeque, time::Duration};

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use bytes::Bytes;
use replication::{
    AckMode, AfterSplitBrain, DiskAnswer, DiskOp, DiskRequest, Effect, Event, Found, Input, Instant, LinkId,
    NodeId, OperatorRequest, PeerConfig, Quorum, ReadBalancing, Refusal, Resource, ResourceConfig, Role,
    Verb, VolumeConfig,
};

/// The one volume.
pub(crate) const VOLUME: VolumeNumber = VolumeNumber(0);
/// How long a disk may take.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// The cores, and what came of what they were asked.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) cores: Vec<Resource>,
    pub(crate) now: Duration,
    pub(crate) statuses: Vec<(CommandId, Status)>,
    pub(crate) replies: Vec<(OperatorRequest, Result<(), Refusal>)>,
    pub(crate) events: Vec<(usize, Event)>,
    pub(crate) stopped: Vec<usize>,
    /// The nodes whose disk answers nothing, and what it was asked.
    pub(crate) hung: Vec<bool>,
    pub(crate) held: Vec<(usize, DiskOp)>,
    effects: VecDeque<(usize, Effect)>,
    links: Vec<(usize, usize, LinkId)>,
    names: u64,
}

impl World {
    /// Nodes with fresh disks, all of which have met.
    pub(crate) fn new(nodes: usize, quorum: Quorum) -> Self {
        let mut world = Self {
            cores: Vec::new(),
            now: Duration::ZERO,
            statuses: Vec::new(),
            replies: Vec::new(),
            events: Vec::new(),
            stopped: Vec::new(),
            hung: vec![false; nodes],
            held: Vec::new(),
            effects: VecDeque::new(),
            links: Vec::new(),
            names: 0,
        };
        for node in 0..nodes {
            let mut effects = Vec::new();
            let found = vec![(VOLUME, Found::Fresh)];
            let core = Resource::new(
                config(nodes, node, quorum),
                found,
                node as u64 + 1,
                Instant::default(),
                &mut effects,
            );
            world.cores.push(core.expect("a fresh disk is no error"));
            world.effects.extend(effects.into_iter().map(|effect| (node, effect)));
        }
        world.settle();
        for one in 0..nodes {
            for other in one + 1..nodes {
                world.connect(one, other);
            }
        }
        world
    }

    /// Two nodes meet.
    pub(crate) fn connect(&mut self, one: usize, other: usize) {
        self.names += 1;
        let link = LinkId(self.names);
        self.links.push((one, other, link));
        self.step(one, Input::PeerConnected { peer: id(other), link });
        self.step(other, Input::PeerConnected { peer: id(one), link });
        self.settle();
    }

    /// Two nodes lose each other.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        let cut = |(a, b, _): &(usize, usize, LinkId)| (*a, *b) == (one, other) || (*a, *b) == (other, one);
        let links: Vec<_> = self.links.extract_if(.., |link| cut(link)).collect();
        for (one, other, link) in links {
            self.step(one, Input::PeerLost { peer: id(other), link });
            self.step(other, Input::PeerLost { peer: id(one), link });
        }
        self.settle();
    }

    /// Asks for something and carries out all that follows at once.
    pub(crate) fn put(&mut self, node: usize, input: Input) {
        self.step(node, input);
        self.settle();
    }

    /// Writes a block, and returns the command's name.
    pub(crate) fn write(&mut self, node: usize, block: u64) -> CommandId {
        self.names += 1;
        let id = CommandId(self.names);
        let data = Bytes::from(vec![1; 4096]).into();
        let command = Command::Write { extent: Extent::new(block * 4096, 4096), data, fua: false };
        self.put(node, Input::Command { volume: VOLUME, id, command });
        id
    }

    /// Reads a block, and returns the command's name.
    pub(crate) fn read(&mut self, node: usize, block: u64) -> CommandId {
        self.names += 1;
        let id = CommandId(self.names);
        let command = Command::Read { extent: Extent::new(block * 4096, 4096) };
        self.put(node, Input::Command { volume: VOLUME, id, command });
        id
    }

    /// What an operator asks, and the answer that came at once.
    pub(crate) fn operate(&mut self, node: usize, verb: Verb) -> Result<(), Refusal> {
        self.names += 1;
        let request = OperatorRequest(self.names);
        self.put(node, Input::Operator { request, verb });
        let reply = self.replies.iter().find(|(asked, _)| *asked == request);
        reply.expect("nothing keeps the answer back").1.clone()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in 0..self.cores.len() {
            self.put(node, Input::Tick);
        }
    }

    /// What became of a command.
    pub(crate) fn status(&self, id: CommandId) -> Option<&Status> {
        self.statuses.iter().find(|(command, _)| *command == id).map(|(_, status)| status)
    }

    /// The disk of a node answers all that it was asked, late.
    pub(crate) fn thaw(&mut self, node: usize) {
        self.hung[node] = false;
        for (of, op) in std::mem::take(&mut self.held) {
            self.put(of, Input::Disk { op, result: Ok(DiskAnswer::Done) });
        }
    }

    pub(crate) fn role(&self, node: usize) -> Role {
        self.cores[node].status().role
    }

    fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.cores[node].step(Instant(self.now), input, &mut effects);
        self.effects.extend(effects.into_iter().map(|effect| (node, effect)));
    }

    fn settle(&mut self) {
        while let Some((node, effect)) = self.effects.pop_front() {
            match effect {
                Effect::Disk { op, .. } if self.hung[node] => self.held.push((node, op)),
                Effect::Disk { op, request, .. } => {
                    let answer = match request {
                        DiskRequest::Read { extent } => {
                            let len = usize::try_from(extent.len).expect("short");
                            DiskAnswer::Data(Bytes::from(vec![0; len]).into())
                        }
                        DiskRequest::Allocation { .. } => DiskAnswer::Allocation(Vec::new()),
                        _ => DiskAnswer::Done,
                    };
                    self.step(node, Input::Disk { op, result: Ok(answer) });
                }
                Effect::Send { peer, link, packet } if self.links.iter().any(|known| known.2 == link) => {
                    self.step(usize::from(peer.0), Input::Packet { peer: id(node), link, packet });
                }
                Effect::Disconnect { peer, link, .. } => {
                    self.links.retain(|known| known.2 != link);
                    self.step(usize::from(peer.0), Input::PeerLost { peer: id(node), link });
                    self.step(node, Input::PeerLost { peer, link });
                }
                Effect::Complete { id, status } => self.statuses.push((id, status)),
                Effect::Reply { request, result } => self.replies.push((request, result)),
                Effect::Event(event) => self.events.push((node, event)),
                Effect::Stopped => self.stopped.push(node),
                Effect::Send { .. } | Effect::Want { .. } | Effect::WakeAt(_) | Effect::Open { .. } => {}
            }
        }
    }
}

fn id(node: usize) -> NodeId {
    NodeId(u8::try_from(node).expect("a few nodes"))
}

fn config(nodes: usize, node: usize, quorum: Quorum) -> ResourceConfig {
    let everyone = (0..nodes).map(id);
    let peer = |node: NodeId| PeerConfig {
        node,
        name: format!("node-{}", node.0),
        protocol: AckMode::C,
        after_split_brain: AfterSplitBrain::default(),
    };
    ResourceConfig {
        name: "db".to_owned(),
        cluster: 7,
        node: id(node),
        peers: everyone.clone().filter(|other| *other != id(node)).map(peer).collect(),
        volumes: vec![VolumeConfig {
            number: VOLUME,
            size: 1 << 20,
            block_size: 512,
            disks: everyone.collect(),
        }],
        auto_promote: true,
        quorum,
        read_balancing: ReadBalancing::PreferLocal,
        disk_timeout: DISK_TIMEOUT,
        al_extents: 67,
        al_extent_len: ResourceConfig::AL_EXTENT_LEN,
        peer_timeout: Duration::from_secs(2),
        promotion_timeout: Duration::from_secs(4),
    }
}
