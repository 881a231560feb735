//! Command sequence numbers and the window (RFC 7143, section 4.2.2.1).

use std::time::Duration;

use anyhow::Result;
use harness::{
    load::expect_silence,
    raw::{Task, cdb},
};

use crate::fixture::Fixture;

/// Recipe 8 (SPDK, istgt and tgt dropped the connection): numbers outside of the window are ignored.
#[test]
fn numbers_outside_of_the_window_are_ignored() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let expected = session.cmd_sn;
    for wrong in [expected.wrapping_sub(1), expected.wrapping_sub(100), expected.wrapping_add(100_000)] {
        let command = session.command(&Task::new(cdb::TEST_UNIT_READY));
        session.cmd_sn = expected;
        session.connection.send(&command.word(24, wrong))?;
        expect_silence(&mut session, Duration::from_millis(300))?;
    }
    let outcome = session.run(&Task::new(cdb::TEST_UNIT_READY))?;
    assert_eq!(outcome.status, 0, "{outcome:?}");
    fixture.undisturbed()
}

/// Numbers pass 2^32 (serial number arithmetic, RFC 1982).
#[test]
fn numbers_wrap_around() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut login = Fixture::login();
    login.cmd_sn = 0xffff_fffa;
    let mut session = fixture.session_with(&login)?;
    for _ in 0..20 {
        session.ping()?;
        let outcome = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }
    assert!(session.cmd_sn < 100, "the numbers have wrapped");
    fixture.undisturbed()
}

/// A command that arrives before its predecessor waits for it.
#[test]
fn commands_run_in_order() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let first = session.command(&Task::write(cdb::ten(cdb::WRITE_10, 20, 1), [1; 512]).immediate([1; 512]));
    let second = session.command(&Task::read(cdb::ten(cdb::READ_10, 20, 1), 512));
    session.connection.send(&second)?;
    expect_silence(&mut session, Duration::from_millis(300))?;
    session.connection.send(&first)?;
    let written = session.follow(&first, &Task::new(cdb::TEST_UNIT_READY))?;
    let read = session.follow(&second, &Task::new(cdb::TEST_UNIT_READY))?;
    assert_eq!((written.status, read.status), (0, 0));
    assert_eq!(read.data, [1; 512]);
    fixture.undisturbed()
}
