//! P11: a disk that does not answer delays a command by at most `disk-timeout` where a good peer is there.

use std::time::Duration;

use block::Status;
use replication::{DiskState, Event, Input, Quorum};

use crate::world::{DISK_TIMEOUT, VOLUME, World};

fn world(nodes: usize) -> World {
    let mut world = World::new(nodes, Quorum::Off);
    world.put(0, Input::Sessions { count: 1 });
    let first = world.write(0, 0);
    assert_eq!(world.status(first), Some(&Status::Done));
    world
}

fn disk(world: &World, node: usize) -> (DiskState, Option<String>) {
    let device = world.cores[node].status().devices.remove(0);
    (device.disk_state, device.trouble)
}

/// The Primary's own disk hangs: it is given up after its time, not before, and the peer's answer counts. Answers that
/// come late are for names that nobody was given meanwhile, and bring nothing back.
#[test]
fn a_disk_that_hangs_is_given_up() {
    let mut world = world(2);
    world.hung[0] = true;
    let (write, behind) = (world.write(0, 1), world.write(0, 1));
    let read = world.read(0, 1);
    let almost = Duration::from_millis(29_999);
    world.pass(almost);
    assert_eq!((world.status(write), disk(&world, 0).0), (None, DiskState::UpToDate));
    world.pass(Duration::from_millis(1));
    assert_eq!((world.status(write), world.status(behind)), (Some(&Status::Done), Some(&Status::Done)));
    assert!(matches!(world.status(read), Some(Status::Data(_))));
    let (state, trouble) = disk(&world, 0);
    assert_eq!(state, DiskState::Diskless);
    assert!(trouble.unwrap().contains("did not answer for 30 s (disk-timeout)"));
    assert!(world.events.contains(&(0, Event::SlowDisk { volume: VOLUME, given_up: true })));
    let held = world.held.len();
    let next = world.write(0, 2);
    assert_eq!(
        (world.status(next), world.held.len()),
        (Some(&Status::Done), held),
        "the disk is asked nothing more"
    );
    world.thaw(0);
    assert_eq!((disk(&world, 0).0, world.statuses.len()), (DiskState::Diskless, 5), "each is answered once");
}

/// The disk of a peer hangs: the peer gives it up by itself.
#[test]
fn a_peer_gives_its_disk_up() {
    let mut world = world(2);
    world.hung[1] = true;
    let write = world.write(0, 1);
    assert_eq!(world.status(write), None);
    world.pass(DISK_TIMEOUT);
    assert_eq!((world.status(write), disk(&world, 1).0), (Some(&Status::Done), DiskState::Diskless));
    assert_eq!(disk(&world, 0).0, DiskState::UpToDate);
}

/// Without a good peer there is nothing to win: the disk is waited for, that is said once, and all goes on with it.
#[test]
fn the_last_good_disk_is_waited_for() {
    let mut world = world(1);
    world.hung[0] = true;
    let write = world.write(0, 1);
    for _ in 0..5 {
        world.pass(DISK_TIMEOUT);
    }
    let slow = (0, Event::SlowDisk { volume: VOLUME, given_up: false });
    assert_eq!(world.events.iter().filter(|event| **event == slow).count(), 1);
    let (state, trouble) = disk(&world, 0);
    assert!(state == DiskState::UpToDate && trouble.unwrap().contains("has not answered"));
    assert_eq!(world.status(write), None);
    world.thaw(0);
    assert_eq!((world.status(write), disk(&world, 0)), (Some(&Status::Done), (DiskState::UpToDate, None)));
}

/// P11: what a disk that was given up still works on does not keep the node from stopping.
#[test]
fn a_node_stops_without_its_hung_disk() {
    let mut world = world(2);
    world.hung[0] = true;
    world.write(0, 1);
    world.pass(DISK_TIMEOUT);
    assert!(!world.held.is_empty());
    world.put(0, Input::Stop);
    assert_eq!(world.stopped, [0]);
}
