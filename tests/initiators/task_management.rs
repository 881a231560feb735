//! Task management (RFC 7143, section 11.5; SAM-5, section 7).

use anyhow::{Result, ensure};
use harness::raw::{Task, cdb, opcode};

use crate::fixture::{Fixture, assert_check};

/// Recipe 21 (tgt and istgt: complete): a unit that does not exist cannot be reset.
#[test]
fn reset_of_an_absent_unit() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    assert_eq!(session.manage(LOGICAL_UNIT_RESET, 77, 0xffff_ffff)?, LUN_DOES_NOT_EXIST);
    fixture.undisturbed()
}

/// Recipe 57 (SPDK told nobody): every other nexus learns of a reset by a unit attention.
#[test]
fn reset_is_told_to_the_others() -> Result<()> {
    let mut fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let lun = fixture.target.lun();
    assert_eq!(session.manage(LOGICAL_UNIT_RESET, lun, 0xffff_ffff)?, COMPLETE);
    let outcome = fixture.bystander().run(&Task::new(cdb::TEST_UNIT_READY))?;
    let (key, code, _) = outcome.check().unwrap_or_default();
    assert_eq!((key, code), (UNIT_ATTENTION, RESET_OCCURRED), "{outcome:?}");
    fixture.bystander().settle()?;
    fixture.undisturbed()
}

/// Recipe 59 (SPDK: not supported, ESXi drops the session): a write that waits for its data is aborted, and its
/// tag is free again.
#[test]
fn abort_of_a_waiting_write() -> Result<()> {
    let fixture = Fixture::start()?;
    let lun = fixture.target.lun();
    let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
    let write = Task::write(cdb::ten(cdb::WRITE_10, 40, 16), [5; 8192]);
    let command = session.command(&write);
    session.connection.send(&command)?;
    let r2t = session.receive()?;
    ensure!(r2t.opcode() == opcode::R2T);
    assert_eq!(session.manage(ABORT_TASK, lun, command.read_word(16))?, COMPLETE);
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 40, 16), 8192))?;
    assert_eq!(read.data, [0; 8192], "an aborted write has written");
    let again = session.command(&write).word(16, command.read_word(16));
    session.connection.send(&again)?;
    assert_eq!(session.follow(&again, &write)?.status, 0);
    fixture.undisturbed()
}

/// A task that has ended, or never was, does not exist.
#[test]
fn abort_of_nothing() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    // RefCmdSN 0 lies outside of the window, so the task cannot still be on its way.
    let lun = fixture.target.lun();
    let answer = session.manage(ABORT_TASK, lun, 0xabcd)?;
    assert!([COMPLETE, TASK_DOES_NOT_EXIST].contains(&answer), "response {answer}");
    session.ping()?;
    fixture.undisturbed()
}

/// CLEAR TASK SET ends the tasks of others too, and tells them (SAM-5, section 5.14).
#[test]
fn clear_task_set_ends_waiting_writes() -> Result<()> {
    let mut fixture = Fixture::start()?;
    let lun = fixture.target.lun();
    let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
    let command = session.command(&Task::write(cdb::ten(cdb::WRITE_10, 40, 16), [5; 8192]));
    session.connection.send(&command)?;
    ensure!(session.receive()?.opcode() == opcode::R2T);
    assert_eq!(fixture.bystander().manage(CLEAR_TASK_SET, lun, 0xffff_ffff)?, COMPLETE);
    let outcome = session.run(&Task::new(cdb::TEST_UNIT_READY))?;
    assert_check(&outcome, UNIT_ATTENTION, COMMANDS_CLEARED, 0);
    fixture.undisturbed()
}

/// Functions that this target cannot do are refused by name, and nothing else happens.
#[test]
fn unknown_functions_are_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let lun = fixture.target.lun();
    for function in [0, 9, 0x7f] {
        let answer = session.manage(function, lun, 0xffff_ffff)?;
        assert!([NOT_SUPPORTED, REJECTED].contains(&answer), "function {function} came to response {answer}");
    }
    session.ping()?;
    fixture.undisturbed()
}

const ABORT_TASK: u8 = 1;
const CLEAR_TASK_SET: u8 = 4;
const LOGICAL_UNIT_RESET: u8 = 5;
/// Responses (section 11.6.1).
const COMPLETE: u8 = 0;
const TASK_DOES_NOT_EXIST: u8 = 1;
const LUN_DOES_NOT_EXIST: u8 = 2;
const NOT_SUPPORTED: u8 = 5;
const REJECTED: u8 = 255;
const UNIT_ATTENTION: u8 = 6;
const RESET_OCCURRED: u8 = 0x29;
const COMMANDS_CLEARED: u8 = 0x2f;
