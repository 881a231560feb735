//! Initiators: what they ask, what they make of the answer, and where they go when none comes.

use block::{Command, CommandId, Extent, Status, VolumeNumber};
use replication::{Input, Verb};

use crate::{
    disk::{self, SECTOR, sectors},
    history::{Access, Operation},
    scenario::VOLUME_SIZE,
    trace::{brief_command, brief_status},
    world::{Event, World},
};

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) node: usize,
    pub(crate) busy: Option<Request>,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) extent: Option<Extent>,
    pub(crate) values: Vec<u64>,
    pub(crate) start: u64,
    pub(crate) read: bool,
}

impl World {
    pub(crate) fn path(&mut self, before: usize) -> usize {
        match self.scenario.pinned() {
            Some(node) => node,
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

    pub(crate) fn completed(&mut self, node: usize, id: u64, status: &Status) {
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

    pub(crate) fn wrote(&mut self, request: &Request, done: bool) {
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
    pub(crate) fn give_up(&mut self, client: usize, id: u64) {
        if self.clients[client].busy.as_ref().is_some_and(|busy| busy.id == id)
            && let Some(request) = self.clients[client].busy.take()
        {
            self.note(|| format!("client {client} gives {id} up"));
            self.wrote(&request, false);
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
}
