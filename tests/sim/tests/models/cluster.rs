//! A cluster of cores as a value: what can happen to it next, and what it is then.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::{self, Write as _},
    hash::{Hash, Hasher},
    time::Duration,
};

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use bytes::Bytes;
use replication::{
    AckMode, AfterSplitBrain, ConnectionState, DiskAnswer, DiskOp, DiskRequest, DiskState, Effect, Found,
    Input, Instant, LinkId, NodeId, NodeSet, OperatorRequest, Packet, PeerConfig, Quorum, ReadBalancing,
    ReplicationState, Resource, ResourceConfig, Role, Verb, VolumeConfig, metadata_len,
};

/// What a model is about: who there is, and how often anything may happen.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) nodes: usize,
    pub(crate) diskful: NodeSet,
    pub(crate) quorum: Quorum,
    /// Whether disks do at once what they are asked; otherwise a crash comes between.
    pub(crate) prompt_disks: bool,
    pub(crate) budget: Budget,
    /// What has to happen somewhere, so that the rest means something.
    pub(crate) shows: &'static [&'static str],
}

/// How often each may still happen.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) cuts: u8,
    pub(crate) meetings: u8,
    pub(crate) crashes: u8,
    pub(crate) promotions: u8,
    pub(crate) demotions: u8,
    pub(crate) writes: u8,
    pub(crate) ticks: u8,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The next packet on the way to this end of a link arrives.
    Arrive {
        link: LinkId,
        end: usize,
    },
    /// This end notices that a link is gone.
    Notice {
        link: LinkId,
        end: usize,
    },
    /// A link breaks, with what is on its way.
    Cut {
        link: LinkId,
    },
    /// Two nodes meet.
    Meet {
        one: usize,
        other: usize,
    },
    /// The oldest operation of a disk ends.
    DiskEnds {
        node: usize,
    },
    /// A process dies. What it asked of its disk was `done`, or not.
    Crash {
        node: usize,
        done: bool,
    },
    Start {
        node: usize,
    },
    Promote {
        node: usize,
    },
    Demote {
        node: usize,
    },
    Write {
        node: usize,
    },
    /// Time passes until a node wants to look at the clock.
    Tick {
        node: usize,
    },
}

/// A cluster at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    pub(crate) budget: Budget,
    names: u64,
    now: Duration,
    /// Under each value of the one block, the value that it was written over.
    parents: BTreeMap<u64, u64>,
    /// What was acknowledged, in order.
    pub(crate) acknowledged: Vec<u64>,
    writing: BTreeMap<CommandId, u64>,
    /// What was found to be wrong in a step.
    pub(crate) wrong: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    config: ResourceConfig,
    pub(crate) core: Option<Resource>,
    lives: u64,
    /// What was ever written to the metadata area, in blocks.
    metadata: BTreeMap<u64, Bytes>,
    pub(crate) value: u64,
    pending: VecDeque<(DiskOp, DiskRequest)>,
    wanted: NodeSet,
    wake: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Link {
    ends: [usize; 2],
    /// Whether the end has not noticed that the link is gone.
    open: [bool; 2],
    /// What is on its way to each end.
    queues: [VecDeque<Packet>; 2],
    /// Nothing passes any more, and neither end was told.
    cut: bool,
}

impl Cluster {
    /// Fresh replicas that have met.
    pub(crate) fn new(setting: &Setting) -> Self {
        let mut cluster = Self {
            nodes: (0..setting.nodes).map(|node| Node::new(setting, node)).collect(),
            links: BTreeMap::new(),
            budget: setting.budget.clone(),
            names: 0,
            now: Duration::ZERO,
            parents: BTreeMap::new(),
            acknowledged: Vec::new(),
            writing: BTreeMap::new(),
            wrong: None,
        };
        (0..setting.nodes).for_each(|node| cluster.start(node));
        for one in 0..setting.nodes {
            (one + 1..setting.nodes).for_each(|other| cluster.meet(one, other));
        }
        loop {
            cluster.disks_end();
            let Some((&link, end)) = cluster
                .links
                .iter()
                .find_map(|(id, link)| (0..2).find(|&end| !link.queues[end].is_empty()).map(|end| (id, end)))
            else {
                return cluster;
            };
            cluster.arrive(link, end);
        }
    }

