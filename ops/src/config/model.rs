//! A configuration that passed every check: what the daemon runs by.
//!
//! Two configurations compare equal exactly when a running node has nothing to do to get from one to the other.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use block::{BlockSize, VolumeNumber};
use replication::{AckMode, AfterSplitBrain, NodeId, Quorum, ReadBalancing};
use uuid::Uuid;

/// The whole file. Its names are unique, and what it refers to exists in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What all nodes share.
    pub cluster: Cluster,
    /// The machines, ordered by id.
    pub nodes: Vec<Node>,
    /// The resources, in the order of the file.
    pub resources: Vec<Resource>,
}

/// What all nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name. Nodes of another cluster are refused.
    pub name: String,
    /// The file with the secret that nodes prove to each other. Present where there are two nodes or more.
    pub secret_file: Option<PathBuf>,
    /// The identity that devices' identifiers derive from; where absent, name and secret stand for it.
    pub id: Option<Uuid>,
    /// Certificates for the connections between nodes.
    pub tls: Option<Tls>,
}

/// Certificates for the connections between nodes; `{node}` in a path stands for the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed every node's certificate, in PEM.
    pub ca: PathBuf,
    /// The node's certificate, in PEM.
    pub certificate: PathBuf,
    /// The node's private key, in PEM.
    pub key: PathBuf,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its number, 0 to 31.
    pub id: NodeId,
    /// Where it listens for peers. Present where there are two nodes or more.
    pub replication: Option<Address>,
    /// Where it listens for iSCSI initiators.
    pub iscsi: Vec<Address>,
    /// Where it listens for NVMe/TCP hosts.
    pub nvme_tcp: Vec<Address>,
    /// What discovery tells instead of the addresses above.
    pub advertise: Advertise,
    /// Where `/metrics` and the status page are.
    pub metrics: Option<Address>,
    /// The Unix socket of the admin API.
    pub admin: PathBuf,
}

/// What discovery tells, where nodes are reached by other addresses than those they listen on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertise {
    /// Instead of [`Node::iscsi`], unless empty.
    pub iscsi: Vec<Address>,
    /// Instead of [`Node::nvme_tcp`], unless empty.
    pub nvme_tcp: Vec<Address>,
}

/// A TCP address: an IP address or a host name, and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An IPv4 or IPv6 address.
    Ip(SocketAddr),
    /// A host name, which the system resolves.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Volumes that share a role, connections and one write order. Every node of the file takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// Its volumes, ordered by number; at least one.
    pub volumes: Vec<Volume>,
    /// What holds for a connection that is not in `connections`.
    pub connection: Connection,
    /// Connections that differ, by their two nodes, the smaller id first.
    pub connections: BTreeMap<(NodeId, NodeId), Connection>,
    /// How local disks are treated.
    pub disk: DiskOptions,
    /// When the resource may serve.
    pub options: ResourceOptions,
    /// How initiators see it.
    pub export: Export,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its number: the LUN.
    pub number: VolumeNumber,
    /// In bytes; a multiple of 4096.
    pub size: u64,
    /// The logical block.
    pub block_size: BlockSize,
    /// The block that the disks handle best, as initiators are told; at least `block_size`.
    pub physical_block_size: BlockSize,
    /// Whether initiators may only read it.
    pub read_only: bool,
    /// The backing file or device of each diskful node.
    pub disks: BTreeMap<NodeId, PathBuf>,
    /// Where a node keeps its metadata apart from the data.
    pub metadata: BTreeMap<NodeId, PathBuf>,
}

/// What holds between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// When the peer counts as having a write.
    pub protocol: AckMode,
    /// Timeouts and buffers.
    pub net: NetOptions,
}

/// Timeouts and buffers of a connection, with DRBD's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetOptions {
    /// How long a peer may take to answer a request.
    pub timeout: Duration,
    /// How many times `timeout` the peer may be late with a write before it is dropped; 0: for ever.
    pub ko_count: u32,
    /// How long a connection may be silent before the peer is asked whether it lives.
    pub ping_int: Duration,
    /// How long it may take to answer that.
    pub ping_timeout: Duration,
    /// The longest pause between two attempts to connect.
    pub connect_int: Duration,
    /// How much of a peer's writes may wait here, in buffers of 4096 bytes.
    pub max_buffers: u32,
    /// The socket's send buffer, in bytes; 0: the system decides.
    pub sndbuf_size: u32,
    /// The socket's receive buffer, in bytes; 0: the system decides.
    pub rcvbuf_size: u32,
    /// What two nodes do by themselves about a split brain.
    pub after_split_brain: AfterSplitBrain,
}

