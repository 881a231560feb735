//! The world around the cores: time, disks, links, nodes, initiators.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use replication::{
    ConnectionState, DiskAnswer, DiskError, DiskOp, DiskState, Effect, Found, Input, Instant, LinkId, NodeId,
    OperatorRequest, Packet, Resource, ResourceConfig, Verb, metadata_len,
};

use crate::{
    disk::{self, Disk, Pending, SECTOR, sectors},
    history::{Access, History, Operation},
    nemesis::Nemesis,
    random::Random,
    scenario::{Scenario, VOLUME_SIZE},
};

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario of the seed.
    pub scenario: Scenario,
    /// Writes that were acknowledged, reads that were answered, writes whose outcome is unknown.
    pub acknowledged: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Virtual time, in microseconds.
    pub time: u64,
}

/// One cluster and everything around it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a phase of its own")]
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) random: Random,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    serial: u64,
    pub(crate) nodes: Vec<Node>,
    links: BTreeMap<u64, Link>,
    /// Directions in which nothing passes.
    pub(crate) blocked: Vec<(usize, usize)>,
    clients: Vec<Client>,
    values: u64,
    commands: u64,
    history: History,
    pub(crate) faults: u64,
    /// Since when a node that lost power has not caught up: a second failure then is more than is promised.
    pub(crate) recovering: bool,
    pub(crate) quiet: bool,
    draining: bool,
    trace: bool,
    effects: Vec<Effect>,
}

#[derive(Debug)]
pub(crate) struct Node {
    config: ResourceConfig,
    pub(crate) core: Option<Resource>,
    incarnation: u64,
    pub(crate) disk: Option<Disk>,
    pending: BTreeMap<u64, Pending>,
    wanted: Vec<NodeId>,
    sessions: u32,
    pub(crate) stopping: bool,
}

#[derive(Debug)]
struct Link {
    ends: [usize; 2],
    open: [bool; 2],
    /// Whether what is on its way to that end is lost.
    cut: [bool; 2],
    /// When the last packet to that end arrives.
    last: [u64; 2],
    sent: [u64; 2],
}

#[derive(Debug)]
enum Event {
    Disk { node: usize, incarnation: u64, op: u64 },
    Up { link: u64, end: usize },
    Lost { link: u64, end: usize },
    Packet { link: u64, end: usize, packet: Packet },
    Sent { link: u64, end: usize, packets: u64 },
    Wake { node: usize, incarnation: u64 },
    Dial,
    Client(usize),
    GiveUp { client: usize, id: u64 },
    Nemesis,
    Start(usize),
}

#[derive(Debug, Default)]
struct Client {
    node: usize,
    busy: Option<Request>,
}

#[derive(Clone, Debug)]
struct Request {
    id: u64,
    extent: Option<Extent>,
    values: Vec<u64>,
    start: u64,
    read: bool,
}

/// Runs a seed to its end.
///
/// # Errors
/// When a promise is broken, or the run shows nothing.
pub fn run(seed: u64) -> Result<Report, String> {
    let mut world = World::new(seed);
    let scenario = world.scenario.clone();
    let fail = |fault: String| format!("seed {seed} ({scenario:?}): {fault}");
    world.play(RUN_TIME);
    world.heal();
    world.converge().map_err(fail)?;
    world.judge().map_err(fail)?;
    if world.scenario.blackout {
        world.black_out().map_err(fail)?;
    }
    let report = world.report();
    if report.acknowledged == 0 || report.reads == 0 || report.faults == 0 {
        return Err(fail(format!("nothing was shown: {report:?}")));
    }
    Ok(report)
}

/// Runs a seed without faults, but with data of unknown origin on the first node's disk: it serves nobody until the
/// operator forces it, then every other replica takes everything from it. `None` where the seed's only Primary is
/// another node.
///
/// # Errors
/// When a promise is broken.
pub fn run_adopted(seed: u64) -> Result<Option<Report>, String> {
    let mut world = World::new(seed);
    if world.scenario.pinned().is_some_and(|node| node != 0) {
        return Ok(None);
    }
    let fail = |fault: String| format!("seed {seed}: {fault}");
    world.quiet = true;
    world.adopt(0);
    world.play(150_000);
    let good = |node: usize| world.device(node) == Some(DiskState::UpToDate);
    if world.history.acknowledged + world.history.reads > 0 || (0..world.nodes.len()).any(good) {
        return Err(fail(format!("something is good before a human said so: {:#?}", world.statuses())));
    }
    world.ask(0, Verb::Primary { force: true });
    world.converge().map_err(fail)?;
    world.judge().map_err(fail)?;
    Ok(Some(world.report()))
}

