//! What kind of cluster a seed makes, and what may happen to it.

use std::time::Duration;

use block::VolumeNumber;
use replication::{
    AckMode, AfterSplitBrain, NodeId, NodeSet, PeerConfig, Quorum, ReadBalancing, ResourceConfig,
    VolumeConfig, WithOnePrimary, WithTwoPrimaries, WithoutPrimary,
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
    /// Two replicas without quorum; operators make either of them Primary, or both, once they are apart.
    Apart,
}

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Crashes, partitions, broken links, a failing disk, an operator here and there.
    Base,
    /// All power fails right after an acknowledged flush.
    PowerCut,
    /// Both of two nodes are promoted while they are apart.
    SplitBrain,
    /// One disk fails, is full or freezes while all others are good, the Primary's own included.
    Disks,
    /// Several volumes in one resource, with read-modify-writes and zeros that overlap.
    Volumes,
    /// Operators use every verb, and nodes stop cleanly or come back with a fresh disk.
    Operators,
}

impl Class {
    /// Every class.
    pub const ALL: &[Self] =
        &[Self::Base, Self::PowerCut, Self::SplitBrain, Self::Disks, Self::Volumes, Self::Operators];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::PowerCut => "power-cut",
            Self::SplitBrain => "split-brain",
            Self::Disks => "disks",
            Self::Volumes => "volumes",
            Self::Operators => "operators",
        }
    }

    /// The source of chance of a seed: each class has its own.
    #[must_use]
    pub const fn random(self, seed: u64) -> Random {
        Random::new(seed ^ (self as u64) << 56)
    }
}

/// A cluster and its dangers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each danger is there or not")]
pub struct Scenario {
    /// What it is about.
    pub class: Class,
    /// How many volumes.
    pub volumes: usize,
    /// Whether initiators use every command.
    pub rich: bool,
    /// Of a hundred commands, how many are flushes.
    pub flushes: u64,
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
    /// What two nodes do by themselves about a split brain.
    pub after_split_brain: AfterSplitBrain,
    /// Whether the cluster loses all power at the end.
    pub blackout: bool,
    /// How many initiators.
    pub clients: usize,
}

impl Scenario {
    /// The scenario of a class that this chance makes.
    pub fn new(class: Class, random: &mut Random) -> Self {
        let base = Self::base(random);
        let strict = Self { mode: AckMode::C, mode_changes: false, blackout: false, ..base.clone() };
        match class {
            Class::Base => base,
            Class::PowerCut => {
                Self { class, power_cuts: true, disk_errors: false, rich: true, flushes: 20, ..strict }
            }
            Class::SplitBrain => {
                let kind = Kind::Apart;
                let after_split_brain = AfterSplitBrain {
                    without_primary: WithoutPrimary::ALL[random.index(5)],
                    with_one_primary: WithOnePrimary::ALL[random.index(4)],
                    with_two_primaries: WithTwoPrimaries::ALL[random.index(2)],
                };
                let quiet = Self { power_cuts: false, disk_errors: false, clients: 2, ..strict };
                Self { class, kind, after_split_brain, ..quiet }
            }
            Class::Disks => {
                let volumes = random.index(2) + 1;
                Self { class, volumes, power_cuts: false, disk_errors: false, rich: true, ..strict }
            }
            Class::Volumes => {
                let volumes = random.index(2) + 2;
                Self { class, volumes, rich: true, clients: 4, ..base }
            }
            Class::Operators => {
                let mode_changes = base.kind == Kind::Three && !base.power_cuts;
                Self { class, mode_changes: base.mode_changes || mode_changes, disk_errors: false, ..base }
            }
        }
    }

    fn base(random: &mut Random) -> Self {
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
            class: Class::Base,
            volumes: 1,
            rich: false,
            flushes: 8,
            kind,
            mode,
            mode_changes: kind == Kind::Pair && random.chance(50),
            balancing: match random.below(100) {
                0..=29 => ReadBalancing::PreferLocal,
                30..=49 => ReadBalancing::PreferRemote,
                50..=69 => ReadBalancing::LeastPending,
                70..=84 => ReadBalancing::RoundRobin,
                // The shortest stripe that there is; a volume has five of them.
                _ => ReadBalancing::Striping { shift: 15 },
            },
            power_cuts: kind == Kind::Three && mode == AckMode::C && random.chance(50),
            disk_errors: random.chance(30),
            after_split_brain: AfterSplitBrain::default(),
            blackout: random.chance(30),
            clients: random.index(3) + 2,
        }
    }

    /// How many nodes.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        match self.kind {
            Kind::Pair | Kind::Apart => 2,
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
                .map(|peer| PeerConfig {
                    node: id(peer),
                    name: format!("node{peer}"),
                    protocol: self.mode,
                    after_split_brain: self.after_split_brain,
                })
                .collect(),
            volumes: (0..u16::try_from(self.volumes).unwrap_or_default())
                .map(|number| VolumeConfig {
                    number: VolumeNumber(number),
                    size: VOLUME_SIZE,
                    block_size: 512,
                    disks: self.disks(),
                })
                .collect(),
            auto_promote: self.pinned().is_none() && self.kind != Kind::Apart,
            quorum: if self.nodes() == 2 { Quorum::Off } else { Quorum::Majority },
            read_balancing: self.balancing,
            // So few that they leave it all the time.
            al_extents: u32::try_from(self.clients * 2).unwrap_or_default(),
            al_extent_len: AL_EXTENT_LEN,
            peer_timeout: PEER_TIMEOUT,
            disk_timeout: DISK_TIMEOUT,
            promotion_timeout: Duration::from_millis(200),
        }
    }
}

/// The size of a volume, in bytes and in sectors: small, so that commands meet.
pub(crate) const VOLUME_SIZE: u64 = 40 * 4096;
pub(crate) const VOLUME_SECTORS: usize = 320;
/// How long extents of the activity log are, in bytes: a change often has two, seldom three.
pub(crate) const AL_EXTENT_LEN: u64 = 2 * 4096;
/// Within this time both ends know that a link broke.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(60);
/// A disk that answers nothing for so long is given up where another one is good.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_millis(300);
