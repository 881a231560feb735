//! A picture of a node's resources: the JSON of `drbdsetup status --json`, with what is ours beside it.
//!
//! Keys and units are DRBD's, so that a script written for it reads what it expects: `size`, `read`, `written`,
//! `received`, `sent` and `out-of-sync` are in KiB, what is in flight is in sectors of 512 bytes.

pub mod explain;
mod names;
mod parting;
mod text;
mod why;

use std::collections::BTreeMap;

use replication::{
    AckMode, ConnectionState, ConnectionStatus, DeviceStatus, DiskState, NodeId, PeerDeviceStatus,
    ReplicationState, ResourceStatus, Role, Suspended,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use parting::{Divergence, Parting, Reason, Written};
pub use text::{causes, render, watch};

use crate::config::{Config, Identity};

/// A resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// This node.
    pub node_id: u8,
    /// This node's role.
    #[serde(with = "names")]
    pub role: Role,
    /// Whether commands are held because they may not be answered now.
    pub suspended: bool,
    /// How the order of writes is kept on disks: always by flushes.
    pub write_ordering: String,
    /// The volumes on this node.
    pub devices: Vec<Device>,
    /// The peers.
    pub connections: Vec<Connection>,
    /// Who is logged in. Ours.
    pub sessions: Vec<Session>,
    /// The generation of the first volume's data, in hexadecimal. Ours.
    pub generation: String,
    /// The cluster's identity, which `cluster.id` can pin. Ours.
    pub cluster_id: String,
}

/// A volume on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// Its number.
    pub volume: u16,
    /// The local disk.
    #[serde(with = "names")]
    pub disk_state: DiskState,
    /// What is wrong with the local disk; absent where nothing is. Ours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
    /// Whether this node is diskless by intent.
    pub client: bool,
    /// Whether this node has quorum.
    pub quorum: bool,
    /// In KiB.
    pub size: u64,
    /// Read from the local disk, in KiB.
    pub read: u64,
    /// Written to the local disk, in KiB.
    pub written: u64,
    /// Transactions of the activity log.
    pub al_writes: u64,
    /// Writes of the bitmap.
    pub bm_writes: u64,
    /// Commands of initiators that are not answered yet.
    pub upper_pending: u64,
    /// Operations of the local disk that have not ended yet.
    pub lower_pending: u64,
    /// The generation of the data, in hexadecimal. Ours.
    pub generation: String,
    /// Whether nothing was ever written to the local disk; absent where something was. Ours.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub fresh: bool,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Connection {
    /// Its id.
    pub peer_node_id: u8,
    /// Its name.
    pub name: String,
    /// The connection.
    #[serde(with = "names")]
    pub connection_state: ConnectionState,
    /// Why this node and the peer do not come together; absent where they do, or where the peer does not answer. Ours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
    /// Whether its send queue is over its bound.
    pub congested: bool,
    /// Its role.
    #[serde(with = "names")]
    pub peer_role: Role,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The acknowledgement mode of writes to it. Ours.
    #[serde(with = "names")]
    pub protocol: AckMode,
    /// Application writes sent and not acknowledged, in sectors.
    pub ap_in_flight: u64,
    /// Resync sent and not acknowledged, in sectors.
    pub rs_in_flight: u64,
    /// Its replicas.
    #[serde(rename = "peer_devices")]
    pub peer_devices: Vec<PeerDevice>,
    /// Why the connection is not wanted any more; absent where it is. Ours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parting: Option<Parting>,
}

/// A peer's replica of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerDevice {
    /// The volume.
    pub volume: u16,
    /// What happens between it and ours.
    #[serde(with = "names")]
    pub replication_state: ReplicationState,
    /// The peer's disk.
    #[serde(with = "names")]
    pub peer_disk_state: DiskState,
    /// Whether the peer is diskless by intent.
    pub peer_client: bool,
    /// Who holds a resync up: `no`, `user` (here), `peer`, both of these, or `dependency`.
    pub resync_suspended: String,
    /// In KiB.
    pub received: u64,
    /// In KiB.
    pub sent: u64,
    /// In KiB.
    pub out_of_sync: u64,
    /// Requests sent to it that are not answered yet.
    pub pending: u64,
    /// Requests received from it that are not answered yet.
    pub unacked: u64,
    /// How much of the volume is known to be equal, 0 to 100.
    pub percent_in_sync: f64,
    /// How long a running resync still takes; absent where none runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub estimated_seconds_to_finish: Option<u64>,
}

/// One session of an initiator or controller of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Session {
    /// The initiator's IQN or the host's NQN.
    pub initiator: String,
    /// `iscsi` or `nvme-tcp`.
    pub transport: String,
    /// Where it comes from.
    pub address: String,
}

