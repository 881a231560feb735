//! A node: its core, its disk, and what becomes of both when it dies.

use std::collections::BTreeMap;

use block::VolumeNumber;
use replication::{
    DiskAnswer, DiskError, DiskOp, DiskState, Input, NodeId, Resource, ResourceConfig, metadata_len,
};

use crate::{
    disk::{Disk, Pending},
    history::{Access, Operation},
    scenario::VOLUME_SECTORS,
    verdict::Promise,
    world::{Event, World},
};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: ResourceConfig,
    pub(crate) core: Option<Resource>,
    pub(crate) incarnation: u64,
    /// A disk for each volume; none on a diskless node.
    pub(crate) disks: Vec<Disk>,
    /// What the disks work on, and of which volume it is.
    pub(crate) pending: BTreeMap<u64, (usize, Pending)>,
    pub(crate) wanted: Vec<NodeId>,
    pub(crate) sessions: u32,
    pub(crate) stopping: bool,
}

impl World {
    pub(crate) fn adopt(&mut self, node: usize) {
        for volume in 0..self.nodes[node].disks.len() {
            let first = self.values + 1;
            let disk = &mut self.nodes[node].disks[volume];
            disk.adopt(first);
            for (sector, value) in disk.values().enumerate() {
                self.values = value;
                let access = Access::Write(value);
                let sector = volume * VOLUME_SECTORS + sector;
                self.history.add(sector, Operation { access, start: 0, end: 0, done: true });
            }
        }
    }

    /// What a replica held that was given up is of no use to anyone.
    pub(crate) fn spoil(&mut self, node: usize, volume: usize) {
        self.note(|| format!("{node} disk {volume} is spoilt"));
        self.turns += 1;
        let first = self.values + 1;
        self.values += VOLUME_SECTORS as u64;
        self.nodes[node].disks[volume].overwrite(first);
    }

    pub(crate) fn disk_ended(&mut self, node: usize, incarnation: u64, op: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let target = &mut self.nodes[node];
        let Some(&(volume, _)) = target.pending.get(&op) else { return };
        let disk = &mut target.disks[volume];
        if disk.frozen {
            return disk.kept.push(op);
        }
        let Some((_, pending)) = target.pending.remove(&op) else { return };
        let result: Result<DiskAnswer, DiskError> = disk.end(pending);
        self.step(node, Input::Disk { op: DiskOp(op), result });
    }

    /// A frozen disk goes on.
    pub(crate) fn thaw(&mut self, node: usize, volume: usize) {
        let incarnation = self.nodes[node].incarnation;
        let disk = &mut self.nodes[node].disks[volume];
        disk.frozen = false;
        for op in std::mem::take(&mut disk.kept) {
            let delay = self.random.between(20, 600);
            self.after(delay, Event::Disk { node, incarnation, op });
        }
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
        let found = (0..).zip(&target.disks).map(|(volume, disk)| (VolumeNumber(volume), disk.found()));
        let mut effects = Vec::new();
        let config = target.config.clone();
        match Resource::new(config, found.collect(), entropy, now, &mut effects) {
            Ok(core) => target.core = Some(core),
            Err(error) => return self.breaks(Promise::P10, format!("node {node} does not start: {error}")),
        }
        self.note(|| format!("{node} starts"));
        for effect in effects {
            self.carry_out(node, effect);
        }
        let count = self.nodes[node].sessions;
        self.step(node, Input::Sessions { count });
    }

    /// What a node's shell opened is there.
    pub(crate) fn opened(&mut self, node: usize, incarnation: u64, volume: VolumeNumber) {
        let target = &self.nodes[node];
        if target.incarnation == incarnation && target.core.is_some() {
            let found = target.disks[usize::from(volume.0)].found();
            self.step(node, Input::Opened { volume, found });
        }
    }

    /// A node's process is gone, and perhaps its power.
    pub(crate) fn take_down(&mut self, node: usize, power: bool) {
        let Some(_) = self.nodes[node].core.take() else { return };
        self.note(|| format!("{node} is down{}", if power { ", power lost" } else { "" }));
        let target = &mut self.nodes[node];
        target.incarnation += 1;
        target.wanted.clear();
        let pending = std::mem::take(&mut target.pending);
        for (volume, pending) in pending.into_values() {
            target.disks[volume].abandon(pending, &mut self.random);
        }
        for disk in &mut target.disks {
            disk.kept.clear();
            if power {
                disk.cut_power(&mut self.random);
            }
        }
        if power {
            self.held_to_its_flushes(node);
        }
        self.books_are_right();
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

    /// The states of a node's replicas, where it is up.
    pub(crate) fn devices(&self, node: usize) -> Vec<DiskState> {
        let status = self.nodes[node].core.as_ref().map(Resource::status);
        status.map_or_else(Vec::new, |status| status.devices.iter().map(|device| device.disk_state).collect())
    }

    /// Whether a disk of the node was given up.
    pub(crate) fn is_detached(&self, node: usize) -> bool {
        !self.nodes[node].disks.is_empty() && self.devices(node).contains(&DiskState::Diskless)
    }

    /// What the disks of a node hold, one volume after the other.
    pub(crate) fn image(&self, node: usize) -> Vec<u64> {
        self.nodes[node].disks.iter().flat_map(Disk::values).collect()
    }

    pub(crate) fn statuses(&self) -> Vec<String> {
        self.nodes.iter().map(Node::status).collect()
    }
}

impl Node {
    pub(crate) fn new(config: ResourceConfig) -> Self {
        let mine = config.volumes.iter().filter(|volume| volume.disks.contains(config.node));
        let disks = mine.map(|volume| Disk::new(volume.size, metadata_len(volume))).collect();
        Self {
            config,
            core: None,
            incarnation: 0,
            disks,
            pending: BTreeMap::new(),
            wanted: Vec::new(),
            sessions: 0,
            stopping: false,
        }
    }

    /// A picture of the node for a message.
    pub(crate) fn status(&self) -> String {
        let Some(status) = self.core.as_ref().map(Resource::status) else { return "down".to_owned() };
        let connections = status.connections.iter().flat_map(|connection| {
            connection.peer_devices.iter().map(|peer| {
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
        });
        let devices = status.devices.iter().map(|device| {
            format!(
                "{} quorum {} generation {:x} pending {}/{}",
                device.disk_state,
                device.quorum,
                device.generation,
                device.upper_pending,
                device.lower_pending
            )
        });
        let (devices, connections): (Vec<_>, Vec<_>) = (devices.collect(), connections.collect());
        format!("{} suspended {} {devices:?} {connections:?}", status.role, status.suspended)
    }
}
