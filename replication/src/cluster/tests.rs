//! What operators ask, in clusters whose events come in any order.

use super::*;

const SIZE: u64 = 64 * 4096;

/// P12: a disk that fails while it catches up is given up: neither end goes on showing a resync, both say how it stands,
/// and the node says with what the disk failed.
#[test]
fn a_resync_onto_a_disk_that_fails_ends_at_both_ends() {
    for seed in 1..20 {
        let mut cluster = Cluster::new(2, SIZE, seed);
        cluster.settle();
        assert_eq!(cluster.ask(0, Verb::Primary { force: false }), Ok(()));
        cluster.apart = true;
        cluster.break_links();
        for block in 0..60 {
            cluster.write(0, block * 4096, 4096, 7);
        }
        cluster.settle();
        cluster.nodes[1].broken = Some(DiskError::NoSpace);
        cluster.apart = false;
        cluster.settle();
        let states = [cluster.replication(0), cluster.replication(1)];
        assert_eq!(states, [ReplicationState::Established; 2], "seed {seed}");
        assert_eq!(cluster.disk(1), DiskState::Diskless);
        assert_eq!(cluster.status(1).devices[0].trouble, Some(DiskError::NoSpace.to_string()));
        let there = cluster.status(0).connections[0].peer_devices[0].peer_disk_state;
        assert_eq!((cluster.disk(0), there), (DiskState::UpToDate, DiskState::Diskless));
    }
}

fn pair(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(2, SIZE, seed);
    cluster.settle();
    assert_eq!(cluster.ask(0, Verb::Primary { force: false }), Ok(()));
    for block in 0..60 {
        cluster.write(0, block * 4096, 4096, 7);
    }
    cluster.settle();
    cluster
}

fn is_whole(cluster: &Cluster) -> bool {
    (0..cluster.nodes.len()).all(|node| {
        let status = cluster.status(node);
        let good = |device: &crate::PeerDeviceStatus| {
            device.peer_disk_state == DiskState::UpToDate && device.out_of_sync == 0
        };
        cluster.disk(node) == DiskState::UpToDate
            && status.connections.iter().all(|peer| peer.peer_devices.iter().all(good))
            && cluster.nodes[node].data == cluster.nodes[0].data
    })
}

/// The contract, `pause-sync`: neither end copies, from whichever end it was asked, also after the link broke; then the
/// resync goes on to its end.
#[test]
fn a_paused_resync_waits_across_reconnects() {
    for seed in 1..40 {
        let mut cluster = pair(seed);
        cluster.apart = true;
        cluster.break_links();
        for block in 0..60 {
            cluster.write(0, block * 4096, 4096, 9);
        }
        cluster.settle();
        let (asks, other) = if seed % 2 == 0 { (0, 1) } else { (1, 0) };
        let pause = |paused| Verb::PauseSync { volume: Some(VOLUME), peer: None, paused };
        if seed % 3 == 0 {
            // In the middle of it.
            cluster.apart = false;
            for _ in 0..40 + seed {
                cluster.turn();
            }
        }
        assert_eq!(cluster.ask(asks, pause(true)), Ok(()));
        for _ in 0..2 {
            cluster.break_links();
            cluster.apart = false;
            cluster.settle();
            if is_whole(&cluster) {
                break;
            }
            let states = [cluster.replication(0), cluster.replication(1)];
            assert_eq!(states, [ReplicationState::PausedSyncS, ReplicationState::PausedSyncT], "{seed}");
            let held = |node: usize| cluster.status(node).connections[0].peer_devices[0].resync_suspended;
            assert_eq!((held(asks), held(other)), (Some(Suspended::Here), Some(Suspended::There)));
        }
        assert_eq!(cluster.ask(asks, pause(false)), Ok(()));
        assert!(is_whole(&cluster), "seed {seed}: {:#?}", cluster.status(1));
    }
}

/// P7: a replica that was given up becomes a copy of the other one byte for byte, whatever it held, under writes; the
/// last good replica and a Primary's are not given up.
#[test]
fn an_invalidated_replica_is_copied_anew() {
    for seed in 1..40 {
        let mut cluster = pair(seed);
        cluster.nodes[1].data.fill(0x55);
        let remote = seed % 2 == 0;
        let (node, verb) = if remote {
            (0, Verb::InvalidateRemote { volume: VOLUME, peer: NodeId(1) })
        } else {
            (1, Verb::Invalidate { volume: VOLUME })
        };
        let request = cluster.begin(node, verb);
        for block in 0..20 {
            for _ in 0..seed % 7 {
                cluster.turn();
            }
            cluster.write(0, block * 3 * 4096, 4096, 11);
        }
        cluster.settle();
        assert_eq!(cluster.nodes[node].answers.remove(&request), Some(Ok(())), "seed {seed}");
        assert!(is_whole(&cluster), "seed {seed}: {:#?}", cluster.status(1));
        assert!(cluster.nodes[0].completed.values().all(|status| *status == Status::Done));
        let refused = cluster.ask(0, Verb::Invalidate { volume: VOLUME }).unwrap_err();
        assert!(refused.what.contains("is Primary"), "{refused}");
        let refused = cluster.ask(1, Verb::InvalidateRemote { volume: VOLUME, peer: NodeId(0) });
        assert!(refused.unwrap_err().remedy.contains("secondary"));
        cluster.apart = true;
        cluster.break_links();
        let refused = cluster.ask(1, Verb::Invalidate { volume: VOLUME }).unwrap_err();
        assert!(refused.what.contains("only good copy"), "{refused}");
    }
}

