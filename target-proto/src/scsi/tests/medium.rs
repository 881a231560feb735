//! Commands on blocks (SBC-3 5).

use super::*;

const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];
const WRITES_AND_VERIFIES: [u8; 3] = [0x2e, 0xae, 0x8e];
const VERIFIES: [u8; 3] = [0x2f, 0xaf, 0x8f];
const ORWRITE: u8 = 0x8b;
const COMPARE_AND_WRITE: u8 = 0x89;
const LONG: [u8; 17] =
    [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x2f, 0xaf, 0x8f, 0x34, 0x90, 0x35, 0x91, ORWRITE];

fn pattern(blocks: usize, seed: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 7 + seed) as u8).collect()
}

/// SBC-3 5: what any form of WRITE stores, any form of READ returns.
#[test]
fn written_blocks_are_read_back() {
    for (seed, write) in WRITES.into_iter().chain(WRITES_AND_VERIFIES).enumerate() {
        let mut world = World::new();
        for (lba, count) in [(0, 1), (5, 255), (BLOCKS - 1, 1)] {
            let data = pattern(count, seed);
            good(&world.write(&cdb(write, 0, lba, count as u32), &data));
            for read in READS {
                assert_eq!(good(&world.run(&cdb(read, 0, lba, count as u32))), data, "{write:#x} {read:#x}");
            }
        }
    }
}

/// SBC-3 5.10: a length of 0 is 256 blocks in the shortest form, and nothing in the others.
#[test]
fn zero_blocks() {
    let mut world = World::new();
    assert_eq!(good(&world.run(&cdb(0x08, 0, 0, 0))).len(), 256 * BLOCK);
    good(&world.write(&cdb(0x0a, 0, 0, 0), &pattern(256, 1)));
    world.commands.clear();
    for code in LONG {
        good(&world.run(&cdb(code, 0, 0, 0)));
        good(&world.run(&cdb(code, 0, BLOCKS, 0)));
        illegal(&world.run(&cdb(code, 0, BLOCKS + 1, 0)), Additional::LBA_OUT_OF_RANGE);
    }
    good(&world.run(&cdb(COMPARE_AND_WRITE, 0, 0, 0)));
    assert!(world.commands.iter().all(|command| *command == Command::Flush));
}

/// SBC-3 4.5: no address behind the end is touched, however it is reached.
#[test]
fn beyond_the_end() {
    let mut world = World::new();
    world.commands.clear();
    for code in LONG.into_iter().chain([COMPARE_AND_WRITE, 0x41, 0x93]) {
        let wide = code >> 5 == 4;
        let last = if wide { u64::MAX } else { u64::from(u32::MAX) };
        for (lba, count) in [(BLOCKS, 1), (BLOCKS - 1, 2), (1 << 31, 1), (last, 1), (last, 2)] {
            let data = vec![0; 4 * BLOCK];
            illegal(&world.write(&cdb(code, 0, lba, count), &data), Additional::LBA_OUT_OF_RANGE);
        }
    }
    for code in [0x08, 0x0a] {
        illegal(&world.write(&cdb(code, 0, BLOCKS - 1, 2), &[0; 1024]), Additional::LBA_OUT_OF_RANGE);
    }
    assert!(world.commands.is_empty());
    assert_eq!(world.target.transfer(LUN, &cdb(0x8a, 0, BLOCKS, 1)), crate::scsi::Transfer::default());
}

/// There is no protection information: RDPROTECT, WRPROTECT and VRPROTECT are refused by field.
#[test]
fn protection_is_refused() {
    let mut world = World::new();
    let codes = LONG.into_iter().filter(|code| ![0x34, 0x90, 0x35, 0x91].contains(code));
    for code in codes.chain([COMPARE_AND_WRITE, 0x41, 0x93]) {
        for protect in 1..8 {
            let response = world.write(&cdb(code, protect << 5, 0, 1), &[0; 2 * BLOCK]);
            illegal(&response, Additional::INVALID_FIELD_IN_CDB);
            let field = response.sense.unwrap().field.unwrap();
            assert_eq!((field.in_cdb, field.byte, field.bit), (true, 1, Some(7)));
        }
    }
}

