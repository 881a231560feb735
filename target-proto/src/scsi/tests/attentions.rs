//! Unit attentions (SAM-5 5.14), resets (SAM-5 6.3), paths (SPC-4 5.15), and SPC-2 reservations, which end with them.

use super::super::Reset;
use super::*;

const RESERVES: [[u8; 10]; 2] = [[0x16, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
const RELEASES: [[u8; 10]; 2] = [[0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];

/// SAM-5 5.14: INQUIRY, REPORT LUNS and REQUEST SENSE are served, all else is told once.
#[test]
fn a_new_nexus_is_told_of_power_on() {
    let mut world = World::fresh(unit(0));
    good(&world.run(&[0x12, 0, 0, 0, 36, 0]));
    good(&world.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]));
    let response = world.run(&cdb(0x28, 0, 0, 1));
    check(&response, SenseKey::UnitAttention, Additional::POWER_ON_OR_RESET);
    good(&world.run(&cdb(0x28, 0, 0, 1)));
    let sense = good(&world.send(TWO, &REQUEST_SENSE, &[]));
    assert_eq!((sense[2], sense[12], sense[13]), (6, 0x29, 0));
    good(&world.send(TWO, &cdb(0x28, 0, 0, 1), &[]));
    assert_eq!(good(&world.send(TWO, &REQUEST_SENSE, &[]))[2], 0);
    let mut world = World::fresh(unit(0));
    check(&world.run(&[0xff; 16]), SenseKey::UnitAttention, Additional::POWER_ON_OR_RESET);
    illegal(&world.run(&[0xff; 16]), Additional::INVALID_OPERATION_CODE);
}

/// Bug 57 of the list of others' bugs: a reset from one path is told on every path, on the units it was for.
#[test]
fn resets_are_told_to_all() {
    let mut world = World::new();
    world.target.add_unit(unit(1), &mut world.effects);
    let lun1 = 1 << 48;
    while world.send_to(TWO, lun1, &[0; 6], &[]).sense.is_some() || world.attention(TWO).is_some() {}
    while world.attention(ONE).is_some() {}
    assert_eq!(world.target.reset(Reset::Unit(LUN), &mut world.effects), Ok(vec![VolumeNumber(0)]));
    assert_eq!(world.attention(ONE), Some(Additional::DEVICE_RESET));
    assert_eq!(world.attention(TWO), Some(Additional::DEVICE_RESET));
    good(&world.send_to(TWO, lun1, &[0; 6], &[]));
    assert_eq!(
        world.target.reset(Reset::Target, &mut world.effects),
        Ok(vec![VolumeNumber(0), VolumeNumber(1)])
    );
    let response = world.send_to(TWO, lun1, &[0; 6], &[]);
    check(&response, SenseKey::UnitAttention, Additional::DEVICE_RESET);
    assert!(world.target.reset(Reset::Unit(77 << 48), &mut world.effects).is_err());
}

/// SPC-2 5.5: one nexus has the unit to itself, until it releases it, is lost, or somebody resets the unit.
#[test]
fn reserve_and_release() {
    let ends: [fn(&mut World); 4] = [
        |world| _ = good(&world.run(&RELEASES[0])),
        |world| world.target.close_nexus(ONE),
        |world| {
            world.target.reset(Reset::Unit(LUN), &mut world.effects).unwrap();
            assert_eq!(world.attention(TWO), Some(Additional::DEVICE_RESET));
        },
        |world| {
            world.target.reset(Reset::Target, &mut world.effects).unwrap();
            assert_eq!(world.attention(TWO), Some(Additional::DEVICE_RESET));
        },
    ];
    for (end, (reserve, release)) in ends.into_iter().zip(RESERVES.into_iter().zip(RELEASES).cycle()) {
        let mut world = World::new();
        good(&world.run(&reserve));
        good(&world.run(&reserve));
        for command in [&reserve[..], &[0; 6], &[0x1a, 8, 0x3f, 0, 4, 0], &cdb(0x28, 0, 0, 1), &[0x5e; 1]] {
            conflict(&world.send(TWO, command, &[]));
        }
        conflict(&world.run(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]));
        good(&world.send(TWO, &[0x12, 0, 0, 0, 36, 0], &[]));
        good(&world.send(TWO, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[]));
        good(&world.send(TWO, &REQUEST_SENSE, &[]));
        good(&world.send(TWO, &release, &[]));
        conflict(&world.send(TWO, &reserve, &[]));
        good(&world.run(&cdb(0x28, 0, 0, 1)));
        end(&mut world);
        good(&world.send(TWO, &reserve, &[]));
    }
    let mut world = World::new();
    for flags in [0x01, 0x10] {
        illegal(&world.run(&[0x16, flags, 0, 0, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    }
}

/// SPC-4 5.15.2: what each state serves, how it says no, and that a change is told.
#[test]
fn path_states() {
    let cases = [
        (PathState::Standby, Additional::STANDBY),
        (PathState::Unavailable, Additional::UNAVAILABLE),
        (PathState::Transitioning, Additional::TRANSITION),
    ];
    for (state, additional) in cases {
        let mut world = World::new();
        world.target.set_path(state, &mut world.effects);
        world.target.set_path(state, &mut world.effects);
        let told: Vec<_> = world.effects.drain(..).rev().take(2).collect();
        assert_eq!(told, [TWO, ONE].map(|nexus| TargetEffect::Attention { nexus, volume: VolumeNumber(0) }));
        assert_eq!(world.attention(ONE), Some(Additional::ACCESS_STATE_CHANGED));
        for command in [&[0; 6][..], &cdb(0x28, 0, 0, 1), &cdb(0x35, 0, 0, 0)] {
            check(&world.run(command), SenseKey::NotReady, additional);
        }
        good(&world.run(&[0x12, 0, 0, 0, 36, 0]));
        good(&world.run(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]));
        good(&world.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]));
        for command in [&[0x25; 1][..], &[0x1a, 8, 0x3f, 0, 4, 0], &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]] {
            let served = world.run(command).status == ScsiStatus::Good;
            assert_eq!(served, state == PathState::Standby, "{state:?} {command:x?}");
        }
    }
}

/// SPC-4 6.37: one group per node, with its state and its port.
#[test]
fn target_port_groups() {
    let mut world = World::new();
    world.target.set_peer_path(PortGroup(2), PathState::Standby, &mut world.effects);
    assert_eq!(world.attention(ONE), Some(Additional::ACCESS_STATE_CHANGED));
    let groups = [
        [0x80, 0x8f, 0, 1, 0, 2, 0, 1, 0, 0, 0, 1],
        [0x02, 0x8f, 0, 2, 0, 2, 0, 1, 0, 0, 0, 2],
        [0x03, 0x8f, 0, 3, 0, 2, 0, 1, 0, 0, 0, 3],
    ];
    let data = good(&world.run(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(data, [&[0, 0, 0, 36][..], groups.as_flattened()].concat());
    let data = good(&world.run(&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(data, [&[0, 0, 0, 40, 0x10, 60, 0, 0][..], groups.as_flattened()].concat());
    illegal(&world.run(&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
}
