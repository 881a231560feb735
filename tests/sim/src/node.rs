//! A node: its core, its disk, and what becomes of both when it dies.

use std::collections::BTreeMap;

use block::VolumeNumber;
use replication::{
    DiskAnswer, DiskError, DiskOp, DiskState, Found, Input, NodeId, Resource, ResourceConfig, metadata_len,
};

use crate::{
    disk::{Disk, Pending},
    history::{Access, Operation},
    world::World,
};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: ResourceConfig,
    pub(crate) core: Option<Resource>,
    pub(crate) incarnation: u64,
    pub(crate) disk: Option<Disk>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) wanted: Vec<NodeId>,
    pub(crate) sessions: u32,
    pub(crate) stopping: bool,
}

impl World {
    pub(crate) fn adopt(&mut self, node: usize) {
        let first = self.values + 1;
        let Some(disk) = self.nodes[node].disk.as_mut() else { return };
        disk.adopt(first);
        for (sector, value) in disk.values().enumerate() {
            self.values = value;
            let access = Access::Write(value);
            self.history.add(sector, Operation { access, start: 0, end: 0, done: true });
        }
    }

    pub(crate) fn disk_ended(&mut self, node: usize, incarnation: u64, op: u64) {
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

    pub(crate) fn device(&self, node: usize) -> Option<DiskState> {
        let status = self.nodes[node].core.as_ref()?.status();
        status.devices.first().map(|device| device.disk_state)
    }

    pub(crate) fn statuses(&self) -> Vec<String> {
        self.nodes.iter().map(Node::status).collect()
    }
}

impl Node {
    pub(crate) fn new(config: ResourceConfig) -> Self {
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

    pub(crate) fn status(&self) -> String {
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
