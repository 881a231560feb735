//! Data on its way: lengths that disagree, offsets from nowhere, sequences with gaps (RFC 7143, section 11.7).

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use harness::{
    load::Random,
    raw::{Pdu, Received, Session, Task, cdb, opcode},
};

use crate::{
    fixture::Fixture,
    reject::{INVALID_FIELD, PROTOCOL_ERROR, rejected},
};

/// Recipes 12 and 13 (tgt closed in the middle of a PDU): a read that expects far more than there is.
#[test]
fn read_expects_too_much() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for expected in [0xffff_ffff, 0x7fff_ffff, 1024] {
        let outcome = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), expected))?;
        assert_eq!((outcome.status, outcome.data.len()), (0, 512));
        assert_eq!((outcome.underflow, outcome.overflow), (Some(expected - 512), None));
    }
    fixture.undisturbed()
}

/// A read that expects less than there is gets what it expects, and the rest is told as overflow.
#[test]
fn read_expects_too_little() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for expected in [0, 1, 200, 512] {
        let outcome = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 8), expected))?;
        assert_eq!((outcome.status, outcome.data.len()), (0, usize::try_from(expected)?));
        assert_eq!(outcome.overflow, Some(4096 - expected));
    }
    fixture.undisturbed()
}

/// Recipe 14 (tgt and SPDK asked for all of it): a write of one block that announces 4 GiB.
#[test]
fn write_announces_too_much() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
    let task = Task::write(cdb::ten(cdb::WRITE_10, 4, 1), [9; 512]).expecting(0xffff_ffff);
    // An R2T beyond the 512 bytes is an error of `run`.
    let outcome = session.run(&task)?;
    assert_eq!(outcome.underflow, Some(0xffff_ffff - 512), "{outcome:?}");
    session.ping()?;
    fixture.undisturbed()
}

/// Recipe 17 (tgt hung for good): Data-Out at offsets outside of what was asked for.
#[test]
fn data_out_at_a_wild_offset() -> Result<()> {
    let fixture = Fixture::start()?;
    for offset in [0x7fff_fe00, 0xffff_fe00, 8192, 512] {
        let (mut session, r2t) = waiting_write(&fixture, 16)?;
        let data = session.data_out(&r2t, 0, offset, &[1; 512], false);
        session.connection.send(&data)?;
        match session.receive_within(SOON)? {
            Received::Closed => {}
            Received::Pdu(answer) if answer.opcode() == opcode::REJECT => {
                assert!(
                    [INVALID_FIELD, PROTOCOL_ERROR].contains(&answer.header[2]),
                    "{:#04x}",
                    answer.header[2]
                );
            }
            Received::Pdu(answer) if answer.opcode() == opcode::SCSI_RESPONSE => {
                assert_ne!(answer.header[3], 0, "data from offset {offset:#x} was taken");
            }
            other => bail!("offset {offset:#x} came to {other:?}"),
        }
    }
    fixture.undisturbed()
}

/// Recipe 18 (SPDK silent, istgt half dead) and CVE-2021-28361: the last Data-Out comes short, or empty.
#[test]
fn data_out_ends_early() -> Result<()> {
    let fixture = Fixture::start()?;
    for len in [0, 512] {
        let (mut session, r2t) = waiting_write(&fixture, 16)?;
        let data = session.data_out(&r2t, 0, 0, &vec![1; len], true);
        session.connection.send(&data)?;
        let answer = session.receive()?;
        match answer.opcode() {
            opcode::R2T => assert_eq!(answer.read_word(40), u32::try_from(len)?, "the rest begins elsewhere"),
            opcode::SCSI_RESPONSE => {
                // ABORTED COMMAND, data phase error or a kin of it.
                assert_eq!((answer.header[3], answer.data[4] & 0xf), (2, 0xb), "{:02x?}", answer.data);
            }
            other => bail!("a short sequence came to opcode {other:#04x}"),
        }
        session.ping()?;
    }
    fixture.undisturbed()
}

/// Recipe 19 (tgt: GOOD): a gap in DataSN.
#[test]
fn data_out_out_of_sequence() -> Result<()> {
    let fixture = Fixture::start()?;
    let (mut session, r2t) = waiting_write(&fixture, 1)?;
    let data = session.data_out(&r2t, 7, 0, &[1; 512], true);
    session.connection.send(&data)?;
    rejected(&mut session, PROTOCOL_ERROR)?;
    fixture.undisturbed()
}

