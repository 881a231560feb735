//! A small cluster for the unit tests: cores with disks in memory and links in order. A seed decides what happens next.

use std::collections::{BTreeMap, VecDeque};

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use bytes::Bytes;

use crate::{
    AckMode, DiskAnswer, DiskError, DiskOp, DiskRequest, DiskState, Effect, Found, Input, Instant, LinkId,
    NodeId, NodeSet, OperatorRequest, Packet, PeerConfig, Quorum, ReadBalancing, Refusal, ReplicationState,
    Resource, ResourceConfig, ResourceStatus, Suspended, Verb, VolumeConfig,
};

pub(crate) const VOLUME: VolumeNumber = VolumeNumber(0);

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) core: Resource,
    pub(crate) data: Vec<u8>,
    pending: Vec<(DiskOp, DiskRequest)>,
    pub(crate) broken: Option<DiskError>,
    links: BTreeMap<NodeId, LinkId>,
    wanted: NodeSet,
    pub(crate) answers: BTreeMap<u64, Result<(), Refusal>>,
    pub(crate) completed: BTreeMap<u64, Status>,
}

#[derive(Debug)]
enum Wire {
    Packet(LinkId, Box<Packet>),
    Closed(LinkId),
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    wires: BTreeMap<(usize, usize), VecDeque<Wire>>,
    pub(crate) apart: bool,
    seed: u64,
    now: Instant,
    names: u64,
}

impl Cluster {
    /// Diskful nodes with volumes of so many bytes, which nobody has written to.
    pub(crate) fn new(nodes: u8, size: u64, seed: u64) -> Self {
        Self::made_of(nodes, size, seed, &|_| Found::Fresh, &|config| config)
    }

    pub(crate) fn made_of(
        nodes: u8,
        size: u64,
        seed: u64,
        found: &dyn Fn(u8) -> Found,
        change: &dyn Fn(ResourceConfig) -> ResourceConfig,
    ) -> Self {
        let ids = || (0..nodes).map(NodeId);
        let disks: NodeSet = ids().collect();
        let mut cluster = Self {
            nodes: Vec::new(),
            wires: BTreeMap::new(),
            apart: false,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Instant::default(),
            names: 0,
        };
        let mut first = Vec::new();
        for node in ids() {
            let peer = |peer: NodeId| PeerConfig {
                node: peer,
                name: format!("node{}", peer.0),
                protocol: AckMode::C,
                after_split_brain: crate::AfterSplitBrain::default(),
            };
            let config = change(ResourceConfig {
                name: "db".to_owned(),
                cluster: 7,
                node,
                peers: ids().filter(|other| *other != node).map(peer).collect(),
                volumes: vec![VolumeConfig { number: VOLUME, size, block_size: 512, disks }],
                auto_promote: false,
                quorum: Quorum::Off,
                read_balancing: ReadBalancing::PreferLocal,
                peer_timeout: std::time::Duration::from_millis(60),
                promotion_timeout: std::time::Duration::from_millis(200),
                disk_timeout: std::time::Duration::ZERO,
                al_extents: 4,
                al_extent_len: 16 * 4096,
            });
            let mut effects = Vec::new();
            let entropy = seed.wrapping_add(u64::from(node.0) << 32);
            let found = vec![(VOLUME, found(node.0))];
            let core = Resource::new(config, found, entropy, Instant::default(), &mut effects).unwrap();
            cluster.nodes.push(Node {
                core,
                data: vec![0; usize::try_from(size).unwrap()],
                pending: Vec::new(),
                broken: None,
                links: BTreeMap::new(),
                wanted: NodeSet::EMPTY,
                answers: BTreeMap::new(),
                completed: BTreeMap::new(),
            });
            first.push(effects);
        }
        for (node, effects) in first.into_iter().enumerate() {
            cluster.carry_out(node, effects);
        }
        cluster
    }