impl World {
    fn adopt(&mut self, node: usize) {
        let first = self.values + 1;
        let Some(disk) = self.nodes[node].disk.as_mut() else { return };
        disk.adopt(first);
        for (sector, value) in disk.values().enumerate() {
            self.values = value;
            let access = Access::Write(value);
            self.history.add(sector, Operation { access, start: 0, end: 0, done: true });
        }
    }

    fn report(self) -> Report {
        Report {
            acknowledged: self.history.acknowledged,
            reads: self.history.reads,
            unknown: self.history.unknown,
            faults: self.faults,
            time: self.now,
            scenario: self.scenario,
        }
    }

    /// The cluster of a seed, before it starts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let scenario = Scenario::new(&mut random);
        let nodes = (0..scenario.nodes()).map(|node| Node::new(scenario.config(node))).collect();
        let clients = (0..scenario.clients).map(|_| Client::default()).collect();
        let mut world = Self {
            random,
            now: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            serial: 0,
            nodes,
            links: BTreeMap::new(),
            blocked: Vec::new(),
            clients,
            values: 0,
            commands: 0,
            history: History::new(usize::try_from(VOLUME_SIZE / SECTOR).unwrap_or_default()),
            faults: 0,
            recovering: false,
            quiet: false,
            draining: false,
            trace: std::env::var_os("SIM_TRACE").is_some(),
            effects: Vec::new(),
            scenario,
        };
        for node in 0..world.nodes.len() {
            let at = world.random.below(20_000);
            world.after(at, Event::Start(node));
        }
        for client in 0..world.clients.len() {
            world.clients[client].node = world.path(0);
            world.after(60_000, Event::Client(client));
        }
        world.after(1_000, Event::Dial);
        world.after(150_000, Event::Nemesis);
        world
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, time: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((time, self.serial)));
        self.events.insert(self.serial, event);
    }

    /// Prints a line of the trace.
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>9} {}", self.now, line());
        }
    }

    /// Lets time pass.
    pub(crate) fn play(&mut self, micros: u64) {
        let until = self.now + micros;
        while let Some(&Reverse((time, serial))) = self.queue.peek() {
            if time > until {
                break;
            }
            self.queue.pop();
            self.now = time;
            if let Some(event) = self.events.remove(&serial) {
                self.happen(event);
            }
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Disk { node, incarnation, op } => self.disk_ended(node, incarnation, op),
            Event::Up { link, end } => {
                let Some(there) = self.links.get(&link).filter(|there| there.open[end]) else { return };
                let (node, peer) = (there.ends[end], there.ends[1 - end]);
                self.step(node, Input::PeerConnected { peer: id(peer), link: LinkId(link) });
            }
            Event::Lost { link, end } => self.link_lost(link, end),
            Event::Packet { link, end, packet } => {
                let Some(there) = self.links.get(&link).filter(|there| there.open[end] && !there.cut[end])
                else {
                    return;
                };
                let (node, peer) = (there.ends[end], there.ends[1 - end]);
                self.note(|| format!("{peer} -> {node} {}", brief(&packet)));
                self.step(node, Input::Packet { peer: id(peer), link: LinkId(link), packet });
            }
            Event::Sent { link, end, packets } => {
                let Some(there) = self.links.get(&link).filter(|there| there.open[end]) else { return };
                let (node, peer) = (there.ends[end], there.ends[1 - end]);
                self.step(node, Input::Sent { peer: id(peer), link: LinkId(link), packets });
            }
            Event::Wake { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation {
                    self.step(node, Input::Tick);
                }
            }
            Event::Dial => self.dial(),
            Event::Client(client) => self.client_acts(client),
            Event::GiveUp { client, id } => self.give_up(client, id),
            Event::Nemesis => {
                if !self.quiet {
                    Nemesis::strike(self);
                    let next = self.random.between(20_000, 250_000);
                    self.after(next, Event::Nemesis);
                }
            }
            Event::Start(node) => self.start(node),
        }
    }

    /// Gives a node's core an input and does what it says.
    pub(crate) fn step(&mut self, node: usize, input: Input) {
        let now = self.instant();
        let mut effects = std::mem::take(&mut self.effects);
        if let Some(core) = self.nodes[node].core.as_mut() {
            core.step(now, input, &mut effects);
        }
        for effect in effects.drain(..) {
            self.carry_out(node, effect);
        }
        self.effects = effects;
    }

    fn instant(&self) -> Instant {
        Instant(Duration::from_micros(self.now))
    }

    fn carry_out(&mut self, node: usize, effect: Effect) {
        let incarnation = self.nodes[node].incarnation;
        match effect {
            Effect::Disk { op, request, .. } => {
                let Some(disk) = &self.nodes[node].disk else { return };
                let pending = disk.begin(request);
                self.note(|| format!("{node} disk {} {}", op.0, brief_request(&pending)));
                self.nodes[node].pending.insert(op.0, pending);
                let delay = if self.random.chance(5) { 8_000 } else { 600 };
                let delay = self.random.between(20, delay);
                self.after(delay, Event::Disk { node, incarnation, op: op.0 });
            }
            Effect::Send { link, packet, .. } => self.transmit(node, link.0, packet),
            Effect::Disconnect { peer, link, reason } => {
                self.note(|| format!("{node} disconnects {}: {reason}", peer.0));
                self.close(link.0, node);
            }
            Effect::Want { peer, wanted } => {
                let list = &mut self.nodes[node].wanted;
                list.retain(|other| *other != peer);
                if wanted {
                    list.push(peer);
                }
            }
            Effect::Complete { id, status } => self.completed(node, id.0, &status),
            Effect::Reply { request, result } => {
                self.note(|| format!("{node} reply {}: {result:?}", request.0));
            }
            Effect::Event(event) => self.note(|| format!("{node} {event:?}")),
            Effect::WakeAt(at) => {
                let at = u64::try_from(at.0.as_micros()).unwrap_or(u64::MAX).max(self.now);
                self.at(at, Event::Wake { node, incarnation });
            }
            Effect::Stopped => {
                self.note(|| format!("{node} stopped"));
                self.take_down(node, false);
            }
        }
    }

    fn transmit(&mut self, node: usize, link: u64, packet: Packet) {
        let delay = self.random.between(30, 900);
        let handed = self.random.between(5, 60);
        let blocked = self.blocked.clone();
        let Some(there) = self.links.get_mut(&link) else { return };
        let from = usize::from(there.ends[1] == node);
        let to = 1 - from;
        there.sent[from] += 1;
        let packets = there.sent[from];
        if blocked.contains(&(node, there.ends[to])) {
            return;
        }
        let time = (self.now + delay).max(there.last[to] + 1);
        there.last[to] = time;
        self.at(time, Event::Packet { link, end: to, packet });
        self.after(handed, Event::Sent { link, end: from, packets });
    }

    /// One end closes a link: the other one learns it behind what was sent.
    fn close(&mut self, link: u64, node: usize) {
        let Some(there) = self.links.get_mut(&link) else { return };
        let from = usize::from(there.ends[1] == node);
        let to = 1 - from;
        there.open[from] = false;
        let time = (self.now + 100).max(there.last[to] + 1);
        there.last[to] = time;
        if there.open[to] {
            self.at(time, Event::Lost { link, end: to });
        } else {
            self.links.remove(&link);
        }
    }

    fn link_lost(&mut self, link: u64, end: usize) {
        let Some(there) = self.links.get_mut(&link).filter(|there| there.open[end]) else { return };
        there.open[end] = false;
        let (node, peer) = (there.ends[end], there.ends[1 - end]);
        if !there.open[1 - end] {
            self.links.remove(&link);
        }
        self.note(|| format!("{node} lost the link to {peer}"));
        self.step(node, Input::PeerLost { peer: id(peer), link: LinkId(link) });
    }

    /// A link breaks: both ends notice, each in its time.
    fn break_link(&mut self, link: u64, lose: [bool; 2]) {
        for (end, lose) in lose.into_iter().enumerate() {
            let notice = self.random.between(500, 50_000);
            if let Some(there) = self.links.get_mut(&link) {
                there.cut[end] |= lose;
            }
            self.after(notice, Event::Lost { link, end });
        }
    }

    /// Breaks every link that fits.
    pub(crate) fn break_links(&mut self, fits: impl Fn([usize; 2]) -> bool) {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, link)| fits(link.ends)).map(|(&id, _)| id).collect();
        for link in links {
            let lose = [self.random.chance(60), self.random.chance(60)];
            self.break_link(link, lose);
        }
    }

    /// Nothing passes from one node to another any more.
    pub(crate) fn block(&mut self, from: usize, to: usize) {
        self.blocked.push((from, to));
        self.note(|| format!("cut {from} -> {to}"));
        let links: Vec<_> = self.links.iter().map(|(&id, link)| (id, link.ends)).collect();
        for (link, ends) in links {
            if ends == [from, to] || ends == [to, from] {
                self.break_link(link, [ends[0] == to, ends[1] == to]);
            }
        }
    }

    fn dial(&mut self) {
        for one in 0..self.nodes.len() {
            for other in one + 1..self.nodes.len() {
                let free = !self.blocked.contains(&(one, other)) && !self.blocked.contains(&(other, one));
                let alive = |node: usize| self.nodes[node].core.is_some();
                let wants = |node: usize, peer: usize| self.nodes[node].wanted.contains(&id(peer));
                let linked = self.links.values().any(|link| link.ends == [one, other]);
                let wanted = wants(one, other) || wants(other, one);
                if !free || linked || !wanted || !alive(one) || !alive(other) || self.random.chance(50) {
                    continue;
                }
                self.serial += 1;
                let link = self.serial;
                let last =
                    [self.now + self.random.between(50, 2_000), self.now + self.random.between(50, 2_000)];
                let (open, cut, sent) = ([true; 2], [false; 2], [0; 2]);
                self.links.insert(link, Link { ends: [one, other], open, cut, last, sent });
                for (end, time) in last.into_iter().enumerate() {
                    self.at(time, Event::Up { link, end });
                }
            }
        }
        self.after(7_000, Event::Dial);
    }

    fn disk_ended(&mut self, node: usize, incarnation: u64, op: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let (Some(pending), Some(disk)) =
            (self.nodes[node].pending.remove(&op), self.nodes[node].disk.as_mut())
        else {
            return;
        };
        let result: Result<DiskAnswer, DiskError> = disk.end(pending);
        self.step(node, Input::Disk { op: DiskOp(op), result });
    }

    /// Starts a node that is down.
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].core.is_some() {
            return;
        }
        let entropy = self.random.next();
        let now = self.instant();
        let target = &mut self.nodes[node];
        target.incarnation += 1;
        target.stopping = false;
        let found = target.disk.as_ref().map(|disk| {
            let found = match (disk.fresh, disk.adopted) {
                (true, false) => Found::Fresh,
                (true, true) => Found::Adopted,
                (false, _) => Found::Metadata(disk.metadata()),
            };
            (VolumeNumber(0), found)
        });
        let mut effects = Vec::new();
        let config = target.config.clone();
        match Resource::new(config, found.into_iter().collect(), entropy, now, &mut effects) {
            Ok(core) => target.core = Some(core),
            Err(error) => panic!("node {node} does not start: {error}"),
        }
        self.note(|| format!("{node} starts"));
        for effect in effects {
            self.carry_out(node, effect);
        }
        let count = self.nodes[node].sessions;
        self.step(node, Input::Sessions { count });
    }

    /// A node's process is gone, and perhaps its power.
    pub(crate) fn take_down(&mut self, node: usize, power: bool) {
        let Some(_) = self.nodes[node].core.take() else { return };
        self.note(|| format!("{node} is down{}", if power { ", power lost" } else { "" }));
        let target = &mut self.nodes[node];
        target.incarnation += 1;
        target.wanted.clear();
        let pending = std::mem::take(&mut target.pending);
        if let Some(disk) = target.disk.as_mut() {
            for pending in pending.into_values() {
                disk.abandon(pending, &mut self.random);
            }
            if power {
                disk.cut_power(&mut self.random);
            }
        }
        let links: Vec<_> = self.links.iter().map(|(&id, link)| (id, link.ends)).collect();
        for (link, ends) in links {
            if let Some(end) = ends.iter().position(|&end| end == node) {
                if let Some(there) = self.links.get_mut(&link) {
                    there.open[end] = false;
                }
                let lose = self.random.chance(50);
                self.break_link(link, [lose && end == 1, lose && end == 0]);
            }
        }
        self.links.retain(|_, link| link.open != [false; 2]);
    }

    fn path(&mut self, before: usize) -> usize {
        match self.scenario.pinned() {
            Some(node) => node,
            None if self.random.chance(50) => before,
            None => self.random.index(self.nodes.len()),
        }
    }

    fn client_acts(&mut self, client: usize) {
        if self.draining {
            return;
        }
        let node = self.clients[client].node;
        if self.nodes[node].core.is_none() || self.nodes[node].stopping {
            return self.go_elsewhere(client);
        }
        self.commands += 1;
        let id = self.commands;
        let sector_count = VOLUME_SIZE / SECTOR;
        let hot = if self.random.chance(70) { 32 } else { sector_count };
        let first = self.random.below(hot);
        let len = (self.random.below(16) + 1).min(sector_count - first);
        let extent = Extent::new(first * SECTOR, len * SECTOR);
        let mut request =
            Request { id, extent: Some(extent), values: Vec::new(), start: self.now, read: false };
        let command = match self.random.below(100) {
            0..=44 => {
                let values = self.values + 1..self.values + 1 + len;
                self.values += len;
                request.values = values.collect();
                let data = disk::encode(request.values.iter().copied());
                Command::Write { extent, data, fua: self.random.chance(10) }
            }
            45..=49 => {
                request.values = sectors(extent).map(|_| 0).collect();
                Command::Discard { extent }
            }
            50..=57 => {
                request.extent = None;
                Command::Flush
            }
            _ => {
                request.read = true;
                Command::Read { extent }
            }
        };
        self.note(|| format!("{node} client {client} asks {id}: {}", brief_command(&request)));
        self.clients[client].busy = Some(request);
        let patience = self.random.between(200_000, 900_000);
        self.after(patience, Event::GiveUp { client, id });
        self.set_sessions();
        self.step(node, Input::Command { volume: VolumeNumber(0), id: CommandId(id), command });
    }

    fn completed(&mut self, node: usize, id: u64, status: &Status) {
        let mine =
            |client: &Client| client.node == node && client.busy.as_ref().is_some_and(|busy| busy.id == id);
        let Some(client) = self.clients.iter().position(mine) else { return };
        let Some(request) = self.clients[client].busy.take() else { return };
        self.note(|| format!("{node} client {client} answer {id}: {}", brief_status(status)));
        match status {
            Status::Data(data) => {
                self.history.reads += 1;
                let (values, extent) = (disk::decode(data), request.extent.unwrap_or_default());
                for (sector, value) in sectors(extent).zip(values) {
                    let access = Access::Read(value);
                    let operation = Operation { access, start: request.start, end: self.now, done: true };
                    self.history.add(sector, operation);
                }
            }
            Status::Done => self.wrote(&request, true),
            _ => self.wrote(&request, false),
        }
        let wait = self.random.between(300, 6_000);
        if matches!(status, Status::Failed(_)) {
            return self.go_elsewhere(client);
        }
        self.after(wait, Event::Client(client));
    }

    fn wrote(&mut self, request: &Request, done: bool) {
        let Some(extent) = request.extent else {
            if done {
                self.history.flushed(request.start, self.now);
            }
            return;
        };
        if request.read {
            return;
        }
        *(if done { &mut self.history.acknowledged } else { &mut self.history.unknown }) += 1;
        for (sector, &value) in sectors(extent).zip(&request.values) {
            let access = Access::Write(value);
            self.history.add(sector, Operation { access, start: request.start, end: self.now, done });
        }
    }

    /// An initiator waits no longer: its session ends.
    fn give_up(&mut self, client: usize, id: u64) {
        if self.clients[client].busy.as_ref().is_some_and(|busy| busy.id == id)
            && let Some(request) = self.clients[client].busy.take()
        {
            self.note(|| format!("client {client} gives {id} up"));
            self.wrote(&request, false);
            self.go_elsewhere(client);
        }
    }

    fn go_elsewhere(&mut self, client: usize) {
        let before = self.clients[client].node;
        self.clients[client].node = self.path(before);
        self.set_sessions();
        if let Some(node) = self.scenario.pinned() {
            self.ask(node, Verb::Primary { force: false });
        }
        let wait = self.random.between(3_000, 25_000);
        self.after(wait, Event::Client(client));
    }

    fn set_sessions(&mut self) {
        for node in 0..self.nodes.len() {
            let count = self.clients.iter().filter(|client| client.node == node).count();
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            if std::mem::replace(&mut self.nodes[node].sessions, count) != count {
                self.step(node, Input::Sessions { count });
            }
        }
    }

    /// An operator asks a node.
    pub(crate) fn ask(&mut self, node: usize, verb: Verb) {
        self.commands += 1;
        self.note(|| format!("{node} operator {verb:?}"));
        self.step(node, Input::Operator { request: OperatorRequest(self.commands), verb });
    }

    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.quiet = true;
        self.blocked.clear();
        self.note(|| "heals".to_owned());
        for node in 0..self.nodes.len() {
            if let Some(disk) = self.nodes[node].disk.as_mut() {
                disk.broken = None;
            }
            self.start(node);
            self.ask(node, Verb::Connect { peer: None, discard_my_data: false });
        }
    }

    /// Waits until every replica is good and every node connected (P7), then until nothing is under way.
    fn converge(&mut self) -> Result<(), String> {
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            for node in 0..self.nodes.len() {
                let detached = self.nodes[node].disk.is_some()
                    && self.device(node).is_some_and(|state| state == DiskState::Diskless);
                if detached {
                    self.take_down(node, false);
                }
                self.start(node);
            }
            if self.is_whole() {
                return self.drain();
            }
        }
        Err(format!("no convergence: {:#?}", self.nodes.iter().map(Node::status).collect::<Vec<_>>()))
    }

    fn device(&self, node: usize) -> Option<DiskState> {
        let status = self.nodes[node].core.as_ref()?.status();
        status.devices.first().map(|device| device.disk_state)
    }

    fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let Some(status) = node.core.as_ref().map(Resource::status) else { return false };
            let good = |state: DiskState| state == DiskState::UpToDate;
            let connected = status.connections.iter().all(|connection| {
                connection.state == ConnectionState::Connected
                    && connection.peer_devices.iter().all(|device| device.out_of_sync == 0)
            });
            connected && status.devices.iter().all(|device| node.disk.is_none() || good(device.disk_state))
        })
    }

    /// Lets the initiators finish, and checks that they can.
    fn drain(&mut self) -> Result<(), String> {
        let before = self.history.acknowledged;
        for _ in 0..60 {
            self.play(50_000);
            if self.history.acknowledged > before + 3 {
                break;
            }
        }
        if self.history.acknowledged <= before + 3 {
            return Err(format!("nothing is served after healing: {:#?}", self.statuses()));
        }
        self.draining = true;
        for _ in 0..40 {
            self.play(50_000);
            if self.clients.iter().all(|client| client.busy.is_none()) {
                self.play(200_000);
                return if self.is_whole() {
                    Ok(())
                } else {
                    Err(format!("broken when idle: {:#?}", self.statuses()))
                };
            }
        }
        Err(format!("commands are never answered: {:#?}", self.statuses()))
    }

    fn statuses(&self) -> Vec<String> {
        self.nodes.iter().map(Node::status).collect()
    }

    /// Holds the history and the disks to the promises.
    fn judge(&mut self) -> Result<(), String> {
        let images: Vec<Vec<u64>> = self
            .nodes
            .iter()
            .filter_map(|node| node.disk.as_ref())
            .map(|disk| disk.values().collect())
            .collect();
        for image in &images {
            if let Some(sector) = image.iter().zip(&images[0]).position(|(one, other)| one != other) {
                return Err(format!(
                    "sector {sector} differs: {:?}",
                    images.iter().map(|image| image[sector]).collect::<Vec<_>>()
                ));
            }
        }
        let mut history = self.history.clone();
        for (sector, &value) in images[0].iter().enumerate() {
            let access = Access::Read(value);
            history.add(sector, Operation { access, start: self.now, end: self.now, done: true });
        }
        history.judge().map_or(Ok(()), Err)
    }

    /// All power fails at once: what was flushed is still there (P2).
    fn black_out(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.take_down(node, true);
        }
        for node in 0..self.nodes.len() {
            let at = self.random.below(50_000);
            self.after(at, Event::Start(node));
        }
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            if self.is_whole() {
                let disk = self.nodes.iter().find_map(|node| node.disk.as_ref());
                let values: Vec<u64> = disk.map(|disk| disk.values().collect()).unwrap_or_default();
                return self.history.judge_flushes(values.into_iter()).map_or(Ok(()), Err);
            }
        }
        Err(format!("no convergence after a blackout: {:#?}", self.statuses()))
    }
}