/// Recipe 19 (tgt: GOOD): data that nobody asked for, although InitialR2T=Yes.
#[test]
fn unsolicited_data_without_agreement() -> Result<()> {
    let fixture = Fixture::start()?;
    let login = Fixture::login().key("InitialR2T", "Yes").key("ImmediateData", "No");
    let mut session = fixture.session_with(&login)?;
    let command = session.command(&Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [1; 512]));
    session.connection.send(&command)?;
    let uninvited = command.clone().word(20, 0xffff_ffff);
    let data = session.data_out(&uninvited, 0, 0, &[1; 512], true);
    session.connection.send(&data)?;
    let first = session.receive()?;
    if first.opcode() == opcode::R2T {
        rejected(&mut session, PROTOCOL_ERROR)?;
    } else {
        ensure!(first.opcode() == opcode::REJECT, "expected a Reject, got opcode {:#04x}", first.opcode());
        assert_eq!(first.header[2], PROTOCOL_ERROR);
    }
    fixture.undisturbed()
}

/// Data-Out for a task that does not exist, and with a transfer tag that was never given.
#[test]
fn data_out_for_nobody() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut stray = Pdu::new(opcode::DATA_OUT).word(16, 0xdead).word(20, 0xbeef).data([1; 512]);
    for tag in [0xbeef, 0xffff_ffff] {
        stray = stray.word(20, tag);
        let mut session = fixture.session()?;
        session.connection.send(&stray)?;
        // Rejected, ignored or closed; but never executed and never fatal for others.
        if let Received::Pdu(answer) = session.receive_within(Duration::from_millis(300))? {
            assert_eq!(answer.opcode(), opcode::REJECT);
        }
    }
    fixture.undisturbed()
}

/// Sections 13.14 and 13.13: no R2T asks for more than MaxBurstLength, no segment is longer than agreed, and what
/// was written in any mix of immediate, unsolicited and solicited data is what is read.
#[test]
fn bursts_keep_their_bounds() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut random = Random::new(3);
    for (initial_r2t, burst) in [("Yes", 512_u32), ("Yes", 65536), ("No", 8192), ("No", 262_144)] {
        let login = Fixture::login().key("InitialR2T", initial_r2t).key("ImmediateData", "Yes");
        let login = login.key("MaxBurstLength", &burst.to_string()).key("FirstBurstLength", "512");
        let login = login.key("MaxRecvDataSegmentLength", "1024");
        let mut session = fixture.session_with(&login)?;
        let data = random.bytes(128 * 512);
        let write = Task::write(cdb::ten(cdb::WRITE_10, 256, 128), data.clone()).immediate(&data[..512]);
        let command = session.command(&write);
        session.connection.send(&command)?;
        write_with_bounds(&mut session, &command, &write, burst)?;
        let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 256, 128), 65536))?;
        assert!(read.data == data, "InitialR2T={initial_r2t}, MaxBurstLength={burst}: other data came back");
    }
    fixture.undisturbed()
}

fn write_with_bounds(session: &mut Session, command: &Pdu, task: &Task, burst: u32) -> Result<()> {
    loop {
        let answer = session.receive()?;
        if answer.opcode() == opcode::SCSI_RESPONSE {
            assert_eq!(answer.header[3], 0, "{:02x?}", answer.data);
            return Ok(());
        }
        ensure!(answer.opcode() == opcode::R2T && answer.read_word(16) == command.read_word(16));
        let (offset, len) = (answer.read_word(40), answer.read_word(44));
        assert!(len <= burst, "an R2T for {len} bytes, MaxBurstLength={burst}");
        for (sequence, at) in (offset..offset + len).step_by(8192).enumerate() {
            let end = (at + 8192).min(offset + len);
            let piece = &task.data[usize::try_from(at)?..usize::try_from(end)?];
            let pdu = session.data_out(&answer, u32::try_from(sequence)?, at, piece, end == offset + len);
            session.connection.send(&pdu)?;
        }
    }
}

/// A session with a write of `blocks` that waits for its data.
fn waiting_write(fixture: &Fixture, blocks: u16) -> Result<(Session, Pdu)> {
    let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
    let data = vec![1; usize::from(blocks) * 512];
    let command = session.command(&Task::write(cdb::ten(cdb::WRITE_10, 0, blocks), data));
    session.connection.send(&command)?;
    let r2t = session.receive()?;
    ensure!(r2t.opcode() == opcode::R2T, "expected an R2T, got opcode {:#04x}", r2t.opcode());
    Ok((session, r2t))
}

const SOON: Duration = Duration::from_secs(3);
