//! Sessions: discovery, text, reinstatement, logout, sudden ends (RFC 7143, sections 6.3.5, 11.10 and 11.14).

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{
    raw::{Login, Pdu, Session, Task, cdb, opcode},
    target::IQN,
};

use crate::fixture::Fixture;

/// A discovery session lists the target and its portal.
#[test]
fn discovery_lists_the_target() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = Session::login(fixture.target.portal, &Login::discovery(), 0)?;
    let answer = ask(&mut session, "SendTargets=All")?;
    assert_eq!(answer.opcode(), opcode::TEXT_RESPONSE);
    let text = String::from_utf8_lossy(&answer.data).into_owned();
    assert!(text.contains(&format!("TargetName={IQN}\0")), "{text:?}");
    assert!(text.contains(&format!("TargetAddress={},", fixture.target.portal)), "{text:?}");
    fixture.undisturbed()
}

/// Recipe 23 (tgt and LIO reset, SPDK fell silent): `SendTargets` in a normal session, with no name and with nonsense.
#[test]
fn send_targets_in_a_normal_session() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let answer = ask(&mut session, "SendTargets=")?;
    assert_eq!(answer.opcode(), opcode::TEXT_RESPONSE);
    let text = String::from_utf8_lossy(&answer.data).into_owned();
    assert!(text.contains(&format!("TargetName={IQN}\0")), "{text:?}");
    for nonsense in ["SendTargets=Alle", "SendTargets=iqn.2026-11.io.evenkeel:another", "SendTargets", "X=1"]
    {
        let answer = ask(&mut session, nonsense)?;
        ensure!(
            [opcode::TEXT_RESPONSE, opcode::REJECT].contains(&answer.opcode()),
            "{nonsense} came to opcode {:#04x}",
            answer.opcode()
        );
        session.ping()?;
    }
    fixture.undisturbed()
}

/// Section 6.3.5 (tgt left the old connection writable): the same initiator port logs in anew, and the old
/// connection is closed.
#[test]
fn reinstatement_ends_the_old_session() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut old = fixture.session()?;
    let mut new = fixture.session()?;
    old.connection.wait_closed(SOON)?;
    new.ping()?;
    fixture.undisturbed()
}

/// Another initiator port is another session: both live.
#[test]
fn two_sessions_of_one_initiator() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut one = fixture.session()?;
    let mut two = fixture.session_with(&Fixture::login().from_initiator("one", 2))?;
    one.ping()?;
    two.ping()?;
    fixture.undisturbed()
}

/// Logout is answered, and then the connection ends.
#[test]
fn logout_ends_the_connection() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let logout = session.numbered(Pdu::new(opcode::LOGOUT).word(16, 0x99));
    session.connection.send(&logout)?;
    let answer = session.receive()?;
    assert_eq!((answer.opcode(), answer.header[2]), (opcode::LOGOUT_RESPONSE, 0));
    session.connection.wait_closed(SOON)?;
    fixture.undisturbed()
}

/// Recipe 55, CVE-2026-23216 (LIO): logout while commands complete.
#[test]
fn logout_while_commands_complete() -> Result<()> {
    let fixture = Fixture::start()?;
    for _ in 0..30 {
        let mut session = fixture.session()?;
        let mut bytes = Vec::new();
        for lba in 0..16 {
            let read = session.command(&Task::read(cdb::ten(cdb::READ_10, lba * 64, 64), 32768));
            bytes.extend(read.encode());
        }
        bytes.extend(session.numbered(Pdu::new(opcode::LOGOUT).word(16, 0x99)).encode());
        session.connection.send_bytes(&bytes)?;
        session.connection.wait_closed(SOON)?;
    }
    fixture.undisturbed()
}

/// Sixty resets with sixteen writes in flight, half of them waiting for data.
#[test]
fn resets_with_writes_in_flight() -> Result<()> {
    let fixture = Fixture::start()?;
    for _ in 0..60 {
        let mut session = fixture.session_with(&Fixture::login().key("InitialR2T", "Yes"))?;
        let mut bytes = Vec::new();
        for lba in 0..16 {
            let task = Task::write(cdb::ten(cdb::WRITE_10, lba, 8), [3; 4096]);
            let task = if lba % 2 == 0 { task.immediate([3; 4096]) } else { task };
            bytes.extend(session.command(&task).encode());
        }
        session.connection.send_bytes(&bytes)?;
        session.connection.reset()?;
    }
    fixture.undisturbed()
}

fn ask(session: &mut Session, text: &str) -> Result<Pdu> {
    let tag = session.tag();
    let request = Pdu::new(opcode::TEXT).word(16, tag).word(20, 0xffff_ffff).data(format!("{text}\0"));
    let request = session.numbered(request);
    session.connection.send(&request)?;
    session.receive()
}

const SOON: Duration = Duration::from_secs(5);