    fn chance(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 33).unwrap() % below
    }

    pub(crate) fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.nodes[node].core.step(self.now, input, &mut effects);
        self.carry_out(node, effects);
    }

    fn carry_out(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Disk { op, request, .. } => self.nodes[node].pending.push((op, request)),
                Effect::Send { peer, link, packet } => {
                    if self.nodes[node].links.get(&peer) == Some(&link) {
                        let wire = self.wires.entry((node, usize::from(peer.0))).or_default();
                        wire.push_back(Wire::Packet(link, Box::new(packet)));
                    }
                }
                Effect::Disconnect { peer, link, .. } => self.hang_up(node, peer, link),
                Effect::Want { peer, wanted } => {
                    let set = self.nodes[node].wanted;
                    self.nodes[node].wanted = if wanted { set.with(peer) } else { set.without(peer) };
                }
                Effect::Complete { id, status } => {
                    self.nodes[node].completed.insert(id.0, status);
                }
                Effect::Reply { request, result } => {
                    self.nodes[node].answers.insert(request.0, result);
                }
                Effect::Event(_) | Effect::WakeAt(_) | Effect::Open { .. } | Effect::Stopped => {}
            }
        }
    }

    fn hang_up(&mut self, node: usize, peer: NodeId, link: LinkId) {
        if self.nodes[node].links.get(&peer) != Some(&link) {
            return;
        }
        self.nodes[node].links.remove(&peer);
        let there = usize::from(peer.0);
        self.wires.entry((node, there)).or_default().push_back(Wire::Closed(link));
        self.wires.entry((there, node)).or_default().clear();
        self.step(node, Input::PeerLost { peer, link });
    }

    /// Every link breaks; none is made until `apart` is false again.
    pub(crate) fn break_links(&mut self) {
        self.wires.clear();
        for node in 0..self.nodes.len() {
            for (peer, link) in std::mem::take(&mut self.nodes[node].links) {
                self.step(node, Input::PeerLost { peer, link });
            }
        }
        self.wires.clear();
    }

    /// Does one of the things that can happen. Whether there was one.
    pub(crate) fn turn(&mut self) -> bool {
        let wires: Vec<_> =
            self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(&ends, _)| ends).collect();
        let disks: Vec<_> =
            (0..self.nodes.len()).filter(|&node| !self.nodes[node].pending.is_empty()).collect();
        let meet = self.can_meet();
        let count = wires.len() + disks.len() + usize::from(meet.is_some());
        self.now.0 += std::time::Duration::from_micros(50);
        if count == 0 {
            return false;
        }
        let choice = self.chance(count);
        if let Some(&ends) = wires.get(choice) {
            self.deliver(ends);
        } else if let Some(&node) = disks.get(choice - wires.len()) {
            self.end_disk_operation(node);
        } else if let Some((one, other)) = meet {
            self.names += 1;
            let link = LinkId(self.names);
            for (node, peer) in [(one, other), (other, one)] {
                let peer = NodeId(u8::try_from(peer).unwrap());
                self.nodes[node].links.insert(peer, link);
            }
            for (node, peer) in [(one, other), (other, one)] {
                let peer = NodeId(u8::try_from(peer).unwrap());
                self.step(node, Input::PeerConnected { peer, link });
            }
        }
        true
    }

    fn can_meet(&self) -> Option<(usize, usize)> {
        if self.apart {
            return None;
        }
        let wants = |node: usize, peer: usize| {
            let peer = NodeId(u8::try_from(peer).unwrap());
            self.nodes[node].wanted.contains(peer) && !self.nodes[node].links.contains_key(&peer)
        };
        let quiet = |ends| self.wires.get(&ends).is_none_or(VecDeque::is_empty);
        let nodes = self.nodes.len();
        let pairs = (0..nodes).flat_map(|one| (one + 1..nodes).map(move |other| (one, other)));
        pairs.into_iter().find(|&(one, other)| {
            wants(one, other) && wants(other, one) && quiet((one, other)) && quiet((other, one))
        })
    }

    fn deliver(&mut self, (from, to): (usize, usize)) {
        let Some(wire) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        let peer = NodeId(u8::try_from(from).unwrap());
        match wire {
            Wire::Packet(link, packet) => self.step(to, Input::Packet { peer, link, packet: *packet }),
            Wire::Closed(link) => {
                if self.nodes[to].links.get(&peer) == Some(&link) {
                    self.nodes[to].links.remove(&peer);
                    self.step(to, Input::PeerLost { peer, link });
                }
            }
        }
    }

    fn end_disk_operation(&mut self, node: usize) {
        let choice = self.chance(self.nodes[node].pending.len());
        let target = &mut self.nodes[node];
        let (op, request) = target.pending.swap_remove(choice);
        let range =
            |extent: Extent| usize::try_from(extent.offset).unwrap()..usize::try_from(extent.end()).unwrap();
        let metadata = matches!(request, DiskRequest::WriteMetadata { .. });
        let result = match (target.broken.filter(|_| !metadata), request) {
            (Some(error), _) => Err(error),
            (None, DiskRequest::Read { extent }) => {
                Ok(DiskAnswer::Data(Bytes::copy_from_slice(&target.data[range(extent)]).into()))
            }
            (None, DiskRequest::Write { extent, data, .. }) => {
                target.data[range(extent)].copy_from_slice(&data.to_bytes());
                Ok(DiskAnswer::Done)
            }
            (None, DiskRequest::WriteZeroes { extent, .. }) => {
                target.data[range(extent)].fill(0);
                Ok(DiskAnswer::Done)
            }
            (None, DiskRequest::Allocation { .. }) => Ok(DiskAnswer::Allocation(Vec::new())),
            (None, DiskRequest::Flush | DiskRequest::WriteMetadata { .. }) => Ok(DiskAnswer::Done),
        };
        self.step(node, Input::Disk { op, result });
    }

    /// Goes on until nothing is left to do but to wait.
    pub(crate) fn settle(&mut self) {
        for _ in 0..200_000 {
            if !self.turn() {
                self.now.0 += std::time::Duration::from_millis(100);
                for node in 0..self.nodes.len() {
                    self.step(node, Input::Tick);
                }
                if !self.turn() {
                    return;
                }
            }
        }
        panic!("it never settles: {:#?}", self.status(0));
    }

    /// Asks, waits until nothing moves, and returns the answer.
    pub(crate) fn ask(&mut self, node: usize, verb: Verb) -> Result<(), Refusal> {
        let request = self.begin(node, verb);
        self.settle();
        self.nodes[node].answers.remove(&request).expect("an answer")
    }

    pub(crate) fn begin(&mut self, node: usize, verb: Verb) -> u64 {
        self.names += 1;
        let request = self.names;
        self.step(node, Input::Operator { request: OperatorRequest(request), verb });
        request
    }

    /// Starts a write; its answer has this name.
    pub(crate) fn write(&mut self, node: usize, offset: u64, len: usize, byte: u8) -> u64 {
        self.names += 1;
        let (id, extent) = (CommandId(self.names), Extent::new(offset, len as u64));
        let data = Bytes::from(vec![byte; len]).into();
        let command = Command::Write { extent, data, fua: false };
        self.step(node, Input::Command { volume: VOLUME, id, command });
        self.names
    }

    pub(crate) fn status(&self, node: usize) -> ResourceStatus {
        self.nodes[node].core.status()
    }

    pub(crate) fn disk(&self, node: usize) -> DiskState {
        self.status(node).devices[0].disk_state
    }

    pub(crate) fn replication(&self, node: usize) -> ReplicationState {
        self.status(node).connections[0].peer_devices[0].replication_state
    }
}

mod tests;
