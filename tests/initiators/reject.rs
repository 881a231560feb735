//! PDUs that the target rejects while the connection lives (RFC 7143, section 11.17).

use anyhow::{Result, ensure};
use harness::raw::{Pdu, Session, Task, cdb, opcode};

use crate::fixture::Fixture;

/// Recipe 15 (tgt and istgt: GOOD): ImmediateData=No was negotiated.
#[test]
fn immediate_data_without_agreement() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session_with(&Fixture::login().key("ImmediateData", "No"))?;
    let task = Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [1; 512]).immediate([1; 512]);
    let command = session.command(&task);
    session.connection.send(&command)?;
    rejected(&mut session, PROTOCOL_ERROR)?;
    session.ping()?;
    fixture.undisturbed()
}

/// Recipe 15: immediate data beyond FirstBurstLength.
#[test]
fn immediate_data_beyond_the_first_burst() -> Result<()> {
    let fixture = Fixture::start()?;
    let login = Fixture::login().key("ImmediateData", "Yes").key("FirstBurstLength", "512");
    let mut session = fixture.session_with(&login)?;
    let task = Task::write(cdb::ten(cdb::WRITE_10, 0, 4), [1; 2048]).immediate([1; 1024]);
    let command = session.command(&task);
    session.connection.send(&command)?;
    rejected(&mut session, PROTOCOL_ERROR)?;
    session.ping()?;
    fixture.undisturbed()
}

/// Recipe 16 (all four targets: GOOD, or a hang): data that comes with a read.
#[test]
fn immediate_data_on_a_read() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let command = session.command(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512).immediate([1; 512]));
    session.connection.send(&command)?;
    rejected(&mut session, PROTOCOL_ERROR)?;
    session.ping()?;
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
    assert_eq!((read.status, read.data.len()), (0, 512));
    fixture.undisturbed()
}

/// Recipe 20 (all four targets executed it): a task tag that is in use.
#[test]
fn task_tag_in_use() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
    let write = Task::write(cdb::ten(cdb::WRITE_10, 8, 1), [7; 512]);
    let first = session.command(&write);
    session.connection.send(&first)?;
    let r2t = session.receive()?;
    assert_eq!(r2t.opcode(), opcode::R2T);
    let second = session.command(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512));
    session.connection.send(&second.word(16, first.read_word(16)))?;
    rejected(&mut session, TASK_IN_PROGRESS)?;
    let data = session.data_out(&r2t, 0, 0, &write.data, true);
    session.connection.send(&data)?;
    let outcome = session.follow(&first, &write)?;
    assert_eq!(outcome.status, 0, "{outcome:?}");
    fixture.undisturbed()
}

/// Recipe 24 (tgt, LIO and SPDK closed): SNACK belongs to error recovery levels above 0.
#[test]
fn snack_at_level_0() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for kind in 0..=3 {
        let snack = session.numbered(Pdu::new(opcode::SNACK).flags(0x80 | kind).word(16, 0xffff_ffff));
        // SNACK consumes no CmdSN.
        session.cmd_sn = session.cmd_sn.wrapping_sub(1);
        session.connection.send(&snack)?;
        rejected(&mut session, PROTOCOL_ERROR)?;
    }
    session.ping()?;
    fixture.undisturbed()
}

/// Recipe 25 (tgt and LIO closed): opcodes that nobody defined, and those of a target.
#[test]
fn unknown_opcodes() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    for opcode in [0x07, 0x1c, 0x1f, 0x20, 0x3f] {
        let pdu = session.numbered(Pdu::new(opcode).immediate().word(16, 0xffff_ffff));
        session.connection.send(&pdu)?;
        rejected(&mut session, COMMAND_NOT_SUPPORTED)?;
        session.ping()?;
    }
    fixture.undisturbed()
}

/// A login request in the full-feature phase is out of place; whatever becomes of the session, the target lives.
#[test]
fn login_in_the_full_feature_phase() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    session.connection.send(&Fixture::login().pdu())?;
    if let Ok(answer) = session.receive() {
        ensure!(answer.opcode() == opcode::REJECT, "answered with opcode {:#04x}", answer.opcode());
    }
    fixture.undisturbed()
}

/// Fails unless the next PDU is a Reject for `reason`.
pub(crate) fn rejected(session: &mut Session, reason: u8) -> Result<()> {
    let answer = session.receive()?;
    ensure!(answer.opcode() == opcode::REJECT, "expected a Reject, got opcode {:#04x}", answer.opcode());
    ensure!(answer.header[2] == reason, "rejected for {:#04x}, expected {reason:#04x}", answer.header[2]);
    ensure!(answer.data.len() >= 48, "a Reject carries the header that it rejects");
    Ok(())
}

/// Reasons (section 11.17.1).
pub(crate) const PROTOCOL_ERROR: u8 = 0x04;
const COMMAND_NOT_SUPPORTED: u8 = 0x05;
const TASK_IN_PROGRESS: u8 = 0x07;
/// An invalid field of a PDU.
pub(crate) const INVALID_FIELD: u8 = 0x09;