    /// Everything that can happen next.
    pub(crate) fn actions(&self, actions: &mut Vec<Action>) {
        for (&link, there) in &self.links {
            for end in 0..2 {
                if !there.open[end] {
                    continue;
                }
                if !there.queues[end].is_empty() {
                    actions.push(Action::Arrive { link, end });
                } else if there.cut || !there.open[1 - end] {
                    actions.push(Action::Notice { link, end });
                }
            }
            if there.is_whole() && self.budget.cuts > 0 {
                actions.push(Action::Cut { link });
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(core) = &node.core else {
                actions.push(Action::Start { node: at });
                continue;
            };
            if !node.pending.is_empty() {
                actions.push(Action::DiskEnds { node: at });
            }
            if self.budget.crashes > 0 {
                actions.push(Action::Crash { node: at, done: false });
                if !node.pending.is_empty() {
                    actions.push(Action::Crash { node: at, done: true });
                }
            }
            let primary = core.status().role == Role::Primary;
            if !primary && self.budget.promotions > 0 {
                actions.push(Action::Promote { node: at });
            }
            if primary && self.budget.demotions > 0 {
                actions.push(Action::Demote { node: at });
            }
            if primary && self.budget.writes > 0 {
                actions.push(Action::Write { node: at });
            }
            // Both ends of a broken link notice it before a time-out that counts on that.
            let noticed = self.links.values().all(Link::is_whole);
            if node.wake.is_some() && noticed && self.budget.ticks > 0 {
                actions.push(Action::Tick { node: at });
            }
            for other in at + 1..self.nodes.len() {
                if self.budget.meetings > 0 && self.may_meet(at, other) {
                    actions.push(Action::Meet { one: at, other });
                }
            }
        }
    }

    /// Lets something happen.
    pub(crate) fn act(&mut self, action: &Action, prompt_disks: bool) {
        match *action {
            Action::Arrive { link, end } => self.arrive(link, end),
            Action::Notice { link, end } => self.notice(link, end),
            Action::Cut { link } => {
                self.budget.cuts -= 1;
                if let Some(link) = self.links.get_mut(&link) {
                    link.queues = [VecDeque::new(), VecDeque::new()];
                    link.cut = true;
                }
            }
            Action::Meet { one, other } => {
                self.budget.meetings -= 1;
                self.meet(one, other);
            }
            Action::DiskEnds { node } => self.disk_ends(node),
            Action::Crash { node, done } => {
                self.budget.crashes -= 1;
                self.crash(node, done);
            }
            Action::Start { node } => self.start(node),
            Action::Promote { node } => {
                self.budget.promotions -= 1;
                self.operate(node, Verb::Primary { force: false });
            }
            Action::Demote { node } => {
                self.budget.demotions -= 1;
                self.operate(node, Verb::Secondary { force: false });
            }
            Action::Write { node } => {
                self.budget.writes -= 1;
                self.names += 1;
                let (id, value) = (CommandId(self.names), self.names);
                self.writing.insert(id, value);
                let mut data = vec![0; BLOCK];
                data[..8].copy_from_slice(&value.to_le_bytes());
                let command = Command::Write { extent: EXTENT, data: Bytes::from(data).into(), fua: false };
                self.step(node, Input::Command { volume: VOLUME, id, command });
            }
            Action::Tick { node } => {
                self.budget.ticks -= 1;
                self.now = self.now.max(self.nodes[node].wake.take().unwrap_or_default());
                self.step(node, Input::Tick);
            }
        }
        if prompt_disks {
            self.disks_end();
        }
    }

    /// Whether nothing is on its way, everyone is up and has met whom it wants to meet.
    pub(crate) fn is_quiet(&self) -> bool {
        let still = |node: &Node| node.core.is_some() && node.pending.is_empty();
        let links =
            || self.links.values().all(|link| link.is_whole() && link.queues.iter().all(VecDeque::is_empty));
        let met = |one: usize| (one + 1..self.nodes.len()).all(|other| !self.may_meet(one, other));
        self.nodes.iter().all(still) && links() && (0..self.nodes.len()).all(met)
    }

    /// Whether a value was written over another one, or over one that was.
    pub(crate) fn has(&self, mut value: u64, old: u64) -> bool {
        while value != old {
            match self.parents.get(&value) {
                Some(&parent) => value = parent,
                None => return false,
            }
        }
        true
    }

    /// Whether a node has noticed everything that happened to its links.
    pub(crate) fn knows_its_links(&self, node: usize) -> bool {
        self.links.values().all(|link| link.is_whole() || !link.ends.contains(&node))
    }

    /// The state of a node's own replica.
    pub(crate) fn disk_state(&self, node: usize) -> Option<DiskState> {
        self.nodes[node].core.as_ref().map(|core| core.status().devices[0].disk_state)
    }

    /// Whether two nodes are connected and need to copy nothing.
    pub(crate) fn are_in_step(&self, one: usize, other: usize) -> bool {
        let peer = id(other);
        self.nodes[one].core.as_ref().is_some_and(|core| {
            core.status().connections.iter().any(|connection| {
                connection.peer == peer
                    && connection.state == ConnectionState::Connected
                    && connection.peer_devices[0].replication_state == ReplicationState::Established
            })
        })
    }

    fn may_meet(&self, one: usize, other: usize) -> bool {
        let [a, b] = [one, other].map(|node| &self.nodes[node]);
        let linked =
            self.links.values().any(|link| link.ends == [one, other] && (link.open[0] || link.open[1]));
        a.core.is_some()
            && b.core.is_some()
            && a.wanted.contains(id(other))
            && b.wanted.contains(id(one))
            && !linked
    }

    fn meet(&mut self, one: usize, other: usize) {
        self.names += 1;
        let link = LinkId(self.names);
        let queues = [VecDeque::new(), VecDeque::new()];
        self.links.insert(link, Link { ends: [one, other], open: [true; 2], queues, cut: false });
        self.step(one, Input::PeerConnected { peer: id(other), link });
        self.step(other, Input::PeerConnected { peer: id(one), link });
    }

    fn arrive(&mut self, link: LinkId, end: usize) {
        let Some(there) = self.links.get_mut(&link) else { return };
        let Some(packet) = there.queues[end].pop_front() else { return };
        let (node, peer) = (there.ends[end], id(there.ends[1 - end]));
        self.step(node, Input::Packet { peer, link, packet });
    }

    /// An end of a link is closed; the other one still gets what was sent.
    fn notice(&mut self, link: LinkId, end: usize) {
        let Some(there) = self.links.get_mut(&link).filter(|there| there.open[end]) else { return };
        there.open[end] = false;
        there.queues[end].clear();
        let (node, peer) = (there.ends[end], id(there.ends[1 - end]));
        if there.open == [false; 2] {
            self.links.remove(&link);
        }
        if self.nodes[node].core.is_some() {
            self.step(node, Input::PeerLost { peer, link });
        }
    }

    fn crash(&mut self, node: usize, done: bool) {
        let pending = std::mem::take(&mut self.nodes[node].pending);
        if done {
            for (_, request) in pending {
                self.carry_out(node, request);
            }
        }
        let dead = &mut self.nodes[node];
        (dead.core, dead.wanted, dead.wake) = (None, NodeSet::EMPTY, None);
        let ends: Vec<_> = self
            .links
            .iter()
            .filter_map(|(&id, link)| link.ends.iter().position(|&end| end == node).map(|end| (id, end)))
            .collect();
        for (link, end) in ends {
            self.notice(link, end);
        }
    }

    fn start(&mut self, node: usize) {
        let target = &mut self.nodes[node];
        target.lives += 1;
        let disks = target.config.volumes[0].disks.contains(target.config.node);
        let found = if !disks {
            Vec::new()
        } else if target.metadata.is_empty() {
            vec![(VOLUME, Found::Fresh)]
        } else {
            let len = usize::try_from(metadata_len(&target.config.volumes[0])).expect("small");
            let mut area = vec![0; len];
            for (&offset, bytes) in &target.metadata {
                let at = usize::try_from(offset).expect("small");
                area[at..at + bytes.len()].copy_from_slice(bytes);
            }
            vec![(VOLUME, Found::Metadata(Bytes::from(area)))]
        };
        let entropy = (node as u64 + 1) << 8 | target.lives;
        let mut effects = Vec::new();
        match Resource::new(target.config.clone(), found, entropy, Instant(self.now), &mut effects) {
            Ok(core) => target.core = Some(core),
            Err(error) => self.wrong = Some(format!("node {node} does not start: {error}")),
        }
        self.follow(node, effects);
    }

    fn operate(&mut self, node: usize, verb: Verb) {
        self.names += 1;
        self.step(node, Input::Operator { request: OperatorRequest(self.names), verb });
    }

    fn disks_end(&mut self) {
        while let Some(node) =
            self.nodes.iter().position(|node| node.core.is_some() && !node.pending.is_empty())
        {
            self.disk_ends(node);
        }
    }

    fn disk_ends(&mut self, node: usize) {
        let Some((op, request)) = self.nodes[node].pending.pop_front() else { return };
        let answer = self.carry_out(node, request);
        self.step(node, Input::Disk { op, result: Ok(answer) });
    }

    fn carry_out(&mut self, node: usize, request: DiskRequest) -> DiskAnswer {
        let target = &mut self.nodes[node];
        match request {
            DiskRequest::Read { extent } => {
                let mut data = vec![0; usize::try_from(extent.len).expect("small")];
                data[..8].copy_from_slice(&target.value.to_le_bytes());
                return DiskAnswer::Data(Bytes::from(data).into());
            }
            DiskRequest::Write { data, .. } => {
                let first: Vec<u8> =
                    data.parts().iter().flat_map(|part| part.iter().copied()).take(8).collect();
                let value = u64::from_le_bytes(first.try_into().expect("eight bytes"));
                let old = std::mem::replace(&mut target.value, value);
                if value != old && value != 0 {
                    // What a replica has that is being copied to is nobody's data.
                    if self.disk_state(node) == Some(DiskState::UpToDate) {
                        self.parents.insert(value, old);
                    } else {
                        self.parents.entry(value).or_insert(old);
                    }
                }
            }
            DiskRequest::WriteZeroes { .. } => target.value = 0,
            DiskRequest::WriteMetadata { offset, data } => {
                for (block, at) in (offset..).step_by(BLOCK).zip((0..data.len()).step_by(BLOCK)) {
                    target.metadata.insert(block, data.slice(at..at + BLOCK));
                }
            }
            DiskRequest::Flush => {}
            DiskRequest::Allocation { .. } => return DiskAnswer::Allocation(Vec::new()),
        }
        DiskAnswer::Done
    }

    fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        if let Some(core) = self.nodes[node].core.as_mut() {
            core.step(Instant(self.now), input, &mut effects);
        }
        self.follow(node, effects);
    }

