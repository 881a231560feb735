//! What goes wrong, and what operators do meanwhile.

use block::VolumeNumber;
use replication::{AckMode, DiskError, DiskState, Verb};

use crate::{
    scenario::{Class, DISK_TIMEOUT, Kind},
    verdict::Promise,
    world::{World, id},
};

/// Strikes the cluster.
#[derive(Debug)]
pub(crate) struct Nemesis;

/// A disk that does not work as it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Impaired {
    node: usize,
    volume: usize,
    since: u64,
    /// How many writes had been acknowledged by then.
    acknowledged: u64,
    frozen: bool,
}

impl Nemesis {
    /// Does one thing, which the scenario allows.
    pub(crate) fn strike(world: &mut World) {
        match world.scenario.class {
            Class::Disks => return Self::strike_disks(world),
            Class::PowerCut if world.random.chance(60) => return,
            Class::Operators if world.random.chance(50) => return Self::strike_as_operator(world),
            _ => {}
        }
        Self::end_pauses(world);
        world.faults += 1;
        let node = world.random.index(world.nodes.len());
        match world.random.below(16) {
            0..=2 => Self::crash(world, node),
            3..=4 => Self::partition(world, node),
            5 => {
                let other = world.random.index(world.nodes.len());
                if other != node {
                    world.block(node, other);
                }
            }
            6..=7 => world.break_links(|ends| ends.contains(&node)),
            8..=10 => {
                world.blocked.clear();
                world.note(|| "network heals".to_owned());
            }
            11..=12 => Self::restart(world),
            13 => Self::stop(world, node),
            14 => Self::operate(world, node),
            _ => Self::break_disk(world, node),
        }
        if !matches!(world.scenario.class, Class::Base | Class::PowerCut) {
            world.turns += 1;
        }
        Self::restart_sometimes(world);
    }

    /// Operators let resyncs go on before the next fault: with one replica held back, a second failure is more than is
    /// promised.
    fn end_pauses(world: &mut World) {
        if std::mem::take(&mut world.paused) {
            for node in 0..world.nodes.len() {
                world.ask(node, Verb::PauseSync { volume: None, peer: None, paused: false });
            }
        }
    }

    fn crash(world: &mut World, node: usize) {
        let others = (0..world.nodes.len()).filter(|&other| other != node);
        let all_good = others.into_iter().all(|other| Self::is_good(world, other));
        if world.recovering && !(all_good && Self::is_good(world, node)) {
            return;
        }
        world.recovering = false;
        // Of two replicas both must be good: one may have gone on alone.
        let three = world.scenario.kind == Kind::Three;
        let safe = all_good && (three || Self::is_good(world, node));
        let power = world.scenario.power_cuts && safe && world.random.chance(50);
        world.recovering = power;
        world.take_down(node, power);
    }

    fn is_good(world: &World, node: usize) -> bool {
        let status = world.nodes[node].core.as_ref().map(replication::Resource::status);
        status.is_some_and(|status| {
            let linked = status.connections.iter().all(|connection| {
                connection.peer_devices.iter().all(|device| device.peer_disk_state == DiskState::UpToDate)
            });
            linked && status.devices.iter().all(|device| device.disk_state == DiskState::UpToDate)
        })
    }

    fn partition(world: &mut World, node: usize) {
        for other in (0..world.nodes.len()).filter(|&other| other != node) {
            world.block(node, other);
            world.block(other, node);
        }
    }

    fn restart(world: &mut World) {
        for node in 0..world.nodes.len() {
            world.mend(node);
            world.start(node);
        }
    }

    fn restart_sometimes(world: &mut World) {
        if world.random.chance(40) {
            Self::restart(world);
        }
    }

    fn stop(world: &mut World, node: usize) {
        world.nodes[node].stopping = true;
        world.note(|| format!("{node} is told to stop"));
        world.step(node, replication::Input::Stop);
    }