/// P2: FUA reaches the volume, WCE=0 makes every write a stable one, and a read with FUA flushes before it reads.
#[test]
fn force_unit_access() {
    let mut world = World::new();
    let fua = |world: &mut World, code: u8, flags: u8| {
        world.commands.clear();
        let blocks = if code == COMPARE_AND_WRITE { 2 } else { 1 };
        world.disk.fill(0);
        good(&world.write(&cdb(code, flags, 0, 1), &vec![0; blocks * BLOCK]));
        match &world.commands[0] {
            Command::Write { fua, .. }
            | Command::OrWrite { fua, .. }
            | Command::WriteZeroes { fua, .. }
            | Command::CompareAndWrite { fua, .. } => *fua,
            other => panic!("{other:?}"),
        }
    };
    for code in [0x2a, 0xaa, 0x8a, ORWRITE, COMPARE_AND_WRITE] {
        for (flags, stable) in [(0x00, false), (0x10, false), (0x08, true), (0x18, true)] {
            assert_eq!(fua(&mut world, code, flags), stable, "{code:#x} {flags:#x}");
        }
    }
    let mut caching = vec![0, 0, 0, 0, 0x08, 18, 0x00];
    caching.resize(4 + 20, 0);
    good(&world.write(&[0x15, 0x10, 0, 0, 24, 0], &caching));
    for code in [0x2a, 0xaa, 0x8a, ORWRITE, COMPARE_AND_WRITE, 0x41, 0x93] {
        assert!(fua(&mut world, code, 0), "{code:#x}");
    }
    world.commands.clear();
    good(&world.run(&cdb(0x28, 0x08, 0, 1)));
    assert_eq!(world.commands[0], Command::Flush);
}

/// SBC-3 5.27: VERIFY compares all the data, one block over and over, or nothing, and says where they differ.
#[test]
fn verify() {
    for code in VERIFIES {
        let mut world = World::new();
        let data = pattern(3000, 3);
        world.disk[..data.len()].copy_from_slice(&data);
        good(&world.run(&cdb(code, 0x00, 0, 3000)));
        good(&world.write(&cdb(code, 0x02, 0, 3000), &data));
        for at in [0, 511, 1 << 20, (1 << 20) - 1, data.len() - 1] {
            let mut other = data.clone();
            other[at] ^= 0x40;
            let response = world.write(&cdb(code, 0x02, 0, 3000), &other);
            check(&response, SenseKey::Miscompare, Additional::MISCOMPARE);
            assert_eq!(response.sense.unwrap().information, Some(at as u64));
            good(&world.write(&cdb(code, 0x00, 0, 3000), &[]));
        }
        illegal(&world.write(&cdb(code, 0x04, 0, 1), &data[..BLOCK]), Additional::INVALID_FIELD_IN_CDB);

        let block = pattern(1, 9);
        world.disk[..3000 * BLOCK].copy_from_slice(&block.repeat(3000));
        good(&world.write(&cdb(code, 0x06, 0, 3000), &block));
        world.disk[2500 * BLOCK + 3] ^= 1;
        let response = world.write(&cdb(code, 0x06, 0, 3000), &block);
        check(&response, SenseKey::Miscompare, Additional::MISCOMPARE);
        assert_eq!(response.sense.unwrap().information, Some(2500 * 512 + 3));
        let short = world.write(&cdb(code, 0x06, 0, 3000), &block[..100]);
        illegal(&short, Additional::INVALID_INFORMATION_UNIT_FIELD);
    }
}

/// P13: a command of any size is worked off in pieces of at most 1 MiB.
#[test]
fn long_commands_use_bounded_memory() {
    let mut world = World::with(UnitConfig { size: 64 << 20, ..unit(0) });
    good(&world.run(&cdb(0x8f, 0, 0, 65536)));
    assert_eq!(world.commands.len(), 32);
    good(&world.write(&cdb(0x93, 0, 0, 131_072), &[7; BLOCK]));
    assert!(world.disk.iter().all(|byte| *byte == 7));
    let len = |command: &Command| command.extent().unwrap().len;
    assert!(world.commands.iter().all(|command| len(command) <= 1 << 20));
}

