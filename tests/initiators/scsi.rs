//! SCSI commands that other targets answer wrongly (SPC-4, SBC-3).

use anyhow::{Context as _, Result};
use harness::raw::{Session, Task, cdb};

use crate::fixture::{Fixture, SIZE_BYTES, assert_check};

/// Recipe 6 (istgt died): MODE SELECT(6) with lists that are cut, or full of ones.
#[test]
fn mode_select_with_broken_lists() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let caching_page_too_long = [0, 0, 0, 0, 0x08, 0xff, 0, 0];
    let lists: [&[u8]; 5] = [&[], &[0; 3], &[0xff; 20], &caching_page_too_long, &[0, 0, 0, 0xff, 0x08, 0x12]];
    for list in lists {
        let select = cdb::from([0x15, 0x10, 0, 0, u8::try_from(list.len())?, 0]);
        let outcome = session.run(&Task::write(select, list))?;
        if list.is_empty() {
            // SPC-4, section 6.9: no list is no error.
            assert_eq!(outcome.status, 0, "{outcome:?}");
            continue;
        }
        let check = outcome.check().with_context(|| format!("{list:02x?} was taken: {outcome:?}"))?;
        assert!([PARAMETER_LENGTH, PARAMETER_FIELD].contains(&check), "{list:02x?}: {check:02x?}");
    }
    fixture.undisturbed()
}

/// Recipe 26 (LIO: CHECK CONDITION): INQUIRY to a unit that is not there tells so in its first byte.
#[test]
fn inquiry_of_an_absent_unit() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let task = Task::read(cdb::from([0x12, 0, 0, 0, 36, 0]), 36);
    let command = session.command(&task).lun(77);
    session.connection.send(&command)?;
    let outcome = session.follow(&command, &task)?;
    assert_eq!((outcome.status, outcome.data.first()), (0, Some(&0x7f)), "{outcome:?}");
    fixture.undisturbed()
}

/// Every other command to a unit that is not there: LOGICAL UNIT NOT SUPPORTED.
#[test]
fn read_of_an_absent_unit() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let task = Task::read(cdb::ten(cdb::READ_10, 0, 1), 512);
    let command = session.command(&task).lun(77);
    session.connection.send(&command)?;
    let outcome = session.follow(&command, &task)?;
    assert_check(&outcome, ILLEGAL_REQUEST, 0x25, 0);
    fixture.undisturbed()
}

/// Recipe 33 (tgt: GOOD): UNMAP with a list shorter than its header.
#[test]
fn unmap_with_a_short_list() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for len in 1..8_u8 {
        let outcome = session.run(&Task::write(unmap(len.into()), vec![0; len.into()]))?;
        assert_eq!(outcome.check(), Some(PARAMETER_LENGTH), "a list of {len} bytes");
    }
    let outcome = session.run(&Task::new(unmap(0)))?;
    assert_eq!(outcome.status, 0, "SBC-3, section 5.28: no list is no error: {outcome:?}");
    fixture.undisturbed()
}

/// Recipe 33: what VPD B0 announces is what UNMAP and WRITE SAME enforce.
#[test]
fn unmap_and_write_same_keep_their_limits() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let limits = block_limits(&mut session)?;
    let (descriptors_max, unmap_max) = (word(&limits, 24)?, word(&limits, 20)?);
    assert!(descriptors_max > 0 && unmap_max > 0, "the unit announces no UNMAP");
    if descriptors_max < 4000 {
        let too_many = vec![(0_u64, 1_u32); usize::try_from(descriptors_max)? + 1];
        let outcome = session.run(&unmap_of(&too_many)?)?;
        assert_eq!(outcome.check(), Some(PARAMETER_FIELD), "{descriptors_max} descriptors and one more");
    }
    let blocks = u32::try_from(SIZE_BYTES / 512)?;
    let outcome = session.run(&unmap_of(&[(0, blocks + 1)])?)?;
    assert_check(&outcome, ILLEGAL_REQUEST, 0x21, 0);
    // WSNZ: a WRITE SAME of no blocks would mean the rest of the medium.
    if limits[4] & 1 != 0 {
        let outcome = session.run(&Task::write(cdb::sixteen(0x93, 0, 0), [0; 512]))?;
        assert_check(&outcome, ILLEGAL_REQUEST, 0x24, 0);
    }
    fixture.undisturbed()
}