    fn operate(world: &mut World, node: usize) {
        let verb = match world.random.below(5) {
            0 => Verb::Disconnect { peer: None },
            1..=2 => Verb::Connect { peer: None, discard_my_data: false },
            3 if world.scenario.pinned().is_none() => Verb::Secondary { force: world.random.chance(50) },
            4 if world.scenario.pinned().is_none() => Verb::Primary { force: false },
            _ if world.scenario.mode_changes => {
                let mode = if world.random.chance(50) { AckMode::A } else { AckMode::C };
                return world.ask(0, Verb::Protocol { peer: None, mode });
            }
            _ => return,
        };
        world.ask(node, verb);
    }

    fn break_disk(world: &mut World, node: usize) {
        // The last good replica's errors are the initiator's: not here.
        let others =
            (0..world.nodes.len()).filter(|&other| other != node && !world.nodes[other].disks.is_empty());
        let safe = others.into_iter().all(|other| Self::is_good(world, other));
        if world.scenario.disk_errors && safe && world.scenario.kind == Kind::Three {
            world.note(|| format!("{node} disk breaks"));
            let volumes = world.nodes[node].disks.len();
            let volume = if volumes > 1 { world.random.index(volumes) } else { 0 };
            if let Some(disk) = world.nodes[node].disks.get_mut(volume) {
                disk.broken = Some(DiskError::Io { errno: 5 });
            }
        }
    }

    /// Uses a verb that the other strikes do not use, or replaces a disk.
    fn strike_as_operator(world: &mut World) {
        world.turns += 1;
        let node = world.random.index(world.nodes.len());
        let peer = Some(id(world.random.index(world.nodes.len())));
        if world.random.chance(15) {
            return Self::swap_disk(world, node);
        }
        let free = world.scenario.pinned().is_none();
        let good = world.nodes[node].disks.is_empty() || world.devices(node) == [DiskState::UpToDate];
        let volume =
            VolumeNumber(u16::try_from(world.random.index(world.scenario.volumes)).unwrap_or_default());
        let verb = match world.random.below(16) {
            10..=11 => {
                world.giving_up = Some((world.commands + 1, node, usize::from(volume.0)));
                Verb::Invalidate { volume }
            }
            12 => Verb::InvalidateRemote { volume, peer: id(world.random.index(world.nodes.len())) },
            13 => Verb::PauseSync { volume: None, peer: None, paused: true },
            14 => Verb::PauseSync { volume: Some(volume), peer, paused: world.random.chance(50) },
            15 => Verb::NewGeneration { volume, clear_bitmap: world.random.chance(20) },
            0..=1 => Verb::Disconnect { peer },
            2..=3 => Verb::Connect { peer, discard_my_data: false },
            // Data that did not diverge is not given up.
            4 => Verb::Connect { peer, discard_my_data: true },
            5 if free => Verb::Secondary { force: world.random.chance(50) },
            // Where nothing stands against it, force changes nothing.
            6 if free => Verb::Primary { force: good && world.random.chance(50) },
            7..=8 if world.scenario.mode_changes => {
                let mode = match world.scenario.kind {
                    Kind::Pair if world.random.chance(30) => AckMode::A,
                    _ if world.random.chance(50) => AckMode::B,
                    _ => AckMode::C,
                };
                Verb::Protocol { peer: peer.filter(|_| world.random.chance(50)), mode }
            }
            9 => return Self::replace_disk(world, node),
            _ => return Self::stop(world, node),
        };
        world.paused |= matches!(verb, Verb::PauseSync { paused: true, .. });
        world.ask(node, verb);
        Self::restart_sometimes(world);
    }

    /// An operator takes a disk away, or brings it back.
    fn swap_disk(world: &mut World, node: usize) {
        if world.is_detached(node) {
            world.attach(node);
        } else if !world.nodes[node].disks.is_empty() {
            let volume = VolumeNumber(0);
            world.ask(node, Verb::Detach { volume, force: false });
        }
    }