/// How local disks are treated, with DRBD's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// What a medium error does.
    pub on_io_error: OnIoError,
    /// How long a disk may take before it counts as failed; zero: for ever.
    pub disk_timeout: Duration,
    /// How many extents of 4 MiB the activity log holds.
    pub al_extents: u32,
    /// Which replica serves a read.
    pub read_balancing: ReadBalancing,
}

/// What a medium error does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnIoError {
    /// The disk is given up, and the peers serve.
    Detach,
    /// The command fails, and the disk stays.
    PassOn,
}

/// When a resource may serve, with DRBD's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceOptions {
    /// How many nodes must see each other for writes to be acknowledged.
    pub quorum: Quorum,
    /// Whether the first session that touches the medium makes a node Primary.
    pub auto_promote: bool,
}

/// How initiators see a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The iSCSI target's name.
    pub iqn: String,
    /// The NVMe subsystem's name.
    pub nqn: String,
    /// What an initiator proves.
    pub chap: Option<Chap>,
    /// What the target proves to an initiator that asks.
    pub chap_mutual: Option<Chap>,
    /// Who may log in.
    pub allow: Allow,
}

/// A user of CHAP. The secret stays in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// The name.
    pub user: String,
    /// The file with the secret.
    pub secret_file: PathBuf,
}

/// Who may log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Anyone who reaches the address (and passes CHAP where it is asked for).
    Anyone,
    /// These initiators (iqn., eui., naa.) and hosts (nqn.).
    Listed(Vec<String>),
}

impl Config {
    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// The resource of this name.
    #[must_use]
    pub fn resource(&self, name: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.name == name)
    }
}

impl Resource {
    /// What holds between two nodes, in either order.
    #[must_use]
    pub fn connection(&self, a: NodeId, b: NodeId) -> &Connection {
        self.connections.get(&(a.min(b), a.max(b))).unwrap_or(&self.connection)
    }

    /// The volume of this number.
    #[must_use]
    pub fn volume(&self, number: VolumeNumber) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.number == number)
    }
}

impl Node {
    /// What `SendTargets` tells.
    #[must_use]
    pub fn iscsi_advertised(&self) -> &[Address] {
        if self.advertise.iscsi.is_empty() { &self.iscsi } else { &self.advertise.iscsi }
    }
}

impl Tls {
    /// The paths of one node.
    #[must_use]
    pub fn of(&self, node: &str) -> Self {
        let fill = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace("{node}", node));
        Self { ca: fill(&self.ca), certificate: fill(&self.certificate), key: fill(&self.key) }
    }
}

impl Allow {
    /// Whether the initiator or host of this name may log in. Names compare without regard to case (RFC 7143 4.2.7.1).
    #[must_use]
    pub fn permits(&self, name: &str) -> bool {
        match self {
            Self::Anyone => true,
            Self::Listed(names) => names.iter().any(|listed| listed.eq_ignore_ascii_case(name)),
        }
    }
}

impl Address {
    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Name { port, .. } => *port,
        }
    }

    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_loopback(),
            Self::Name { host, .. } => host == "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl Default for Connection {
    fn default() -> Self {
        Self { protocol: AckMode::C, net: NetOptions::default() }
    }
}

/// A dead peer is noticed within two seconds.
impl Default for NetOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(6),
            ko_count: 7,
            ping_int: Duration::from_secs(1),
            ping_timeout: Duration::from_millis(500),
            connect_int: Duration::from_secs(1),
            max_buffers: 8192,
            sndbuf_size: 0,
            rcvbuf_size: 0,
            after_split_brain: AfterSplitBrain::default(),
        }
    }
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            on_io_error: OnIoError::Detach,
            disk_timeout: Duration::from_secs(30),
            al_extents: 1237,
            read_balancing: ReadBalancing::PreferLocal,
        }
    }
}
