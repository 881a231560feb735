//! Initiators: what they ask, what they make of the answer, and where they go when none comes.

use std::ops::Range;

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use replication::{Input, Verb};

use crate::{
    disk::{self, SECTOR, sectors},
    history::{Access, FlushPoint, Operation},
    scenario::{Class, Kind, VOLUME_SECTORS},
    trace::{brief_command, brief_status},
    world::{Event, World},
};

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) node: usize,
    pub(crate) busy: Option<Request>,
    /// What it saw last, for a read-modify-write.
    seen: Option<(usize, Extent, Vec<u64>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) volume: usize,
    pub(crate) verb: What,
    pub(crate) extent: Extent,
    /// What is stored.
    pub(crate) values: Vec<u64>,
    /// What a read-modify-write compares with.
    old: Vec<u64>,
    fua: bool,
    pub(crate) start: u64,
    /// The disks that a flush has to reach: nodes, and the links to them.
    reached: Vec<(usize, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Write,
    Zeroes,
    Swap,
    Flush,
}

impl World {
    pub(crate) fn path(&mut self, before: usize) -> usize {
        match self.scenario.pinned() {
            Some(node) => node,
            None if self.scenario.kind == Kind::Apart => before,
            None if self.random.chance(50) => before,
            None => self.random.index(self.nodes.len()),
        }
    }

    pub(crate) fn client_acts(&mut self, client: usize) {
        if self.draining {
            return;
        }
        let node = self.clients[client].node;
        if self.nodes[node].core.is_none() || self.nodes[node].stopping {
            return self.go_elsewhere(client);
        }
        let (mut request, command) = self.choose(client);
        let id = request.id;
        if command == Command::Flush || request.fua {
            request.reached = self.reached(node, request.volume);
        }
        self.note(|| format!("{node} client {client} asks {id}: {}", brief_command(&request)));
        let volume = VolumeNumber(u16::try_from(request.volume).unwrap_or_default());
        self.clients[client].busy = Some(request);
        let patience = self.random.between(200_000, 900_000);
        self.after(patience, Event::GiveUp { client, id });
        self.set_sessions();
        self.step(node, Input::Command { volume, id: CommandId(id), command });
    }

    /// What an initiator asks next.
    fn choose(&mut self, client: usize) -> (Request, Command) {
        self.commands += 1;
        let (id, rich) = (self.commands, self.scenario.rich);
        let volumes = self.scenario.volumes;
        let volume = if volumes > 1 { self.random.index(volumes) } else { 0 };
        let sector_count = VOLUME_SECTORS as u64;
        let hot = if self.random.chance(70) { 32 } else { sector_count };
        let first = self.random.below(hot);
        let len = (self.random.below(16) + 1).min(sector_count - first);
        let extent = Extent::new(first * SECTOR, len * SECTOR);
        let mut request = Request {
            id,
            volume,
            verb: What::Read,
            extent,
            values: Vec::new(),
            old: Vec::new(),
            fua: false,
            start: self.now,
            reached: Vec::new(),
        };
        let flush = 50 + self.scenario.flushes;
        let command = match self.random.below(100) {
            0..=44 if rich && self.random.chance(15) => return self.swap(client, request),
            0..=44 => {
                request.verb = What::Write;
                request.values = self.fresh_values(len);
                let data = disk::encode(request.values.iter().copied());
                request.fua = self.random.chance(10);
                Command::Write { extent, data, fua: request.fua }
            }
            45..=49 => {
                request.verb = What::Zeroes;
                let len = if rich { (len * 4).min(sector_count - first) } else { len };
                request.extent = Extent::new(first * SECTOR, len * SECTOR);
                request.values = sectors(request.extent).map(|_| 0).collect();
                let extent = request.extent;
                if rich && self.random.chance(50) {
                    request.fua = self.random.chance(30);
                    Command::WriteZeroes { extent, unmap: self.random.chance(50), fua: request.fua }
                } else {
                    Command::Discard { extent }
                }
            }
            chance if chance < flush => {
                request.verb = What::Flush;
                Command::Flush
            }
            _ => Command::Read { extent },
        };
        (request, command)
    }

    /// A read-modify-write of what the initiator saw last; a read where it saw nothing.
    fn swap(&mut self, client: usize, mut request: Request) -> (Request, Command) {
        let Some((volume, extent, old)) = self.clients[client].seen.take() else {
            let extent = request.extent;
            return (request, Command::Read { extent });
        };
        let len = self.random.index(2) + 1;
        let len = len.min(old.len());
        request.verb = What::Swap;
        request.volume = volume;
        request.extent = Extent::new(extent.offset, len as u64 * SECTOR);
        request.values = self.fresh_values(len as u64);
        request.old = old[..len].to_vec();
        request.fua = self.random.chance(10);
        let bytes = |values: &[u64]| disk::encode(values.iter().copied()).to_bytes();
        let (compare, write) = (bytes(&request.old), bytes(&request.values));
        let (extent, fua) = (request.extent, request.fua);
        (request, Command::CompareAndWrite { extent, compare, write, fua })
    }

    /// Numbers that were never written before.
    fn fresh_values(&mut self, len: u64) -> Vec<u64> {
        let first = self.values + 1;
        self.values += len;
        (first..first + len).collect()
    }

