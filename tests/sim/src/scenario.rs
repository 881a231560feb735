//! What kind of cluster a seed makes, and what may happen to it.

use std::time::Duration;

use block::VolumeNumber;
use replication::{
    AckMode, NodeId, NodeSet, PeerConfig, Quorum, ReadBalancing, ResourceConfig, VolumeConfig,
};

use crate::random::Random;

/// The kinds of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two replicas and a diskless tiebreaker, with quorum; any node may become Primary.
    Tiebreaker,
    /// Three replicas with quorum; any node may become Primary.
    Three,
    /// Two replicas without quorum; one of them is the only one that is ever Primary.
    Pair,
    /// Two replicas with quorum; a diskless node is the only Primary.
    DisklessPrimary,
}

/// A cluster and its dangers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each danger is there or not")]
pub struct Scenario {
    /// What kind.
    pub kind: Kind,
    /// The mode of every connection at the start.
    pub mode: AckMode,
    /// Whether the mode changes meanwhile.
    pub mode_changes: bool,
    /// Which replica serves a read.
    pub balancing: ReadBalancing,
    /// Whether nodes lose power, not only their process.
    pub power_cuts: bool,
    /// Whether a disk fails.
    pub disk_errors: bool,
    /// Whether the cluster loses all power at the end.
    pub blackout: bool,
    /// How many initiators.
    pub clients: usize,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(random: &mut Random) -> Self {
        let kind = match random.below(8) {
            0..=2 => Kind::Three,
            3..=4 => Kind::Tiebreaker,
            5..=6 => Kind::Pair,
            _ => Kind::DisklessPrimary,
        };
        let mode = match (kind, random.below(4)) {
            (Kind::Pair, 0) => AckMode::A,
            (Kind::Pair | Kind::Three, 1) => AckMode::B,
            _ => AckMode::C,
        };
        Self {
            kind,
            mode,
            mode_changes: kind == Kind::Pair && random.chance(50),
            balancing: if random.chance(50) {
                ReadBalancing::PreferLocal
            } else {
                ReadBalancing::LeastPending
            },
            power_cuts: kind == Kind::Three && mode == AckMode::C && random.chance(50),
            disk_errors: random.chance(30),
            blackout: random.chance(30),
            clients: random.index(3) + 2,
        }
    }

    /// How many nodes.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        match self.kind {
            Kind::Pair => 2,
            _ => 3,
        }
    }

    /// The nodes with a disk.
    #[must_use]
    pub const fn disks(&self) -> NodeSet {
        match self.kind {
            Kind::Three => NodeSet(0b111),
            _ => NodeSet(0b011),
        }
    }

    /// The only node that may be Primary, where there is one.
    #[must_use]
    pub const fn pinned(&self) -> Option<usize> {
        match self.kind {
            Kind::Pair => Some(0),
            Kind::DisklessPrimary => Some(2),
            _ => None,
        }
    }

    /// The resource as a node is configured for it.
    #[must_use]
    pub fn config(&self, node: usize) -> ResourceConfig {
        let id = |node: usize| NodeId(u8::try_from(node).unwrap_or_default());
        let peers = (0..self.nodes()).filter(|&peer| peer != node);
        ResourceConfig {
            name: "db".to_owned(),
            cluster: 7,
            node: id(node),
            peers: peers
                .map(|peer| PeerConfig { node: id(peer), name: format!("node{peer}"), protocol: self.mode })
                .collect(),
            volumes: vec![VolumeConfig {
                number: VolumeNumber(0),
                size: VOLUME_SIZE,
                block_size: 512,
                disks: self.disks(),
            }],
            auto_promote: self.pinned().is_none(),
            quorum: if self.kind == Kind::Pair { Quorum::Off } else { Quorum::Majority },
            read_balancing: self.balancing,
            peer_timeout: PEER_TIMEOUT,
            promotion_timeout: Duration::from_millis(200),
        }
    }
}

/// The size of the volume, in bytes: small, so that commands meet.
pub(crate) const VOLUME_SIZE: u64 = 40 * 4096;
/// Within this time both ends know that a link broke.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(60);