/// Recipe 34 (tgt: GOOD, SPDK: no sense): SYNCHRONIZE CACHE beyond the medium.
#[test]
fn synchronize_cache_beyond_the_medium() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for (lba, blocks) in [(u64::MAX, 0), (u64::MAX, 1), (u64::MAX - 1, 2), (SIZE_BYTES / 512, 1)] {
        let outcome = session.run(&Task::new(cdb::sixteen(0x91, lba, blocks)))?;
        assert_check(&outcome, ILLEGAL_REQUEST, 0x21, 0);
    }
    fixture.undisturbed()
}

/// Addresses whose end passes 2^64 are out of range, for every command that has one.
#[test]
fn addresses_overflow() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for lba in [u64::MAX, u64::MAX - 1, u64::MAX / 2 + 1, SIZE_BYTES / 512 - 1] {
        for operation in [READ_16, VERIFY_16] {
            let outcome = session.run(&Task::read(cdb::sixteen(operation, lba, 2), 1024))?;
            assert_check(&outcome, ILLEGAL_REQUEST, 0x21, 0);
        }
        let outcome = session.run(&Task::write(cdb::sixteen(WRITE_16, lba, 2), [1; 1024]))?;
        assert_check(&outcome, ILLEGAL_REQUEST, 0x21, 0);
    }
    fixture.undisturbed()
}

/// Recipe 35 (LIO: GOOD): VERIFY with BYTCHK=1 compares.
#[test]
fn verify_compares() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 60, 1), [0xaa; 512]))?;
    assert_eq!(written.status, 0);
    let mut ten = cdb::ten(0x2f, 60, 1);
    let mut sixteen = cdb::sixteen(VERIFY_16, 60, 1);
    (ten[1], sixteen[1]) = (2, 2);
    for verify in [ten, sixteen] {
        let same = session.run(&Task::write(verify, [0xaa; 512]))?;
        assert_eq!(same.status, 0, "{same:?}");
        let mut other = [0xaa; 512];
        other[511] = 0xab;
        let outcome = session.run(&Task::write(verify, other))?;
        assert_check(&outcome, MISCOMPARE, 0x1d, 0);
    }
    fixture.undisturbed()
}

/// Recipe 36 (tgt announced it and refused it): COMPARE AND WRITE is announced exactly when it works.
#[test]
fn compare_and_write_is_as_announced() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let blocks_max = block_limits(&mut session)?[5];
    let mut compare_and_write = cdb::from([0x89]);
    compare_and_write[13] = 1;
    let mut data = vec![0; 512];
    data.extend([0x11; 512]);
    let outcome = session.run(&Task::write(compare_and_write, data.clone()))?;
    if blocks_max == 0 {
        assert_check(&outcome, ILLEGAL_REQUEST, 0x20, 0);
        return fixture.undisturbed();
    }
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let outcome = session.run(&Task::write(compare_and_write, data))?;
    assert_check(&outcome, MISCOMPARE, 0x1d, 0);
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
    assert_eq!(read.data, [0x11; 512]);
    fixture.undisturbed()
}

