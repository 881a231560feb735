//! What EXTENDED COPY does not copy, and what it says of it (SPC-4 6.4.3, 6.4.4).

use super::super::hostile::Random;
use super::*;

/// CVE-2020-28374: no unit but those of this target can be named, in whatever way.
#[test]
fn no_foreign_unit_is_reached() {
    let mut world = Volumes::new();
    let own = cscd(&mut world, ZERO);
    let same = segment((0, 1), 1, 0, 0);
    for (at, value) in [(4, 2), (5, 2), (5, 0x13), (5, 0x23), (7, 15), (7, 17), (8, 0x60 ^ 0xff), (23, 0xa5)]
    {
        let mut foreign = cscd(&mut world, FIRST);
        foreign[at] = value;
        let response = world.copy(&list(1, &[own.clone(), foreign], std::slice::from_ref(&same)));
        aborted(&response, Additional::COPY_TARGET_NOT_REACHABLE, 0);
    }
    let mut null = own.clone();
    null[1] = 0x20;
    let response = world.copy(&list(1, &[own.clone(), null.clone()], std::slice::from_ref(&same)));
    aborted(&response, Additional::COPY_TARGET_NOT_REACHABLE, 0);
    let mut tape = own.clone();
    tape[1] = 1;
    let response = world.copy(&list(1, &[own.clone(), tape], std::slice::from_ref(&same)));
    aborted(&response, Additional::INCORRECT_COPY_TARGET_TYPE, 0);
    let response = world.copy(&list(1, std::slice::from_ref(&own), &[same]));
    aborted(&response, Additional::UNREACHABLE_COPY_TARGET, 0);
    // One that no segment needs does no harm.
    good(&world.copy(&list(1, &[own, null], &[segment((0, 0), 0, 0, 0)])));
    assert!(world.commands.is_empty());
}

/// SPC-4 6.4.3: what is wrong with the form is found before anything is copied.
#[test]
fn a_list_breaks_its_form() {
    let mut world = Volumes::new();
    let own = cscd(&mut world, ZERO);
    let right = list(1, std::slice::from_ref(&own), &[segment((0, 0), 1, 0, 8)]);
    let (cscd_at, segment_at) = (16, 48);
    for (at, value, additional) in [
        (1, 0x08, Additional::INVALID_FIELD_IN_PARAMETERS),
        (1, 0x18, Additional::INVALID_FIELD_IN_PARAMETERS),
        (3, 31, Additional::INVALID_FIELD_IN_PARAMETERS),
        (11, 27, Additional::INVALID_FIELD_IN_PARAMETERS),
        (11, 29, Additional::PARAMETER_LIST_LENGTH),
        (8, 1, Additional::PARAMETER_LIST_LENGTH),
        (15, 1, Additional::INLINE_DATA_LENGTH_EXCEEDED),
        (cscd_at, 0xe0, Additional::UNSUPPORTED_TARGET_DESCRIPTOR),
        (cscd_at, 0xe5, Additional::UNSUPPORTED_TARGET_DESCRIPTOR),
        (cscd_at + 7, 21, Additional::INVALID_FIELD_IN_PARAMETERS),
        (cscd_at + 30, 0x10, Additional::INVALID_FIELD_IN_PARAMETERS),
        (segment_at, 0x03, Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR),
        (segment_at + 3, 23, Additional::INVALID_FIELD_IN_PARAMETERS),
    ] {
        let mut wrong = right.clone();
        wrong[at] = value;
        illegal(&world.copy(&wrong), additional);
    }
    for len in 1..right.len() {
        illegal(&world.copy(&right[..len]), Additional::PARAMETER_LIST_LENGTH);
        let short = world.send(ONE, ZERO, &extended_copy(right.len()), &right[..len]);
        illegal(&short, Additional::PARAMETER_LIST_LENGTH);
    }
    illegal(&world.send(ONE, ZERO, &extended_copy((64 << 10) + 1), &[]), Additional::PARAMETER_LIST_LENGTH);
    illegal(&world.ask(0, 1, 12), Additional::INVALID_FIELD_IN_CDB);
    assert!(world.commands.is_empty());
    good(&world.copy(&[]));
    good(&world.copy(&list(1, &[], &[])));
    good(&world.copy(&[right, vec![0; 100]].concat()));
    assert_eq!(world.commands.len(), 2);
}

/// A segment that can not be copied ends the command; those before it are copied, and the sense data says which.
#[test]
fn a_segment_fails() {
    let mut world = Volumes::new();
    let cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST), cscd(&mut world, LARGE)];
    let blocks = world.disks[&ZERO].len() as u64 / BLOCK as u64;
    let right = segment((0, 1), 1, 0, 0);
    for (wrong, additional) in [
        (segment((0, 1), 2, blocks - 1, 0), Additional::NONE),
        (segment((0, 1), 2, 0, blocks - 1), Additional::NONE),
        (segment((0, 1), 2, u64::MAX, 0), Additional::NONE),
        (segment((0, 1), 0xffff, 0, u64::MAX), Additional::NONE),
        (segment((0, 2), 8, 0, 0), Additional::INVALID_COPY_OPERATION),
        (segment((2, 1), 1, 0, 0), Additional::INVALID_COPY_OPERATION),
        (segment((3, 1), 1, 0, 0), Additional::UNREACHABLE_COPY_TARGET),
        (segment((0, 0xffff), 1, 0, 0), Additional::UNREACHABLE_COPY_TARGET),
    ] {
        aborted(&world.copy(&list(9, &cscds, &[right.clone(), wrong, right.clone()])), additional, 1);
        assert_eq!(world.status(9), (2, 1, 512));
    }
    for failure in [Failure::ReadError, Failure::WriteError, Failure::NoSpace] {
        for volume in [ZERO, FIRST] {
            world.broken = Some((volume, failure));
            let response = world.copy(&list(9, &cscds, std::slice::from_ref(&right)));
            aborted(&response, Additional::THIRD_PARTY_DEVICE_FAILURE, 0);
        }
    }
    world.broken = Some((FIRST, Failure::Standby));
    let response = world.copy(&list(9, &cscds, std::slice::from_ref(&right)));
    check(&response, SenseKey::NotReady, Additional::STANDBY);
    world.broken = Some((FIRST, Failure::Stopping));
    assert_eq!(world.copy(&list(9, &cscds, &[right])).status, ScsiStatus::Busy);
    assert_eq!(world.status(9), (2, 0, 0));
}