    /// A node comes back without what its disk held.
    fn replace_disk(world: &mut World, node: usize) {
        let all = (0..world.nodes.len()).all(|node| {
            let disks = &world.nodes[node].disks;
            Self::is_good(world, node) || disks.is_empty() && world.nodes[node].core.is_some()
        });
        // In mode A only one disk may have what was acknowledged.
        let mode_a = world.scenario.kind == Kind::Pair
            && (world.scenario.mode == AckMode::A || world.scenario.mode_changes);
        if !all || mode_a || world.nodes[node].disks.is_empty() {
            return;
        }
        world.faults += 1;
        world.take_down(node, false);
        world.note(|| format!("{node} gets a fresh disk"));
        let target = &mut world.nodes[node];
        for (disk, volume) in target.disks.iter_mut().zip(&target.config.volumes) {
            *disk = crate::disk::Disk::new(volume.size, replication::metadata_len(volume));
        }
        world.history.forget_flushes_of(node);
    }

    /// One disk at a time fails, is full or freezes, while all others are good.
    fn strike_disks(world: &mut World) {
        if let Some(impaired) = world.impaired {
            if world.random.chance(30) {
                Self::repair(world, impaired);
            }
            return;
        }
        for node in 0..world.nodes.len() {
            if world.is_detached(node) {
                world.take_down(node, false);
            }
            world.start(node);
        }
        let node = world.random.index(world.nodes.len());
        if !world.is_whole() || world.nodes[node].disks.is_empty() {
            return;
        }
        world.faults += 1;
        world.turns += 1;
        let volume = world.random.index(world.nodes[node].disks.len());
        let disk = &mut world.nodes[node].disks[volume];
        let kind = match world.random.below(4) {
            0 => {
                disk.broken = Some(DiskError::Io { errno: 5 });
                "fails"
            }
            1 => {
                disk.broken = Some(DiskError::NoSpace);
                "is full"
            }
            _ => {
                disk.frozen = true;
                "freezes"
            }
        };
        let frozen = disk.frozen;
        world.note(|| format!("disk {volume} of node {node} {kind}"));
        let acknowledged = world.history.acknowledged;
        world.impaired = Some(Impaired { node, volume, since: world.now, acknowledged, frozen });
    }

    fn repair(world: &mut World, impaired: Impaired) {
        let Impaired { node, volume, since, acknowledged, frozen } = impaired;
        // A frozen disk is given up after its timeout.
        let patience = if frozen { DISK_TIMEOUT.as_micros() } else { 0 };
        let long = u128::from(world.now - since) > patience + 500_000;
        if long && world.history.acknowledged == acknowledged {
            let what = format!("disk {volume} of node {node} does not work, and nobody can write any more");
            return world.breaks(if frozen { Promise::P11 } else { Promise::P12 }, what);
        }
        world.impaired = None;
        world.note(|| format!("disk {volume} of node {node} works again"));
        if frozen && world.random.chance(30) {
            // It did not wait for that.
            world.take_down(node, false);
        }
        world.mend(node);
        if world.is_detached(node) {
            world.take_down(node, false);
        }
        world.start(node);
    }
}

impl World {
    /// The disks that a node lost are attached again.
    pub(crate) fn attach(&mut self, node: usize) {
        if self.nodes[node].core.is_none() || self.nodes[node].disks.is_empty() {
            return;
        }
        for (volume, state) in (0..).zip(self.devices(node)) {
            if state == DiskState::Diskless {
                self.ask(node, Verb::Attach { volume: VolumeNumber(volume) });
            }
        }
    }

    /// The disks of a node work again.
    pub(crate) fn mend(&mut self, node: usize) {
        for volume in 0..self.nodes[node].disks.len() {
            self.nodes[node].disks[volume].broken = None;
            if self.nodes[node].disks[volume].frozen {
                self.thaw(node, volume);
            }
        }
    }
}