/// The contract, `new-generation --clear-bitmap`: replicas over data that is there already are good together and nothing is
/// copied; replicas that were used are not touched by it.
#[test]
fn created_replicas_are_declared_equal() {
    for seed in 1..40 {
        let nodes = 2 + u8::try_from(seed % 2).unwrap();
        let mut cluster = Cluster::made_of(nodes, SIZE, seed, &|_| Found::Adopted, &|config| config);
        for node in &mut cluster.nodes {
            node.data.fill(0x33);
        }
        cluster.settle();
        assert_eq!(cluster.disk(0), DiskState::Inconsistent);
        let declare = Verb::NewGeneration { volume: VOLUME, clear_bitmap: true };
        assert_eq!(cluster.ask(0, declare.clone()), Ok(()), "seed {seed}");
        assert!(is_whole(&cluster), "seed {seed}: {:#?}", cluster.status(1));
        let copied = |node: usize| cluster.status(node).connections[0].peer_devices[0].received;
        assert_eq!((copied(0), copied(1)), (0, 0), "seed {seed}");
        assert!(cluster.ask(0, declare).is_err());
        let begin = Verb::NewGeneration { volume: VOLUME, clear_bitmap: false };
        assert!(cluster.ask(0, begin.clone()).unwrap_err().what.contains("Primary"));
        assert_eq!(cluster.ask(0, Verb::Primary { force: false }), Ok(()));
        let before = cluster.status(1).devices[0].generation;
        assert_eq!(cluster.ask(0, begin), Ok(()));
        assert_ne!(cluster.status(1).devices[0].generation, before);
        assert!(is_whole(&cluster), "seed {seed}");
    }
}

/// `rs-in-flight`: while a resync is under way both ends show what of it is, never more than the window; then nothing is left,
/// under writes too.
#[test]
fn a_resync_in_flight_is_shown() {
    for seed in 1..20 {
        let mut cluster = pair(seed);
        cluster.apart = true;
        cluster.break_links();
        for block in 0..60 {
            cluster.write(0, block * 4096, 4096, 9);
        }
        cluster.settle();
        cluster.apart = false;
        let in_flight = |cluster: &Cluster, node: usize| cluster.status(node).connections[0].rs_in_flight;
        let mut most = [0; 2];
        for turn in 0..2_000 {
            cluster.turn();
            if turn % 50 == 0 {
                cluster.write(0, turn % 60 * 4096, 4096, 10);
            }
            for (node, most) in most.iter_mut().enumerate() {
                *most = in_flight(&cluster, node).max(*most);
            }
        }
        assert!(most.iter().all(|&most| most > 0 && most <= SIZE), "seed {seed}: {most:?}");
        cluster.settle();
        assert_eq!([in_flight(&cluster, 0), in_flight(&cluster, 1)], [0, 0], "seed {seed}");
        assert!(is_whole(&cluster), "seed {seed}");
    }
}

/// P1: replicas whose operators give them up for each other at the same time are not both lost.
#[test]
fn two_replicas_are_not_given_up_for_each_other() {
    for seed in 1..200 {
        let mut cluster = pair(seed);
        cluster.write(0, 0, 4096, 21);
        cluster.settle();
        assert_eq!(cluster.ask(0, Verb::Secondary { force: false }), Ok(()));
        let verb = |node: u8| match seed % 3 {
            0 => Verb::InvalidateRemote { volume: VOLUME, peer: NodeId(1 - node) },
            _ => Verb::Invalidate { volume: VOLUME },
        };
        let first = cluster.begin(0, verb(0));
        for _ in 0..seed % 5 {
            cluster.turn();
        }
        let second =
            cluster.begin(1, if seed % 3 == 1 { verb(1) } else { Verb::Invalidate { volume: VOLUME } });
        cluster.settle();
        let mut answer = |node: usize, request| cluster.nodes[node].answers.remove(&request).unwrap();
        let refused = [answer(0, first), answer(1, second)].into_iter().filter(Result::is_err).count();
        assert!(refused > 0, "seed {seed}");
        assert!(
            is_whole(&cluster) && cluster.nodes[0].data[0] == 21,
            "seed {seed}: {:#?}",
            cluster.status(0)
        );
    }
}