/// SPC-4 5.13.1: what a reservation forbids to a nexus on either end it can not have copied, from whatever unit.
#[test]
fn reservations_and_protection_hold() {
    let mut world = Volumes::new();
    let cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST)];
    let copy = |source, destination| list(1, &cscds, &[segment((source, destination), 1, 0, 0)]);
    let mut registration = [0; 24];
    registration[15] = 1;
    good(&world.send(TWO, FIRST, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &registration));
    registration[7] = 1;
    good(&world.send(TWO, FIRST, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &registration));
    aborted(&world.copy(&copy(0, 1)), Additional::THIRD_PARTY_DEVICE_FAILURE, 0);
    good(&world.copy(&copy(1, 0)));
    good(&world.send(TWO, FIRST, &[0x5f, 2, 1, 0, 0, 0, 0, 0, 24, 0], &registration));
    good(&world.send(TWO, FIRST, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], &registration));
    aborted(&world.copy(&copy(1, 0)), Additional::THIRD_PARTY_DEVICE_FAILURE, 0);
    conflict(&world.send(ONE, FIRST, &extended_copy(0), &[]));
    conflict(&world.send(ONE, FIRST, &results(3, 0, 64), &[]));
    good(&world.send(TWO, FIRST, &[0x5f, 3, 0, 0, 0, 0, 0, 0, 24, 0], &registration));
    good(&world.send(TWO, FIRST, &[0x16, 0, 0, 0, 0, 0], &[]));
    aborted(&world.copy(&copy(1, 0)), Additional::THIRD_PARTY_DEVICE_FAILURE, 0);
    good(&world.send(TWO, FIRST, &[0x17, 0, 0, 0, 0, 0], &[]));
    world.target.units.get_mut(&FIRST).unwrap().config.read_only = true;
    aborted(&world.copy(&copy(0, 1)), Additional::WRITE_PROTECTED, 0);
    good(&world.copy(&copy(1, 0)));
    world.target.set_path(PathState::Standby, &mut Vec::new());
    world.copy(&[]);
    check(&world.copy(&copy(1, 0)), SenseKey::NotReady, Additional::STANDBY);
}

/// A reservation made while a copy runs ends it before the next piece.
#[test]
fn a_reservation_stops_a_running_copy() {
    let mut world = Volumes::new();
    let cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST)];
    let list = list(1, &cscds, &[segment((0, 1), 8192, 0, 0)]);
    let step = world.begin(ONE, ZERO, &extended_copy(list.len()), &list);
    let step = world.carry_out(step).unwrap();
    let mut step = world.carry_out(step).unwrap();
    good(&world.send(TWO, FIRST, &[0x16, 0, 0, 0, 0, 0], &[]));
    world.commands.clear();
    let response = loop {
        match world.carry_out(step) {
            Ok(next) => step = next,
            Err(response) => break response,
        }
    };
    aborted(&response, Additional::THIRD_PARTY_DEVICE_FAILURE, 0);
    assert!(world.commands.iter().all(|(volume, _)| *volume == ZERO), "{:?}", world.commands.len());
    assert_eq!(world.status(1), (2, 0, PIECE as u32));
}

/// P13: whatever stands in a list, it ends, and nothing outside the volumes is touched.
#[test]
fn random_lists() {
    let seed = 0x5eed_0083;
    let mut random = Random(seed);
    let mut world = Volumes::new();
    let cscds = [cscd(&mut world, ZERO), cscd(&mut world, FIRST), cscd(&mut world, LARGE)];
    let mut copied = 0;
    for _ in 0..20_000 {
        let segments: Vec<_> = (0..random.below(4))
            .map(|_| {
                let places = (random.below(3) as u16, random.below(3) as u16);
                segment(places, random.below(40) as u16, random.below(9000), random.below(9000))
            })
            .collect();
        let mut list = list(random.below(8) as u8, &cscds[..2 + random.below(2) as usize], &segments);
        if random.below(2) == 0 {
            let at = random.below(list.len() as u64) as usize;
            list[at] = random.next() as u8;
        }
        if random.below(4) == 0 {
            list.truncate(random.below(list.len() as u64) as usize);
        }
        let response = world.copy(&list);
        copied += u32::from(response.status == ScsiStatus::Good && !world.commands.is_empty());
        world.commands.clear();
        world.ask(random.below(8) as u8, random.below(8) as u8, random.below(100) as u32);
    }
    assert!(copied > 500, "only {copied} lists copied anything, seed {seed:#x}");
}