impl Node {
    fn new(config: ResourceConfig) -> Self {
        let volume = &config.volumes[0];
        let disk = volume.disks.contains(config.node).then(|| Disk::new(volume.size, metadata_len(volume)));
        Self {
            config,
            core: None,
            incarnation: 0,
            disk,
            pending: BTreeMap::new(),
            wanted: Vec::new(),
            sessions: 0,
            stopping: false,
        }
    }

    fn status(&self) -> String {
        let Some(status) = self.core.as_ref().map(Resource::status) else { return "down".to_owned() };
        let device = &status.devices[0];
        let connections: Vec<String> = status
            .connections
            .iter()
            .map(|connection| {
                let peer = &connection.peer_devices[0];
                format!(
                    "{}: {} {} {} {} dirty {}",
                    connection.peer.0,
                    connection.state,
                    connection.peer_role,
                    peer.replication_state,
                    peer.peer_disk_state,
                    peer.out_of_sync
                )
            })
            .collect();
        format!(
            "{} {} quorum {} suspended {} generation {:x} pending {}/{} {connections:?}",
            status.role,
            device.disk_state,
            device.quorum,
            status.suspended,
            device.generation,
            device.upper_pending,
            device.lower_pending,
        )
    }
}

fn id(node: usize) -> NodeId {
    NodeId(u8::try_from(node).unwrap_or_default())
}