    fn follow(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Disk { op, request, .. } => self.nodes[node].pending.push_back((op, request)),
                Effect::Send { link, packet, .. } => {
                    if let Some(there) = self.links.get_mut(&link) {
                        let to = usize::from(there.ends[0] == node);
                        if there.open[to] && !there.cut {
                            there.queues[to].push_back(packet);
                        }
                    }
                }
                Effect::Disconnect { link, .. } => {
                    let end = self
                        .links
                        .get(&link)
                        .and_then(|there| there.ends.iter().position(|&end| end == node));
                    if let Some(end) = end {
                        self.notice(link, end);
                    }
                }
                Effect::Want { peer, wanted } => {
                    let set = &mut self.nodes[node].wanted;
                    *set = if wanted { set.with(peer) } else { set.without(peer) };
                }
                Effect::Complete { id, status } => {
                    if let (Some(value), true) = (self.writing.remove(&id), matches!(status, Status::Done)) {
                        self.acknowledged.push(value);
                    }
                }
                Effect::WakeAt(at) => self.nodes[node].wake = Some(at.0),
                Effect::Reply { .. } | Effect::Event(_) | Effect::Open { .. } | Effect::Stopped => {}
            }
        }
    }
}

impl Link {
    fn is_whole(&self) -> bool {
        self.open == [true; 2] && !self.cut
    }
}