    pub(crate) fn completed(&mut self, node: usize, id: u64, status: &Status) {
        let mine =
            |client: &Client| client.node == node && client.busy.as_ref().is_some_and(|busy| busy.id == id);
        let Some(client) = self.clients.iter().position(mine) else { return };
        let Some(request) = self.clients[client].busy.take() else { return };
        self.note(|| format!("{node} client {client} answer {id}: {}", brief_status(status)));
        let changes = request.verb != What::Read;
        if changes && *status == Status::Done {
            self.acknowledged_with_quorum(node);
        }
        match status {
            Status::Data(data) => {
                self.history_of(node).reads += 1;
                let values = disk::decode(data);
                self.saw(node, &request, &values);
                self.clients[client].seen = Some((request.volume, request.extent, values));
            }
            Status::Done => self.wrote(node, &request, true),
            Status::Miscompare { offset } => {
                let equal = usize::try_from(offset / SECTOR).unwrap_or_default().min(request.old.len());
                self.saw(node, &request, &request.old[..equal]);
            }
            _ => self.wrote(node, &request, false),
        }
        if let Status::Failed(failure) = status {
            self.held_to_its_word_about_errors(node, *failure);
        }
        let wait = self.random.between(300, 6_000);
        if matches!(status, Status::Failed(_)) {
            return self.go_elsewhere(client);
        }
        self.after(wait, Event::Client(client));
    }

    /// The sectors of the history that a request is about.
    pub(crate) fn places(request: &Request) -> Range<usize> {
        let sectors = sectors(request.extent);
        let first = request.volume * VOLUME_SECTORS;
        first + sectors.start..first + sectors.end
    }

    fn saw(&mut self, node: usize, request: &Request, values: &[u64]) {
        let end = self.now;
        let history = self.history_of(node);
        for (sector, &value) in Self::places(request).zip(values) {
            let access = Access::Read(value);
            history.add(sector, Operation { access, start: request.start, end, done: true });
        }
    }

    fn wrote(&mut self, node: usize, request: &Request, done: bool) {
        let end = self.now;
        if done && !request.reached.is_empty() {
            self.flushed(node, request);
        }
        if done && request.verb == What::Swap {
            self.saw(node, request, &request.old);
        }
        let history = self.history_of(node);
        match request.verb {
            What::Flush | What::Read => return,
            _ if done => history.acknowledged += 1,
            _ => history.unknown += 1,
        }
        for (index, sector) in Self::places(request).enumerate() {
            let access = Access::Write(request.values[index]);
            history.add(sector, Operation { access, start: request.start, end, done });
            if done && request.verb == What::Swap {
                history.add_swap(sector, request.old[index], request.values[index]);
            }
        }
    }

    fn flushed(&mut self, node: usize, request: &Request) {
        let still = self.reached(node, request.volume);
        let reached = request.reached.iter().filter(|disk| still.contains(disk));
        let nodes = reached.fold(0, |nodes, (node, _)| nodes | 1 << node);
        let first = request.volume * VOLUME_SECTORS;
        let point = if request.verb == What::Flush {
            let sectors = first..first + VOLUME_SECTORS;
            FlushPoint { sectors, before: request.start, values: None, nodes }
        } else {
            let values = Some(request.values.clone());
            FlushPoint { sectors: Self::places(request), before: self.now, values, nodes }
        };
        self.history_of(node).flushed(point);
        if request.verb == What::Flush && self.may_go_dark() && self.random.chance(8) {
            self.cut_due = true;
        }
    }

    /// Whether all power may fail now: not before the initiators began.
    pub(crate) fn may_go_dark(&self) -> bool {
        self.scenario.class == Class::PowerCut && !self.quiet && self.now > FIRST_COMMAND
    }

    /// An initiator waits no longer: its session ends.
    pub(crate) fn give_up(&mut self, client: usize, id: u64) {
        if self.clients[client].busy.as_ref().is_some_and(|busy| busy.id == id)
            && let Some(request) = self.clients[client].busy.take()
        {
            self.note(|| format!("client {client} gives {id} up"));
            let node = self.clients[client].node;
            self.wrote(node, &request, false);
            self.go_elsewhere(client);
        }
    }

    pub(crate) fn go_elsewhere(&mut self, client: usize) {
        let before = self.clients[client].node;
        self.clients[client].node = self.path(before);
        self.set_sessions();
        if let Some(node) = self.scenario.pinned() {
            self.ask(node, Verb::Primary { force: false });
        }
        let wait = self.random.between(3_000, 25_000);
        self.after(wait, Event::Client(client));
    }

    pub(crate) fn set_sessions(&mut self) {
        for node in 0..self.nodes.len() {
            let count = self.clients.iter().filter(|client| client.node == node).count();
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            if std::mem::replace(&mut self.nodes[node].sessions, count) != count {
                self.step(node, Input::Sessions { count });
            }
        }
    }

    /// An initiator that paused goes on.
    pub(crate) fn resume(&mut self, client: usize) {
        let wait = self.random.between(300, 6_000);
        self.after(wait, Event::Client(client));
    }
}

/// When the initiators begin, in microseconds.
pub(crate) const FIRST_COMMAND: u64 = 60_000;
