//! What a resource is made of, as the shell read it from the configuration and from the disks.

use std::{fmt, time::Duration};

use block::VolumeNumber;
use bytes::Bytes;

use crate::{AckMode, AfterSplitBrain, NodeId};

/// Some of the 32 nodes of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSet(pub u32);

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self(0);

    /// Whether the node is one of them.
    #[must_use]
    pub const fn contains(self, node: NodeId) -> bool {
        node.0 < 32 && self.0 & (1 << node.0) != 0
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, node: NodeId) -> Self {
        Self(self.0 | 1 << (node.0 & 31))
    }

    /// These without one.
    #[must_use]
    pub const fn without(self, node: NodeId) -> Self {
        Self(self.0 & !(1 << (node.0 & 31)))
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Each of them, in order.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..32).map(NodeId).filter(move |&node| self.contains(node))
    }
}

impl ResourceConfig {
    /// The length of an extent of the activity log outside of tests: 4 MiB.
    pub const AL_EXTENT_LEN: u64 = 4 << 20;
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<T: IntoIterator<Item = NodeId>>(nodes: T) -> Self {
        nodes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|node| node.0)).finish()
    }
}

/// What a resource is made of.
#[derive(Clone, Debug)]
pub struct ResourceConfig {
    /// The resource's name.
    pub name: String,
    /// Tells clusters apart: a hash of the cluster's name.
    pub cluster: u64,
    /// This node.
    pub node: NodeId,
    /// The other nodes.
    pub peers: Vec<PeerConfig>,
    /// The volumes, in the order of their numbers.
    pub volumes: Vec<VolumeConfig>,
    /// Whether the first command of an initiator promotes the node.
    pub auto_promote: bool,
    /// Who may write.
    pub quorum: Quorum,
    /// Which replica serves a read.
    pub read_balancing: ReadBalancing,
    /// How long a local disk may take for an operation before it is given up, where a good peer is there; zero: for ever.
    pub disk_timeout: Duration,
    /// How many extents of the activity log may be active on a disk: 1 to 65,534.
    pub al_extents: u32,
    /// How long such an extent is, in bytes: a power of two from 4096 up.
    pub al_extent_len: u64,
    /// Within this time both ends of a link that broke have noticed it. With quorum on, nobody becomes Primary until
    /// so long after the Primary was lost: by then it knows that it is alone.
    pub peer_timeout: Duration,
    /// How long a promotion waits for the peers' answers; longer than `peer_timeout`.
    pub promotion_timeout: Duration,
}

/// Another node.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its id.
    pub node: NodeId,
    /// Its name, for messages.
    pub name: String,
    /// How changes sent to it are acknowledged.
    pub protocol: AckMode,
    /// What is done by itself where the data diverged.
    pub after_split_brain: AfterSplitBrain,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Its number.
    pub number: VolumeNumber,
    /// Its size in bytes, a multiple of 4096.
    pub size: u64,
    /// The size of its logical blocks, in bytes.
    pub block_size: u32,
    /// The nodes with a disk for it.
    pub disks: NodeSet,
}

/// Who may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// Whoever has the data.
    Off,
    /// More than half of the diskful nodes, or half of them and the tiebreakers' majority.
    Majority,
}

impl Quorum {
    /// What holds where the configuration says nothing: majority from three nodes up.
    #[must_use]
    pub const fn default_for(nodes: usize) -> Self {
        if nodes >= 3 { Self::Majority } else { Self::Off }
    }
}

/// Which replica serves a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadBalancing {
    /// The local one where it is good, else the peer that is done first.
    #[default]
    PreferLocal,
    /// The good peer that is done first, else the local one.
    PreferRemote,
    /// Each good one in turn.
    RoundRobin,
    /// The good one that is done first, by its pending reads and by how long its reads took lately.
    LeastPending,
    /// Each good one its stripes.
    Striping {
        /// The length of a stripe: 2 to the power of this, in bytes; below 64.
        shift: u8,
    },
}

/// What the shell found of the metadata of a local disk.
#[derive(Clone, Debug)]
pub enum Found {
    /// The file was created just now, or its metadata was: nothing was ever written, every byte is equal on all
    /// such replicas.
    Fresh,
    /// The metadata area is empty, the data is not ours: it may be anything. It serves nobody and is nobody's source
    /// until an operator forces this node to be Primary; then every other replica takes everything from it.
    Adopted,
    /// The whole metadata area, [`crate::metadata_len`] bytes.
    Metadata(Bytes),
    /// There should be a disk, but it cannot be used: why, for `status`. Nothing is written to it.
    Unusable(String),
}