/// SBC-3 5.36: the blocks are written for good, then read, then compared where BYTCHK asks for it.
#[test]
fn write_and_verify() {
    for code in WRITES_AND_VERIFIES {
        for flags in [0x00, 0x02, 0x10, 0x12] {
            let mut world = World::new();
            world.commands.clear();
            good(&world.write(&cdb(code, flags, 1, 2), &pattern(2, 4)));
            let [Command::Write { fua: true, .. }, Command::Read { extent }] = &world.commands[..] else {
                panic!("{:?}", world.commands)
            };
            assert_eq!(*extent, Extent::new(512, 1024));
        }
        for flags in [0x04, 0x06] {
            let response = World::new().write(&cdb(code, flags, 0, 1), &[0; BLOCK]);
            illegal(&response, Additional::INVALID_FIELD_IN_CDB);
        }
    }
}

/// SBC-3 5.2: the write happens if and only if the blocks are as expected, and all of them are named in one step.
#[test]
fn compare_and_write() {
    let mut world = World::new();
    let (old, new) = (pattern(255, 1), pattern(255, 2));
    world.disk[..old.len()].copy_from_slice(&old);
    good(&world.write(&cdb(COMPARE_AND_WRITE, 0, 0, 255), &[&old[..], &new].concat()));
    assert_eq!(world.disk[..new.len()], new);
    let response = world.write(&cdb(COMPARE_AND_WRITE, 0, 0, 255), &[&old[..], &old].concat());
    check(&response, SenseKey::Miscompare, Additional::MISCOMPARE);
    assert_eq!(response.sense.unwrap().information, Some(0));
    assert_eq!(world.disk[..new.len()], new);
    for blocks in [0, 1, 3, 4, 6, 7, 8] {
        let response = world.write(&cdb(COMPARE_AND_WRITE, 0, 0, 4), &vec![0; blocks * BLOCK]);
        if blocks < 8 {
            illegal(&response, Additional::INVALID_FIELD_IN_CDB);
        }
    }
    for (count, blocks) in [(1, 4), (3, 4), (0, 512)] {
        let response = world.write(&cdb(COMPARE_AND_WRITE, 0, 0, count), &vec![0; blocks * BLOCK]);
        illegal(&response, Additional::INVALID_FIELD_IN_CDB);
        assert_eq!(response.sense.unwrap().field.unwrap().byte, 13);
    }
}

/// SBC-3 5.6: bits are set, none is cleared.
#[test]
fn orwrite() {
    let mut world = World::new();
    world.disk[..BLOCK].fill(0xa5);
    good(&world.write(&cdb(ORWRITE, 0, 0, 2), &[0x5a; 2 * BLOCK]));
    assert!(world.disk[..BLOCK].iter().all(|byte| *byte == 0xff));
    assert!(world.disk[BLOCK..2 * BLOCK].iter().all(|byte| *byte == 0x5a));
}

/// An initiator that announces less data than the CDB asks for has that much written, to the byte.
#[test]
fn less_data_than_blocks() {
    for code in WRITES.into_iter().chain(WRITES_AND_VERIFIES).chain([ORWRITE]) {
        for len in [0, 1, 200, 511, 512, 513, 1000, 1024, 2048] {
            let mut world = World::new();
            world.disk.fill(8);
            good(&world.write(&cdb(code, 0, 1, 2), &vec![3; len]));
            let (start, sent) = (BLOCK, len.min(2 * BLOCK));
            let new = if code == ORWRITE { 11 } else { 3 };
            assert!(world.disk[start..start + sent].iter().all(|byte| *byte == new), "{code:#x} {len}");
            assert!(world.disk[..start].iter().all(|byte| *byte == 8));
            assert!(world.disk[start + sent..].iter().all(|byte| *byte == 8), "{code:#x} {len}");
        }
    }
    let mut world = World::new();
    let response = world.write(&cdb(0x2f, 0x02, 0, 1), &[0; 200]);
    illegal(&response, Additional::INVALID_INFORMATION_UNIT_FIELD);
}

/// P4: a block of which a part is replaced is written between other commands, not over them.
#[test]
fn a_partial_block_is_replaced_in_one_step() {
    let mut world = World::new();
    let command = cdb(0x2a, 0, 0, 1);
    let request = Request {
        nexus: ONE,
        lun: LUN,
        cdb: &command,
        data_out: vec![3; 200].into(),
        data_out_expected: 200,
    };
    let mut step = world.target.start(request, &mut world.effects);
    let mut interferences = 0;
    let response = loop {
        let Step::Submit { command, then, .. } = step else { panic!("{step:?}") };
        if matches!(command, Command::CompareAndWrite { .. }) && interferences < 3 {
            interferences += 1;
            world.disk[300..BLOCK].fill(interferences);
        }
        let status = world.execute(command);
        step = match world.target.resume(then, status) {
            Step::Done(response) => break response,
            step => step,
        };
    };
    good(&response);
    assert_eq!((world.disk[199], world.disk[200], world.disk[300]), (3, 0, 3));
}