/// Recipe 58 (LIO: 2/08/00 until somebody makes a directory): a registration survives power loss from the first day.
#[test]
fn registration_is_persistent_at_once() -> Result<()> {
    let mut fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let mut parameters = vec![0; 24];
    parameters[8..16].copy_from_slice(b"evenkeel");
    parameters[20] = 1;
    let register = cdb::from([0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
    let outcome = session.run(&Task::write(register, parameters))?;
    assert_eq!(outcome.status, 0, "{outcome:?}");
    fixture.target = fixture.target.kill_and_restart()?;
    let mut session = fixture.session()?;
    let read_keys = cdb::from([0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0]);
    let outcome = session.run(&Task::read(read_keys, 64))?;
    assert_eq!(outcome.data.get(8..16), Some(&b"evenkeel"[..]), "{outcome:?}");
    fixture.target.server().alive()
}

/// Recipe 55, CVE-2020-28374 (LIO): EXTENDED COPY cannot name a unit of another target. Refused, or not there at all.
#[test]
fn extended_copy_from_a_foreign_unit() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let mut list = vec![0; 16 + 2 * 32 + 28];
    list[3] = 64;
    list[11] = 28;
    for (descriptor, naa) in [(16, 0x60), (48, 0x61)] {
        list[descriptor..descriptor + 8].copy_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 16]);
        list[descriptor + 8..descriptor + 24].fill(naa);
    }
    list[80..84].copy_from_slice(&[2, 0, 0, 0x18]);
    list[87] = 1;
    list[91] = 1;
    let mut extended_copy = cdb::from([0x83]);
    extended_copy[13] = u8::try_from(list.len())?;
    let outcome = session.run(&Task::write(extended_copy, list))?;
    assert_ne!(outcome.status, 0, "a copy between units that do not exist: {outcome:?}");
    fixture.undisturbed()
}

/// Every operation code with a CDB of zeros and of ones, with and without data: an answer, and the target lives.
#[test]
fn every_operation_code_is_answered() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for operation in 0..=0xff_u8 {
        for filler in [0, 0xff] {
            let mut cdb = [filler; 16];
            cdb[0] = operation;
            for task in [Task::new(cdb), Task::read(cdb, 512), Task::write(cdb, [filler; 512])] {
                let outcome = session.run(&task).with_context(|| format!("operation {operation:#04x}"))?;
                assert!(outcome.status != 2 || outcome.check().is_some(), "{operation:#04x} without sense");
            }
        }
    }
    let newcomer = fixture.session_with(&Fixture::login().from_initiator("two", 2));
    newcomer.map(drop)
}

fn block_limits(session: &mut Session) -> Result<Vec<u8>> {
    let outcome = session.run(&Task::read(cdb::vital_product_data(0xb0), 0x1000))?;
    anyhow::ensure!(outcome.status == 0 && outcome.data.len() >= 64, "no VPD page B0: {outcome:?}");
    Ok(outcome.data)
}

fn unmap(list_len: u16) -> [u8; 16] {
    cdb::ten(0x42, 0, list_len)
}

fn unmap_of(extents: &[(u64, u32)]) -> Result<Task> {
    let len = u16::try_from(extents.len() * 16)?;
    let mut list = vec![0; 8];
    list[0..2].copy_from_slice(&(len + 6).to_be_bytes());
    list[2..4].copy_from_slice(&len.to_be_bytes());
    for (lba, blocks) in extents {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    Ok(Task::write(unmap(len + 8), list))
}

fn word(page: &[u8], at: usize) -> Result<u32> {
    let bytes = page.get(at..at + 4).context("the page is short")?;
    Ok(u32::from_be_bytes(bytes.try_into()?))
}

const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const VERIFY_16: u8 = 0x8f;
const ILLEGAL_REQUEST: u8 = 5;
const MISCOMPARE: u8 = 0xe;
/// PARAMETER LIST LENGTH ERROR and INVALID FIELD IN PARAMETER LIST.
const PARAMETER_LENGTH: (u8, u8, u8) = (ILLEGAL_REQUEST, 0x1a, 0);
const PARAMETER_FIELD: (u8, u8, u8) = (ILLEGAL_REQUEST, 0x26, 0);
