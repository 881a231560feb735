//! What the disks say about each other (P6): if every node died at this moment, with its power or without, and any two
//! of them met again, the blocks that they would copy are at least those that may differ.

use std::time::Duration;

use block::VolumeNumber;
use replication::{Found, Instant, Resource};

use crate::{
    converge::CONVERGE_ROUNDS,
    disk::sectors,
    node::Node,
    scenario::{Class, VOLUME_SECTORS},
    verdict::{Broken, Failure, Promise},
    world::World,
};

/// What a crash cost, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crash {
    /// What the disks said might differ, for all pairs of replicas that the node belongs to.
    pub told: u64,
    /// What was copied after it.
    pub copied: u64,
    /// The volume, once for each of those pairs.
    pub whole: u64,
}

/// Lets a node crash, and perhaps lose its power, while nothing is under way, and catch up (P7).
///
/// # Errors
/// When a promise is broken.
pub fn run_crash(seed: u64) -> Result<Crash, Failure> {
    let mut world = World::new(Class::Base, seed);
    let scenario = Box::new(world.scenario.clone());
    world.crash_when_idle(CRASHES).map_err(|broken| Failure { seed, scenario, broken })
}

impl World {
    fn crash_when_idle(&mut self, node: usize) -> Result<Crash, Broken> {
        self.quiet = true;
        self.play(400_000);
        self.draining = true;
        self.play(1_000_000);
        let power = self.random.chance(50);
        self.take_down(node, power);
        self.sound()?;
        let copied = self.copied;
        let cores: Vec<_> = self.nodes.iter().map(Node::as_its_disks_say).collect();
        let pairs = cores.iter().enumerate().filter(|(other, _)| *other != node);
        let told: Vec<u64> = pairs
            .filter_map(|(_, other)| cores[node].as_ref()?.resync_with(other.as_ref()?, VolumeNumber(0)))
            .map(|words| words.iter().map(|word| u64::from(word.count_ones())).sum())
            .collect();
        self.start(node);
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            self.sound()?;
            if self.is_whole() {
                self.judge()?;
                let whole = told.len() as u64 * VOLUME_SECTORS as u64 / 8;
                return Ok(Crash { told: told.iter().sum(), copied: self.copied - copied, whole });
            }
        }
        Err(Broken::new(Promise::P7, format!("no convergence after a crash: {:#?}", self.statuses())))
    }

    /// Looks at every pair of replicas.
    pub(crate) fn books_are_right(&mut self) {
        let cores: Vec<_> = self.nodes.iter().map(Node::as_its_disks_say).collect();
        for one in 0..self.nodes.len() {
            for other in one + 1..self.nodes.len() {
                let (Some(mine), Some(theirs)) = (&cores[one], &cores[other]) else { continue };
                let volumes = self.nodes[one].disks.len().min(self.nodes[other].disks.len());
                let wrong = (0..volumes).find_map(|volume| {
                    let number = VolumeNumber(u16::try_from(volume).unwrap_or_default());
                    let copied = mine.resync_with(theirs, number)?;
                    let told = |block: usize| copied.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1);
                    let unknown = self.may_differ([one, other], volume).find(|&sector| !told(sector / 8))?;
                    Some(format!("sector {unknown} of volume {volume} may differ on {one} and {other}, and no bit tells"))
                });
                if let Some(what) = wrong {
                    return self.breaks(Promise::P6, what);
                }
            }
        }
    }

    /// The sectors in which two replicas differ, or would after a loss of power.
    fn may_differ(&self, nodes: [usize; 2], volume: usize) -> impl Iterator<Item = usize> {
        let [one, other] = nodes.map(|node| &self.nodes[node].disks[volume]);
        let mut differ: Vec<bool> = one
            .outcomes()
            .zip(other.outcomes())
            .map(|(mine, theirs)| mine[0] != mine[1] || theirs[0] != theirs[1] || mine[0] != theirs[0])
            .collect();
        for node in nodes {
            for (of, pending) in self.nodes[node].pending.values() {
                if let Some(extent) = pending.changes().filter(|_| *of == volume) {
                    differ[sectors(extent)].fill(true);
                }
            }
        }
        differ.into_iter().enumerate().filter(|(_, differ)| *differ).map(|(sector, _)| sector)
    }
}

impl Node {
    /// The node as it would start now; `None` where it has nothing to say.
    fn as_its_disks_say(&self) -> Option<Resource> {
        let found: Vec<_> =
            (0..).zip(&self.disks).map(|(volume, disk)| (VolumeNumber(volume), disk.found())).collect();
        if found.is_empty() || !found.iter().all(|(_, found)| matches!(found, Found::Metadata(_))) {
            return None;
        }
        Resource::new(self.config.clone(), found, 1, Instant(Duration::ZERO), &mut Vec::new()).ok()
    }
}

/// The node that crashes: it has a disk in every cluster.
const CRASHES: usize = 1;
