//! What goes wrong, and what operators do meanwhile.

use replication::{AckMode, DiskError, DiskState, Verb};

use crate::{scenario::Kind, world::World};

/// Strikes the cluster.
#[derive(Debug)]
pub(crate) struct Nemesis;

impl Nemesis {
    /// Does one thing, which the scenario allows.
    pub(crate) fn strike(world: &mut World) {
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
        Self::restart_sometimes(world);
    }

    fn crash(world: &mut World, node: usize) {
        let others = (0..world.nodes.len()).filter(|&other| other != node);
        let all_good = others.into_iter().all(|other| Self::is_good(world, other));
        if world.recovering && !(all_good && Self::is_good(world, node)) {
            return;
        }
        world.recovering = false;
        let power = world.scenario.power_cuts && all_good && world.random.chance(50);
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
            if let Some(disk) = world.nodes[node].disk.as_mut() {
                disk.broken = None;
            }
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
            (0..world.nodes.len()).filter(|&other| other != node && world.nodes[other].disk.is_some());
        let safe = others.into_iter().all(|other| Self::is_good(world, other));
        if world.scenario.disk_errors && safe && world.scenario.kind == Kind::Three {
            world.note(|| format!("{node} disk breaks"));
            if let Some(disk) = world.nodes[node].disk.as_mut() {
                disk.broken = Some(DiskError::Io { errno: 5 });
            }
        }
    }
}
