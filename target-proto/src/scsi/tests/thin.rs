//! Thin provisioning: UNMAP, WRITE SAME, GET LBA STATUS (SBC-3 4.7).

use super::*;

const UNMAP: u8 = 0x42;

fn unmap(world: &mut World, runs: &[(u64, u32)]) -> Response {
    let list = unmap_list(runs);
    let len = (list.len() as u16).to_be_bytes();
    world.write(&[UNMAP, 0, 0, 0, 0, 0, 0, len[0], len[1], 0], &list)
}

fn unmap_list(runs: &[(u64, u32)]) -> Vec<u8> {
    let len = runs.len() * 16;
    let mut list = Vec::new();
    list.extend((len as u16 + 6).to_be_bytes());
    list.extend((len as u16).to_be_bytes());
    list.extend([0; 4]);
    for (lba, count) in runs {
        list.extend(lba.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn lba_status(world: &mut World, lba: u64, allocation: u32) -> Response {
    let mut cdb = vec![0x9e, 0x12];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(allocation.to_be_bytes());
    cdb.extend([0, 0]);
    world.run(&cdb)
}

/// SBC-3 5.26: unmapped blocks read as zeros and give their space back, as GET LBA STATUS tells.
#[test]
fn unmapped_blocks_are_zeros() {
    let mut world = World::new();
    good(&world.write(&cdb(0x2a, 0, 0, 64), &vec![0xff; 64 * BLOCK]));
    good(&unmap(&mut world, &[(8, 8), (32, 1), (40, 0), (BLOCKS, 0)]));
    assert!(world.disk[8 * BLOCK..16 * BLOCK].iter().all(|byte| *byte == 0));
    assert_eq!((world.disk[8 * BLOCK - 1], world.disk[16 * BLOCK], world.disk[32 * BLOCK]), (0xff, 0xff, 0));
    let data = good(&lba_status(&mut world, 4, 8 + 16 * 16));
    let told: Vec<_> = data[8..]
        .chunks(16)
        .map(|entry| {
            let lba = u64::from_be_bytes(entry[..8].try_into().unwrap());
            (lba, u32::from_be_bytes(entry[8..12].try_into().unwrap()), entry[12])
        })
        .collect();
    let expected = [(4, 4, 0), (8, 8, 1), (16, 16, 0), (32, 1, 1), (33, 31, 0), (64, BLOCKS as u32 - 64, 1)];
    assert_eq!(told, expected);
    assert_eq!(data[..4], (4 + 16 * 6_u32).to_be_bytes());
    let one = good(&lba_status(&mut world, 9, 24));
    assert_eq!(one[8..], [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 7, 1, 0, 0, 0]);
    for lba in [BLOCKS, BLOCKS + 1, 1 << 63, u64::MAX] {
        illegal(&lba_status(&mut world, lba, 24), Additional::LBA_OUT_OF_RANGE);
    }
}

/// SBC-3 5.26.2: a list is carried out whole or not at all.
#[test]
fn unmap_lists() {
    let mut world = World::new();
    world.disk.fill(1);
    good(&unmap(&mut world, &[]));
    good(&world.run(&[UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    for runs in [&[(0, 1), (BLOCKS, 1)][..], &[(0, 1), (u64::MAX, 1)], &[(0, 1), (BLOCKS + 1, 0)]] {
        illegal(&unmap(&mut world, runs), Additional::LBA_OUT_OF_RANGE);
    }
    illegal(&unmap(&mut world, &[(0, 1); 257]), Additional::INVALID_FIELD_IN_PARAMETERS);
    let list = unmap_list(&[(0, 1)]);
    for len in 1..list.len() {
        let cdb = [UNMAP, 0, 0, 0, 0, 0, 0, 0, len as u8, 0];
        illegal(&world.write(&cdb, &list[..len]), Additional::PARAMETER_LIST_LENGTH);
    }
    illegal(&world.write(&[UNMAP, 1, 0, 0, 0, 0, 0, 0, 24, 0], &list), Additional::INVALID_FIELD_IN_CDB);
    assert!(world.disk.iter().all(|byte| *byte == 1));
    good(&unmap(&mut world, &vec![(0, 1); 256]));
    assert_eq!(world.disk[0], 0);
}

/// SBC-3 5.42: WRITE SAME fills, from the block it brings or with zeros, and gives space back where that is the same.
#[test]
fn write_same() {
    for code in [0x41, 0x93] {
        let mut world = World::new();
        good(&world.write(&cdb(code, 0, 1, 300), &[0xa6; BLOCK]));
        assert!(world.disk[BLOCK..301 * BLOCK].iter().all(|byte| *byte == 0xa6));
        assert_eq!((world.disk[BLOCK - 1], world.disk[301 * BLOCK]), (0, 0));
        good(&world.write(&cdb(code, 0x08, 1, 8), &[0xa7; BLOCK]));
        assert!(world.mapped[1] && world.disk[BLOCK] == 0xa7, "data that is no zeros is written");
        good(&world.write(&cdb(code, 0x08, 1, 8), &[0; BLOCK]));
        assert!(!world.mapped[1] && world.disk[BLOCK] == 0);
        good(&world.write(&cdb(code, 0, 1, 8), &[0; BLOCK]));
        assert!(world.mapped[1], "without UNMAP the space stays");
        for flag in [0x10, 0x18, 0x04, 0x02] {
            illegal(&world.write(&cdb(code, flag, 0, 1), &[0; BLOCK]), Additional::INVALID_FIELD_IN_CDB);
        }
        for len in [0, BLOCK / 2, 2 * BLOCK] {
            let response = world.write(&cdb(code, 0x08, 0, 1), &vec![0; len]);
            illegal(&response, Additional::INVALID_INFORMATION_UNIT_FIELD);
        }
    }
    illegal(&World::new().write(&cdb(0x41, 0x01, 0, 1), &[0; BLOCK]), Additional::INVALID_FIELD_IN_CDB);
}

/// SBC-3 5.43: NDOB brings no data and writes zeros.
#[test]
fn write_same_without_data() {
    let mut world = World::new();
    world.disk.fill(9);
    good(&world.run(&cdb(0x93, 0x01, 2, 2)));
    assert_eq!(world.disk[2 * BLOCK..4 * BLOCK], [0; 2 * BLOCK]);
    assert_eq!((world.disk[2 * BLOCK - 1], world.disk[4 * BLOCK]), (9, 9));
}

/// What a unit that is not thin does not announce it does not do.
#[test]
fn a_full_unit_does_not_unmap() {
    let mut world = World::with(UnitConfig { thin: false, ..unit(0) });
    illegal(&unmap(&mut world, &[(0, 1)]), Additional::INVALID_OPERATION_CODE);
    illegal(&world.write(&cdb(0x93, 0x08, 0, 1), &[0; BLOCK]), Additional::INVALID_FIELD_IN_CDB);
    let capacity = good(&world.run(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]));
    assert_eq!(capacity[14], 0);
    let limits = good(&world.run(&[0x12, 1, 0xb0, 0, 64, 0]));
    assert_eq!(limits[20..36], [0; 16]);
    assert_eq!(good(&world.run(&[0x12, 1, 0xb2, 0, 64, 0]))[5..7], [0, 0]);
    let supported = good(&world.run(&[0xa3, 0x0c, 1, UNMAP, 0, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(supported, [0, 1, 0, 0]);
}