fn brief(packet: &Packet) -> String {
    match packet {
        Packet::Write { sequence, extent, data, mode, missing, .. } => {
            format!(
                "Write {} {extent} {:?} {mode:?} missing {missing}",
                sequence.0,
                disk::decode(data).first()
            )
        }
        Packet::SyncData { extent, data, .. } => {
            format!("SyncData {extent} {:?}", disk::decode(data).first())
        }
        Packet::ReadData { read, data } => format!("ReadData {read} {:?}", disk::decode(data).first()),
        packet => format!("{packet:?}"),
    }
}

fn brief_request(pending: &Pending) -> String {
    let line = format!("{pending:?}");
    line.chars().take(90).collect()
}

fn brief_command(request: &Request) -> String {
    let verb = match (request.extent, request.read) {
        (None, _) => "flush",
        (_, true) => "read",
        _ => "write",
    };
    format!("{verb} {:?} {:?}", request.extent, request.values.first())
}

fn brief_status(status: &Status) -> String {
    match status {
        Status::Data(data) => format!("data {:?}", disk::decode(data)),
        status => format!("{status:?}"),
    }
}

/// How long faults go on, in microseconds.
const RUN_TIME: u64 = 2_500_000;
/// How often, at 50 ms, it is looked whether everything is good again.
const CONVERGE_ROUNDS: u32 = 200;
