//! The world around the cores: time, and what happens at which moment.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use replication::{DiskState, Effect, Input, Instant, LinkId, NodeId, OperatorRequest, Packet, Role, Verb};

use crate::{
    client::{Client, FIRST_COMMAND},
    history::History,
    nemesis::{Impaired, Nemesis},
    network::Link,
    node::Node,
    random::Random,
    scenario::{Class, Scenario, VOLUME_SECTORS},
    trace::{brief, brief_request},
    verdict::{Broken, Promise},
};

/// One cluster and everything around it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a phase of its own")]
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) queue: BinaryHeap<Reverse<(u64, u64)>>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) serial: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: BTreeMap<u64, Link>,
    /// Directions in which nothing passes.
    pub(crate) blocked: Vec<(usize, usize)>,
    pub(crate) clients: Vec<Client>,
    pub(crate) values: u64,
    pub(crate) commands: u64,
    pub(crate) history: History,
    /// How often each of two nodes was promoted since they were apart.
    pub(crate) promotions: [u64; 2],
    /// What happens at the second of two nodes that are apart.
    pub(crate) other_history: Option<History>,
    pub(crate) flushes: u64,
    pub(crate) turns: u64,
    /// Blocks that replicas asked for to catch up.
    pub(crate) copied: u64,
    pub(crate) faults: u64,
    /// Since when a node that lost power has not caught up: a second failure then is more than is promised.
    pub(crate) recovering: bool,
    /// Whether an operator holds resyncs up.
    pub(crate) paused: bool,
    pub(crate) quiet: bool,
    pub(crate) draining: bool,
    /// Whether more failed than writes that were not flushed survive.
    pub(crate) dark: bool,
    /// Whether all power has to fail now.
    pub(crate) cut_due: bool,
    pub(crate) impaired: Option<Impaired>,
    /// The request to give a replica up, by its name, node and volume: once it is granted, what was there is of no use.
    pub(crate) giving_up: Option<(u64, usize, usize)>,
    /// The first promise that was broken.
    pub(crate) broken: Option<Broken>,
    pub(crate) trace: bool,
    pub(crate) effects: Vec<Effect>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Disk {
        node: usize,
        incarnation: u64,
        op: u64,
    },
    Up {
        link: u64,
        end: usize,
    },
    Lost {
        link: u64,
        end: usize,
    },
    Packet {
        link: u64,
        end: usize,
        packet: Packet,
    },
    Sent {
        link: u64,
        end: usize,
        packets: u64,
    },
    Wake {
        node: usize,
        incarnation: u64,
    },
    /// A disk was opened again.
    Opened {
        node: usize,
        incarnation: u64,
        volume: block::VolumeNumber,
    },
    Dial,
    Client(usize),
    GiveUp {
        client: usize,
        id: u64,
    },
    Nemesis,
    Start(usize),
}

impl World {
    /// The cluster of a seed in a class, before it starts.
    #[must_use]
    pub fn new(class: Class, seed: u64) -> Self {
        let mut random = class.random(seed);
        let scenario = Scenario::new(class, &mut random);
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
            history: History::new(VOLUME_SECTORS * scenario.volumes),
            faults: 0,
            recovering: false,
            paused: false,
            quiet: false,
            draining: false,
            dark: false,
            cut_due: false,
            impaired: None,
            giving_up: None,
            broken: None,
            promotions: [0; 2],
            other_history: None,
            flushes: 0,
            turns: 0,
            copied: 0,
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
            world.after(FIRST_COMMAND, Event::Client(client));
        }
        world.after(1_000, Event::Dial);
        world.after(150_000, Event::Nemesis);
        world
    }

    /// Faults begin again.
    pub(crate) fn resume_nemesis(&mut self) {
        let next = self.random.between(20_000, 250_000);
        self.after(next, Event::Nemesis);
    }

    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn at(&mut self, time: u64, event: Event) {
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

    /// A promise is broken: the run ends.
    pub(crate) fn breaks(&mut self, promise: Promise, what: impl Into<String>) {
        let broken = Broken::new(promise, what);
        self.note(|| broken.to_string());
        self.broken.get_or_insert(broken);
    }

    /// Lets time pass, until all power has to fail or a promise is broken.
    pub(crate) fn play(&mut self, micros: u64) {
        let until = self.now + micros;
        while let Some(&Reverse((time, serial))) = self.queue.peek() {
            if time > until {
                break;
            }
            if self.cut_due || self.broken.is_some() {
                return;
            }
            self.queue.pop();
            self.now = time;
            if let Some(event) = self.events.remove(&serial) {
                self.happen(event);
            }
        }
        self.now = until;
    }

    pub(crate) fn happen(&mut self, event: Event) {
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
            Event::Opened { node, incarnation, volume } => self.opened(node, incarnation, volume),
            Event::Dial => self.dial(),
            Event::Client(client) => self.client_acts(client),
            Event::GiveUp { client, id } => self.give_up(client, id),
            Event::Nemesis => {
                if !self.quiet {
                    self.books_are_right();
                    Nemesis::strike(self);
                    self.resume_nemesis();
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

    pub(crate) fn instant(&self) -> Instant {
        Instant(Duration::from_micros(self.now))
    }

    pub(crate) fn carry_out(&mut self, node: usize, effect: Effect) {
        let incarnation = self.nodes[node].incarnation;
        match effect {
            Effect::Disk { volume, op, request } => {
                let volume = usize::from(volume.0);
                let Some(disk) = self.nodes[node].disks.get(volume) else { return };
                let pending = disk.begin(request);
                self.note(|| format!("{node} disk {} {}", op.0, brief_request(&pending)));
                self.nodes[node].pending.insert(op.0, (volume, pending));
                let delay = if self.random.chance(5) { 8_000 } else { 600 };
                let delay = self.random.between(20, delay);
                self.after(delay, Event::Disk { node, incarnation, op: op.0 });
            }
            Effect::Send { link, packet, .. } => {
                if let Packet::SyncRequest { extent, .. } = &packet {
                    self.copied += extent.len.div_ceil(4096);
                }
                self.transmit(node, link.0, packet);
            }
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
                if let Some((_, node, volume)) = self.giving_up.take_if(|(asked, ..)| *asked == request.0)
                    && result.is_ok()
                {
                    self.spoil(node, volume);
                }
            }
            Effect::Event(event) => {
                self.note(|| format!("{node} {event:?}"));
                let good = matches!(event, replication::Event::Disk { state: DiskState::UpToDate, .. });
                let promoted = event == replication::Event::Role(Role::Primary);
                if promoted {
                    self.promoted(node);
                    self.promotions.get_mut(node).into_iter().for_each(|count| *count += 1);
                }
                let likely = if promoted { 15 } else { 3 };
                if (good || promoted) && self.may_go_dark() && self.random.chance(likely) {
                    self.cut_due = true;
                }
            }
            Effect::Open { volume } => {
                let delay = self.random.between(20, 2_000);
                self.after(delay, Event::Opened { node, incarnation, volume });
            }
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

    /// An operator asks a node.
    pub(crate) fn ask(&mut self, node: usize, verb: Verb) {
        self.commands += 1;
        self.note(|| format!("{node} operator {verb:?}"));
        self.step(node, Input::Operator { request: OperatorRequest(self.commands), verb });
    }
}

pub(crate) fn id(node: usize) -> NodeId {
    NodeId(u8::try_from(node).unwrap_or_default())
}