/// The limits that VPD page B0h announces are those that are kept.
#[test]
fn announced_limits_hold() {
    let mut world = World::with(UnitConfig { size: 2 << 30, ..unit(0) });
    let limits = good(&world.run(&[0x12, 1, 0xb0, 0, 64, 0]));
    let transfer_max = u32::from_be_bytes(limits[8..12].try_into().unwrap());
    let write_same_max = u64::from_be_bytes(limits[36..44].try_into().unwrap());
    assert_eq!((transfer_max, write_same_max), (65536, 2 << 20));
    for code in [0x88, 0x8a, 0x8b, 0x8e, 0x8f] {
        illegal(&world.run(&cdb(code, 0, 0, transfer_max + 1)), Additional::INVALID_FIELD_IN_CDB);
    }
    illegal(&world.run(&cdb(0x93, 1, 0, write_same_max as u32 + 1)), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(limits[4..6], [1, 255]);
    for code in [0x41, 0x93] {
        illegal(&world.write(&cdb(code, 0, 0, 0), &[0; BLOCK]), Additional::INVALID_FIELD_IN_CDB);
        illegal(&world.write(&cdb(code, 0, 4 << 20 | 1, 0), &[0; BLOCK]), Additional::LBA_OUT_OF_RANGE);
    }
}

/// A failure of the volume tells the initiator whether the medium or this path is at fault.
#[test]
fn failures_become_sense() {
    let expected = [
        (Failure::ReadError, SenseKey::MediumError, Additional::READ_ERROR),
        (Failure::WriteError, SenseKey::MediumError, Additional::WRITE_ERROR),
        (Failure::NoSpace, SenseKey::DataProtect, Additional::NO_SPACE),
        (Failure::Standby, SenseKey::NotReady, Additional::STANDBY),
        (Failure::NoData, SenseKey::NotReady, Additional::UNAVAILABLE),
    ];
    let mut world = World::new();
    for (failure, key, additional) in expected {
        world.failure = Some(failure);
        check(&world.run(&cdb(0x28, 0, 0, 1)), key, additional);
        check(&world.write(&cdb(0x2a, 0, 0, 1), &[0; BLOCK]), key, additional);
        check(&world.run(&cdb(0x35, 0, 0, 0)), key, additional);
    }
    world.failure = Some(Failure::Stopping);
    assert_eq!(world.run(&cdb(0x28, 0, 0, 1)).status, ScsiStatus::Busy);
}

/// SWP and a read-only unit: nothing is written, everything is read.
#[test]
fn write_protection() {
    let protect = |world: &mut World| {
        let control = [0, 0, 0, 0, 0x0a, 10, 0x02, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 0];
        good(&world.write(&[0x15, 0x10, 0, 0, 16, 0], &control));
    };
    let mut by_page = World::new();
    protect(&mut by_page);
    for mut world in [by_page, World::with(UnitConfig { read_only: true, ..unit(0) })] {
        world.commands.clear();
        let writes = WRITES.into_iter().chain(WRITES_AND_VERIFIES).chain([ORWRITE, 0x41, 0x93]);
        for code in writes {
            let response = world.write(&cdb(code, 0, 0, 1), &[0; BLOCK]);
            check(&response, SenseKey::DataProtect, Additional::WRITE_PROTECTED);
        }
        let response = world.write(&cdb(COMPARE_AND_WRITE, 0, 0, 1), &[0; 2 * BLOCK]);
        check(&response, SenseKey::DataProtect, Additional::WRITE_PROTECTED);
        let response = world.write(&[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8]);
        check(&response, SenseKey::DataProtect, Additional::WRITE_PROTECTED);
        assert!(world.commands.is_empty());
        good(&world.run(&cdb(0x28, 0, 0, 1)));
        assert_eq!(good(&world.run(&[0x1a, 8, 0x3f, 0, 4, 0]))[2], 0x90);
    }
}