impl Node {
    fn new(setting: &Setting, node: usize) -> Self {
        let peer = |node: usize| PeerConfig {
            node: id(node),
            name: format!("node-{node}"),
            protocol: AckMode::C,
            after_split_brain: AfterSplitBrain::default(),
        };
        let config = ResourceConfig {
            name: "db".to_owned(),
            cluster: 7,
            node: id(node),
            peers: (0..setting.nodes).filter(|&other| other != node).map(peer).collect(),
            volumes: vec![VolumeConfig {
                number: VOLUME,
                size: BLOCK as u64,
                block_size: 4096,
                disks: setting.diskful,
            }],
            auto_promote: false,
            quorum: setting.quorum,
            read_balancing: ReadBalancing::PreferLocal,
            disk_timeout: Duration::ZERO,
            al_extents: 2,
            al_extent_len: ResourceConfig::AL_EXTENT_LEN,
            peer_timeout: Duration::from_secs(2),
            promotion_timeout: Duration::from_secs(4),
        };
        Self {
            config,
            core: None,
            lives: 0,
            metadata: BTreeMap::new(),
            value: 0,
            pending: VecDeque::new(),
            wanted: NodeSet::EMPTY,
            wake: None,
        }
    }
}

/// A state is what it shows: equal states look equal in every part.
impl Hash for Cluster {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        struct Into<'a, H>(&'a mut H);
        impl<H: Hasher> fmt::Write for Into<'_, H> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        write!(Into(hasher), "{self:?}").expect("a hasher takes everything");
    }
}

impl PartialEq for Cluster {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

fn id(node: usize) -> NodeId {
    NodeId(u8::try_from(node).expect("a few nodes"))
}

const VOLUME: VolumeNumber = VolumeNumber(0);
const BLOCK: usize = 4096;
const EXTENT: Extent = Extent { offset: 0, len: BLOCK as u64 };