/// What a picture needs beside what the core knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    cluster: Uuid,
    nodes: BTreeMap<NodeId, String>,
}

impl Names {
    /// The names of a configuration.
    #[must_use]
    pub fn new(config: &Config, identity: Identity) -> Self {
        let nodes = config.nodes.iter().map(|node| (node.id, node.name.clone())).collect();
        Self { cluster: identity.cluster(), nodes }
    }

    /// A node's name.
    #[must_use]
    pub fn node(&self, id: NodeId) -> String {
        self.nodes.get(&id).cloned().unwrap_or_else(|| id.0.to_string())
    }
}

impl Resource {
    /// The picture of what the core says and of who is logged in.
    #[must_use]
    pub fn new(status: &ResourceStatus, sessions: Vec<Session>, names: &Names) -> Self {
        let devices: Vec<Device> = status.devices.iter().map(Device::new).collect();
        Self {
            name: status.name.clone(),
            node_id: status.node.0,
            role: status.role,
            suspended: status.suspended,
            write_ordering: "flush".to_owned(),
            generation: devices.first().map_or_else(|| generation(0), |device| device.generation.clone()),
            devices,
            connections: status.connections.iter().map(|peer| Connection::new(peer, names)).collect(),
            sessions,
            cluster_id: names.cluster.to_string(),
        }
    }

    /// Whether every peer is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connections.iter().all(|peer| peer.connection_state == ConnectionState::Connected)
    }

    /// Whether every peer is connected and every replica of every node is `UpToDate`.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        let good = |state, client| state == DiskState::UpToDate || client;
        let here = self.devices.iter().all(|device| good(device.disk_state, device.client));
        let mut there = self.connections.iter().flat_map(|peer| &peer.peer_devices);
        self.is_connected() && here && there.all(|device| good(device.peer_disk_state, device.peer_client))
    }
}

impl Device {
    fn new(status: &DeviceStatus) -> Self {
        Self {
            volume: status.volume.0,
            disk_state: status.disk_state,
            trouble: status.trouble.clone(),
            client: status.client,
            quorum: status.quorum,
            size: status.size / KIB,
            read: status.read / KIB,
            written: status.written / KIB,
            al_writes: status.al_writes,
            bm_writes: status.bm_writes,
            upper_pending: status.upper_pending,
            lower_pending: status.lower_pending,
            generation: generation(status.generation),
            fresh: status.fresh,
        }
    }
}

impl Connection {
    fn new(status: &ConnectionStatus, names: &Names) -> Self {
        Self {
            peer_node_id: status.peer.0,
            name: names.node(status.peer),
            connection_state: status.state,
            trouble: status.trouble.clone(),
            congested: status.congested,
            peer_role: status.peer_role,
            tls: false,
            protocol: status.protocol,
            ap_in_flight: status.ap_in_flight / SECTOR,
            rs_in_flight: status.rs_in_flight / SECTOR,
            peer_devices: status.peer_devices.iter().map(PeerDevice::new).collect(),
            parting: status.parting.as_ref().map(Parting::new),
        }
    }
}

impl PeerDevice {
    fn new(status: &PeerDeviceStatus) -> Self {
        Self {
            volume: status.volume.0,
            replication_state: status.replication_state,
            peer_disk_state: status.peer_disk_state,
            peer_client: status.peer_client,
            resync_suspended: suspended(status.resync_suspended).to_owned(),
            received: status.received / KIB,
            sent: status.sent / KIB,
            // What differs by a sector differs.
            out_of_sync: status.out_of_sync.div_ceil(KIB),
            pending: status.pending,
            unacked: status.unacked,
            percent_in_sync: (status.percent_in_sync * 100.0).floor() / 100.0,
            estimated_seconds_to_finish: status.estimated_seconds_to_finish,
        }
    }

    /// Whether something is being copied or about to be.
    #[must_use]
    pub const fn is_syncing(&self) -> bool {
        use ReplicationState::{
            PausedSyncS, PausedSyncT, StartingSyncS, StartingSyncT, SyncSource, SyncTarget, WFBitMapS,
            WFBitMapT,
        };
        matches!(
            self.replication_state,
            StartingSyncS
                | StartingSyncT
                | WFBitMapS
                | WFBitMapT
                | SyncSource
                | SyncTarget
                | PausedSyncS
                | PausedSyncT
        )
    }
}

const fn suspended(by: Option<Suspended>) -> &'static str {
    match by {
        None => "no",
        Some(Suspended::Here) => "user",
        Some(Suspended::There) => "peer",
        Some(Suspended::Both) => "user,peer",
        Some(Suspended::Dependency) => "dependency",
    }
}

fn generation(id: u64) -> String {
    format!("{id:016X}")
}

const KIB: u64 = 1024;
const SECTOR: u64 = 512;

#[cfg(test)]
pub(crate) mod tests;
