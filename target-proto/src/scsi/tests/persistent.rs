//! PERSISTENT RESERVE IN and OUT over two initiators (SPC-4 5.13, 6.15, 6.16).

use super::*;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;
const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];

fn list(key: u64, new: u64, flags: u8) -> Vec<u8> {
    let mut list = Vec::new();
    list.extend(key.to_be_bytes());
    list.extend(new.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn out(world: &mut World, nexus: NexusId, action: u8, kind: u8, list: &[u8]) -> Response {
    let len = (list.len() as u32).to_be_bytes();
    world.send(nexus, &[0x5f, action, kind, 0, 0, len[0], len[1], len[2], len[3], 0], list)
}

fn read(world: &mut World, action: u8) -> Vec<u8> {
    good(&world.run(&[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0]))
}

fn generation(world: &mut World) -> u32 {
    u32::from_be_bytes(read(world, 0)[..4].try_into().unwrap())
}

/// Both initiators registered, the first with key 1 and the reservation, the second with key 2.
fn reserved(kind: u8) -> World {
    let mut world = World::new();
    good(&out(&mut world, ONE, REGISTER, 0, &list(0, 1, 0)));
    good(&out(&mut world, TWO, REGISTER_AND_IGNORE, 0, &list(9, 2, 0)));
    good(&out(&mut world, ONE, RESERVE, kind, &list(1, 0, 0)));
    world
}

/// The table drives it: what each type forbids a registrant and a stranger, command by command.
#[test]
fn access() {
    let writes = [
        cdb(0x2a, 0, 0, 1),
        cdb(0x93, 1, 0, 1),
        cdb(0x35, 0, 0, 0),
        vec![0x1b, 0, 0, 0, 0, 0],
        vec![0x1d; 1],
    ];
    let reads = [cdb(0x28, 0, 0, 1), cdb(0x2f, 0, 0, 1), cdb(0x34, 0, 0, 1), vec![0x1a, 8, 0x3f, 0, 4, 0]];
    let any = [
        vec![0; 6],
        vec![0x12, 0, 0, 0, 36, 0],
        vec![0x25],
        vec![0x1b, 0, 0, 0, 1, 0],
        vec![0x1e, 0, 0, 0, 0, 0],
        vec![0x5e, 1, 0, 0, 0, 0, 0, 0, 24, 0],
        vec![0x4d, 0, 0x40, 0, 0, 0, 0, 0, 32, 0],
    ];
    for kind in TYPES {
        for registered in [true, false] {
            let mut world = reserved(kind);
            if !registered {
                good(&out(&mut world, TWO, REGISTER, 0, &list(2, 0, 0)));
            }
            let shared = registered && kind >= 5;
            let may_read = shared || matches!(kind, 1 | 5 | 7);
            for (commands, may) in [(&writes[..], shared), (&reads, may_read), (&any, true)] {
                for command in commands {
                    assert_ne!(world.send(ONE, command, &[0; BLOCK]).status, ScsiStatus::ReservationConflict);
                    let refused =
                        world.send(TWO, command, &[0; BLOCK]).status == ScsiStatus::ReservationConflict;
                    assert_eq!(refused, !may, "type {kind}, registered {registered}, {command:x?}");
                }
            }
            for command in [[0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]] {
                conflict(&world.send(ONE, &command, &[]));
            }
        }
    }
}

/// SPC-4 6.15: keys, the reservation, all that is known, and a length that does not depend on the allocation.
#[test]
fn reports() {
    let mut world = World::new();
    assert_eq!(read(&mut world, 0), [0; 8]);
    assert_eq!(read(&mut world, 1), [0; 8]);
    assert_eq!(read(&mut world, 2), [0, 8, 0x09, 0x80, 0xea, 0x01, 0, 0]);
    for kind in TYPES {
        let mut world = reserved(kind);
        let keys = read(&mut world, 0);
        assert_eq!(keys, [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(good(&world.run(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0])), keys[..8]);
        let key = u8::from(kind < 7);
        let reservation = read(&mut world, 1);
        assert_eq!(reservation[4..], [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, key, 0, 0, 0, 0, 0, kind, 0, 0]);
        let full = read(&mut world, 3);
        assert_eq!(u32::from_be_bytes(full[4..8].try_into().unwrap()) as usize, full.len() - 8);
        assert_eq!(full[8..32][..18], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, kind, 0, 0, 0, 0]);
        let transport = &full[32..];
        assert_eq!(transport[0], 0x45);
        let name = b"iqn.1993-08.org.debian:01:one,i,0x00023d000001\0";
        assert_eq!(transport[4..4 + name.len()], *name);
    }
    for action in 4..32 {
        illegal(&world.run(&[0x5e, action, 0, 0, 0, 0, 0, 0, 8, 0]), Additional::INVALID_FIELD_IN_CDB);
    }
}

/// SPC-4 5.13.5, 5.13.7: registrations survive the session, and need the right key to change.
#[test]
fn registrations_belong_to_the_port() {
    let mut world = reserved(1);
    conflict(&out(&mut world, ONE, REGISTER, 0, &list(7, 3, 0)));
    world.target.close_nexus(ONE);
    world.target.open_nexus(NexusId(3), &initiator("one"));
    let again = world.send(NexusId(3), &[0; 6], &[]);
    check(&again, SenseKey::UnitAttention, Additional::POWER_ON_OR_RESET);
    good(&world.send(NexusId(3), &cdb(0x2a, 0, 0, 1), &[0; BLOCK]));
    conflict(&world.send(TWO, &cdb(0x2a, 0, 0, 1), &[0; BLOCK]));
    good(&out(&mut world, NexusId(3), REGISTER, 0, &list(1, 3, 0)));
    world.target.reset(super::super::Reset::Target, &mut world.effects).unwrap();
    assert_eq!(world.attention(TWO), Some(Additional::DEVICE_RESET));
    conflict(&world.send(TWO, &cdb(0x2a, 0, 0, 1), &[0; BLOCK]));
}

/// SPC-4 5.13.11.1: the unit is free again, and registrants that could not know are told.
#[test]
fn release_clear_and_unregister() {
    for kind in TYPES {
        let told = (kind >= 5).then_some(Additional::RESERVATIONS_RELEASED);
        let mut world = reserved(kind);
        let before = generation(&mut world);
        let wrong = TYPES.into_iter().find(|other| *other != kind).unwrap();
        let response = out(&mut world, ONE, RELEASE, wrong, &list(1, 0, 0));
        illegal(&response, Additional::INVALID_RELEASE);
        good(&out(&mut world, ONE, RELEASE, kind, &list(1, 0, 0)));
        assert_eq!(generation(&mut world), before);
        assert_eq!(world.attention(TWO), told);
        assert_eq!(world.attention(ONE), None);
        good(&world.send(TWO, &cdb(0x2a, 0, 0, 1), &[0; BLOCK]));

        let mut world = reserved(kind);
        good(&out(&mut world, ONE, CLEAR, 0, &list(1, 0, 0)));
        assert_eq!(world.attention(TWO), Some(Additional::RESERVATIONS_PREEMPTED));
        assert_eq!(read(&mut world, 0)[3..], [3, 0, 0, 0, 0]);

        let mut world = reserved(kind);
        good(&out(&mut world, ONE, REGISTER, 0, &list(1, 0, 0)));
        let stays = kind >= 7;
        assert_eq!(read(&mut world, 1).len() > 8, stays);
        assert_eq!(world.attention(TWO), told.filter(|_| !stays));
    }
}

/// P14, SPC-4 5.13.11.2.6: the fence. The victim loses its registration and its tasks before the answer.
#[test]
fn preempt() {
    let mut world = reserved(5);
    good(&out(&mut world, TWO, PREEMPT, 6, &list(2, 1, 0)));
    assert!(world.aborted.is_empty());
    assert_eq!(world.attention(ONE), Some(Additional::REGISTRATIONS_PREEMPTED));
    conflict(&world.run(&cdb(0x2a, 0, 0, 1)));
    assert_eq!(read(&mut world, 1)[21], 6);

    let mut world = reserved(5);
    good(&out(&mut world, TWO, PREEMPT_AND_ABORT, 5, &list(2, 1, 0)));
    assert_eq!(world.aborted, [ONE]);
    assert_eq!(world.attention(ONE), Some(Additional::REGISTRATIONS_PREEMPTED));
    conflict(&out(&mut world, TWO, PREEMPT, 5, &list(2, 1, 0)));
    conflict(&out(&mut world, ONE, PREEMPT, 5, &list(1, 2, 0)));
    let none = out(&mut world, TWO, PREEMPT, 5, &list(2, 0, 0));
    illegal(&none, Additional::INVALID_FIELD_IN_PARAMETERS);
}

/// SPC-4 6.16.4: the reservation is handed over.
#[test]
fn register_and_move() {
    let mut world = reserved(1);
    let mut to = Vec::new();
    to.extend(1_u64.to_be_bytes());
    to.extend(5_u64.to_be_bytes());
    let name = b"iqn.1993-08.org.debian:01:two,i,0x00023d000001\0\0";
    to.extend([0, 0x02, 0, 1, 0, 0, 0, 4 + name.len() as u8, 0x45, 0, 0, name.len() as u8]);
    to.extend(name);
    for len in 0..to.len() {
        let response = out(&mut world, ONE, REGISTER_AND_MOVE, 0, &to[..len]);
        illegal(&response, Additional::PARAMETER_LIST_LENGTH);
    }
    good(&out(&mut world, ONE, REGISTER_AND_MOVE, 0, &to));
    assert_eq!(read(&mut world, 1)[15], 5);
    conflict(&world.run(&cdb(0x2a, 0, 0, 1)));
    good(&world.send(TWO, &cdb(0x2a, 0, 0, 1), &[0; BLOCK]));
}

/// SPC-4 6.16.3: other ports are registered along, or none is.
#[test]
fn specified_initiator_ports() {
    let mut world = World::new();
    let mut data = list(0, 4, 0x08);
    let name = b"iqn.1993-08.org.debian:01:two,i,0x00023d000001\0\0";
    data.extend([0, 0, 0, 4 + name.len() as u8, 0x45, 0, 0, name.len() as u8]);
    data.extend(name);
    for len in 0..data.len() {
        illegal(&out(&mut world, ONE, REGISTER, 0, &data[..len]), Additional::PARAMETER_LIST_LENGTH);
    }
    good(&out(&mut world, ONE, REGISTER, 0, &data));
    assert_eq!(read(&mut world, 0)[..8], [0, 0, 0, 1, 0, 0, 0, 16]);
    good(&out(&mut world, TWO, RESERVE, 3, &list(4, 0, 0)));
    conflict(&out(&mut world, ONE, REGISTER, 0, &data));
}

/// Lists and fields that are wrong are refused by name, and change nothing.
#[test]
fn refusals() {
    let mut world = World::new();
    for len in 0..24 {
        for action in 0..8 {
            let response = out(&mut world, ONE, action, 1, &list(0, 1, 0)[..len]);
            illegal(&response, Additional::PARAMETER_LIST_LENGTH);
        }
    }
    let longer = [list(0, 1, 0), vec![0; 4]].concat();
    illegal(&out(&mut world, ONE, REGISTER, 0, &longer), Additional::PARAMETER_LIST_LENGTH);
    let all_ports = out(&mut world, ONE, REGISTER, 0, &list(0, 1, 0x04));
    illegal(&all_ports, Additional::INVALID_FIELD_IN_PARAMETERS);
    for action in 8..32 {
        illegal(&out(&mut world, ONE, action, 1, &list(0, 1, 0)), Additional::INVALID_FIELD_IN_CDB);
    }
    good(&out(&mut world, ONE, REGISTER, 0, &list(0, 1, 0)));
    for kind in (0..=255).filter(|kind| !TYPES.contains(kind)) {
        let response = out(&mut world, ONE, RESERVE, kind, &list(1, 0, 0));
        illegal(&response, Additional::INVALID_FIELD_IN_CDB);
    }
    conflict(&out(&mut world, TWO, RESERVE, 1, &list(0, 0, 0)));
    assert_eq!(read(&mut world, 0), [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(world.stored, None);
}

/// APTPL: what is asked to last is stored before the answer, and comes back with its generation.
#[test]
fn reservations_that_last() {
    let mut world = World::new();
    good(&out(&mut world, ONE, REGISTER, 0, &list(0, 1, 1)));
    assert!(world.stored.take().is_some());
    good(&out(&mut world, ONE, RESERVE, 6, &list(1, 0, 0)));
    let stored = world.stored.take().unwrap();
    assert_eq!(read(&mut world, 2)[3], 0x81);

    let mut after = World::new();
    after.target.restore(VolumeNumber(0), &stored).unwrap();
    for action in 0..4 {
        assert_eq!(read(&mut after, action), read(&mut world, action));
    }
    conflict(&after.send(TWO, &cdb(0x28, 0, 0, 1), &[]));

    good(&out(&mut world, ONE, REGISTER, 0, &list(1, 2, 0)));
    let emptied = world.stored.take().unwrap();
    let mut after = World::new();
    after.target.restore(VolumeNumber(0), &emptied).unwrap();
    assert_eq!(read(&mut after, 0).len(), 8);
    assert!(after.target.restore(VolumeNumber(0), &emptied[1..]).is_err());
}
