//! A picture of a resource for operators: the keys of `drbdsetup status --json`.

use block::VolumeNumber;

use crate::{AckMode, ConnectionState, DiskState, NodeId, ReplicationState, Role};

/// A resource.
#[derive(Clone, Debug)]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// This node.
    pub node: NodeId,
    /// This node's role.
    pub role: Role,
    /// Whether commands are held because they may not be answered now.
    pub suspended: bool,
    /// Its volumes on this node.
    pub devices: Vec<DeviceStatus>,
    /// Its peers.
    pub connections: Vec<ConnectionStatus>,
}

/// A volume on this node.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// The volume.
    pub volume: VolumeNumber,
    /// The local disk.
    pub disk_state: DiskState,
    /// What is wrong with the local disk, in words for an operator.
    pub trouble: Option<String>,
    /// Whether this node is diskless by intent.
    pub client: bool,
    /// Whether the node has quorum.
    pub quorum: bool,
    /// In bytes.
    pub size: u64,
    /// Bytes read from the local disk.
    pub read: u64,
    /// Bytes written to the local disk.
    pub written: u64,
    /// Transactions of the activity log.
    pub al_writes: u64,
    /// Writes of the bitmap.
    pub bm_writes: u64,
    /// Commands of initiators that are not answered yet.
    pub upper_pending: u64,
    /// Operations of the local disk that have not ended yet.
    pub lower_pending: u64,
    /// The generation of the data, of 64 bits; 0 where there is none.
    pub generation: u64,
    /// Whether nothing was ever written to the local disk.
    pub fresh: bool,
}

/// A peer.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The peer.
    pub peer: NodeId,
    /// The connection.
    pub state: ConnectionState,
    /// Why the last attempt to connect failed, in words for an operator. The core does not know: its shell fills it in.
    pub trouble: Option<String>,
    /// The peer's role.
    pub peer_role: Role,
    /// The acknowledgement mode of writes to it.
    pub protocol: AckMode,
    /// Whether its send queue is over its bound.
    pub congested: bool,
    /// Bytes of application writes sent and not acknowledged.
    pub ap_in_flight: u64,
    /// Bytes of resync that the SyncTarget asked for and that are not said to be on its disk.
    pub rs_in_flight: u64,
    /// Its replicas.
    pub peer_devices: Vec<PeerDeviceStatus>,
    /// Why the connection is not wanted any more.
    pub parting: Option<Parting>,
}

/// What holds a resync up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    /// An operator of this node.
    Here,
    /// An operator of the peer.
    There,
    /// Operators of both.
    Both,
    /// Another resync, or the peer's state.
    Dependency,
}

/// Why a connection is not wanted any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parting {
    /// An operator disconnected, here or there.
    Disconnected,
    /// Split brain.
    Diverged {
        /// What was written where. Empty where only the peer has found it.
        volumes: Vec<Divergence>,
        /// The policy that did not decide, in words.
        policy: String,
    },
    /// The ends hold volumes that have nothing in common, or differ in size.
    Unrelated,
}

/// What both ends of a connection wrote to a volume while they were apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The volume.
    pub volume: VolumeNumber,
    /// On this node.
    pub here: Written,
    /// On the peer.
    pub there: Written,
}

/// What one end wrote to a volume since it was in step with the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// In bytes, in whole blocks of 4 KiB: an upper bound after a crash.
    pub changed: u64,
    /// The generation of its data.
    pub generation: u64,
    /// The generation that both had; 0 where it is not known.
    pub since: u64,
    /// Whether the node was Primary when the two met again.
    pub primary: bool,
}

/// A peer's replica of a volume.
#[derive(Clone, Debug)]
pub struct PeerDeviceStatus {
    /// The volume.
    pub volume: VolumeNumber,
    /// What happens between it and ours.
    pub replication_state: ReplicationState,
    /// The peer's disk.
    pub peer_disk_state: DiskState,
    /// Whether the peer is diskless by intent.
    pub peer_client: bool,
    /// What holds a resync up, where something does.
    pub resync_suspended: Option<Suspended>,
    /// Bytes received from it.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes that differ, as far as known.
    pub out_of_sync: u64,
    /// Requests sent to it that are not answered yet.
    pub pending: u64,
    /// Requests received from it that are not answered yet.
    pub unacked: u64,
    /// How much of the volume is known to be equal, 0 to 100.
    pub percent_in_sync: f64,
    /// Seconds until a running resync ends, where that can be told.
    pub estimated_seconds_to_finish: Option<u64>,
}
