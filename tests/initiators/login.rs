//! Faults before and during login (RFC 7143, sections 6, 11.12 and 11.13).

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use harness::{
    raw::{Login, LoginAnswer, Pdu, Received, opcode},
    target::Chap,
};

use crate::fixture::{Fixture, start_target};

/// Recipe 5 (SPDK crashed): a command before login, then a reset while the answer is queued.
#[test]
fn command_before_login_then_reset() -> Result<()> {
    let fixture = Fixture::start()?;
    for first in [opcode::SCSI_COMMAND, opcode::NOP_OUT, opcode::TEXT, opcode::DATA_OUT, opcode::LOGOUT] {
        for _ in 0..20 {
            let mut connection = fixture.connect()?;
            connection.send(&Pdu::new(first).word(16, 1).word(20, 0xffff_ffff))?;
            connection.reset()?;
        }
    }
    fixture.undisturbed()
}

/// Section 6.3: the first PDU is a Login Request, or the connection ends.
#[test]
fn command_before_login_ends_the_connection() -> Result<()> {
    let fixture = Fixture::start()?;
    for first in [opcode::SCSI_COMMAND, opcode::NOP_OUT, opcode::TEXT, opcode::DATA_OUT, opcode::LOGOUT] {
        let mut connection = fixture.connect()?;
        connection.send(&Pdu::new(first).word(16, 1).word(20, 0xffff_ffff))?;
        connection.wait_closed(SOON)?;
    }
    fixture.undisturbed()
}

/// Recipe 10 (tgt accepted it): a session that does not exist cannot be joined.
#[test]
fn unknown_session_is_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    let answer = Fixture::login().join(0x7777, 1).send(&mut fixture.connect()?)?;
    assert_eq!(answer.status, SESSION_DOES_NOT_EXIST, "{answer:?}");
    fixture.undisturbed()
}

/// Recipe 11 (tgt accepted it): MaxConnections=1 was negotiated, so there is no second one.
#[test]
fn second_connection_is_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut first = fixture.session_with(&Fixture::login().key("MaxConnections", "1"))?;
    let join = Fixture::login().join(first.answer.tsih, 1);
    let answer = join.send(&mut fixture.connect()?)?;
    assert_eq!(answer.status, TOO_MANY_CONNECTIONS, "{answer:?}");
    first.ping()?;
    fixture.undisturbed()
}

/// Recipe 27 (LIO closed, tgt accepted): text without `=` is an initiator error.
#[test]
fn key_without_value_is_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    for text in ["HeaderDigest", "=None", "x"] {
        let answer = Fixture::login().text(text).send(&mut fixture.connect()?)?;
        assert_eq!(answer.status, INITIATOR_ERROR, "{text:?}: {answer:?}");
    }
    fixture.undisturbed()
}

/// CVE-2013-2850 (LIO's heap overflow): a key has at most 63 bytes (section 6.1).
#[test]
fn long_key_is_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    for len in [64, 200, 4000] {
        let answer =
            Fixture::login().key(&format!("X-{}", "k".repeat(len - 2)), "v").send(&mut fixture.connect()?)?;
        assert_eq!(answer.status, INITIATOR_ERROR, "a key of {len} bytes: {answer:?}");
    }
    fixture.undisturbed()
}

/// Section 6.2: a key is sent once.
#[test]
fn repeated_key_is_refused() -> Result<()> {
    let fixture = Fixture::start()?;
    let login = Fixture::login().key("MaxBurstLength", "8192").key("MaxBurstLength", "8192");
    let answer = login.send(&mut fixture.connect()?)?;
    assert_eq!(answer.status, INITIATOR_ERROR, "{answer:?}");
    fixture.undisturbed()
}

/// Section 6.2: a key of tomorrow is not understood, and the login goes on.
#[test]
fn unknown_key_is_not_understood() -> Result<()> {
    let fixture = Fixture::start()?;
    let session = fixture.session_with(&Fixture::login().key("X-io.evenkeel.tomorrow", "Yes"))?;
    assert_eq!(session.answer.value("X-io.evenkeel.tomorrow"), Some("NotUnderstood"));
    fixture.undisturbed()
}

/// Recipes 28 and 29: many unknown keys neither flood the log (LIO) nor make an answer beyond 8192 bytes (istgt).
#[test]
fn many_unknown_keys() -> Result<()> {
    let mut fixture = Fixture::start()?;
    let lines_before = fixture.target.server().log().lines().count();
    let mut login = Fixture::login();
    for key in 0..700 {
        login = login.key(&format!("X-{key}"), "v");
    }
    let mut connection = fixture.connect()?;
    let mut answer = login.send(&mut connection)?;
    loop {
        assert!(answer.data_len <= 8192, "an answer of {} bytes", answer.data_len);
        if answer.status != 0 || !answer.continues {
            break;
        }
        // Section 6.2: the rest is asked for with an empty request.
        let mut next = login.clone().flags(0x04);
        next.keys.clear();
        answer = next.send(&mut connection)?;
    }
    assert!([0, INITIATOR_ERROR].contains(&answer.status), "{answer:?}");
    let lines = fixture.target.server().log().lines().count() - lines_before;
    assert!(lines < 20, "700 keys of a stranger made {lines} lines in the log");
    fixture.undisturbed()
}

/// Recipe 30 (tgt and istgt took 28 MB): the text of one request is bounded.
#[test]
fn endless_continued_text_is_cut_off() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut connection = fixture.connect()?;
    let mut request = Fixture::login().flags(0x44);
    request = request.key("X-filler", &"v".repeat(7000));
    for sent in 0.. {
        assert!(sent < 20, "{} bytes of login text were taken", sent * 7000);
        if connection.send(&request.pdu()).is_err() {
            break;
        }
        match connection.receive_within(SOON)? {
            Received::Closed => break,
            Received::Pdu(answer) if answer.header[36] != 0 => break,
            Received::Pdu(_) => {}
            Received::Silence => panic!("no answer to a part of a text"),
        }
        request.keys.remove(0);
        request.keys.insert(0, format!("X-{sent}=v"));
    }
    fixture.undisturbed()
}

/// Recipe 30 (tgt, istgt, SPDK): a login that never transits ends by the clock.
#[test]
fn endless_negotiation_is_cut_off() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut connection = fixture.connect()?;
    let began = Instant::now();
    let mut request = Fixture::login().flags(0x04);
    while began.elapsed() < LOGIN_TIME {
        let refused = request.send(&mut connection).map_or(true, |answer| answer.status != 0);
        request.keys.clear();
        if refused {
            return fixture.undisturbed();
        }
        // As fast as the target lets us would only heat the machine.
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("after {} s the negotiation still goes on", LOGIN_TIME.as_secs());
}

/// A connection that says nothing, or half a header, is closed by the login timer.
#[test]
fn silent_connection_is_closed() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut nothing = fixture.connect()?;
    let mut half = fixture.connect()?;
    half.send_bytes(&[0x43; 20])?;
    nothing.wait_closed(LOGIN_TIME)?;
    half.wait_closed(SOON)?;
    fixture.undisturbed()
}

/// Recipe 31 (SPDK and istgt refused): a number may be hexadecimal (section 6.1).
#[test]
fn hexadecimal_number_is_taken() -> Result<()> {
    let fixture = Fixture::start()?;
    let session = fixture.session_with(&Fixture::login().key("FirstBurstLength", "0x10000"))?;
    let value = session.answer.value("FirstBurstLength").unwrap_or_default().to_owned();
    assert!(["65536", "0x10000"].contains(&value.as_str()), "FirstBurstLength={value}");
    fixture.undisturbed()
}

/// Recipe 32 (tgt waited for ever): a data segment beyond the limit ends the connection at its header.
#[test]
fn oversized_segment_ends_the_connection() -> Result<()> {
    let fixture = Fixture::start()?;
    for len in [8192 + 4096, 0x10_0000, 0xff_ffff] {
        let mut pdu = Fixture::login().pdu();
        pdu.data.clear();
        pdu.length_override = Some(len);
        let mut connection = fixture.connect()?;
        connection.send(&pdu)?;
        connection.wait_closed(SOON)?;
    }
    fixture.undisturbed()
}

/// Recipe 32 after login: the limit is the target's own `MaxRecvDataSegmentLength`.
#[test]
fn oversized_segment_after_login() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut session = fixture.session()?;
    let declared = session.answer.value("MaxRecvDataSegmentLength");
    let declared: u32 = declared.unwrap_or("8192").parse()?;
    let tag = session.tag();
    let mut pdu = session.numbered(Pdu::new(opcode::NOP_OUT).word(16, tag).word(20, 0xffff_ffff));
    pdu.length_override = Some(declared + 4096);
    session.connection.send(&pdu)?;
    session.connection.wait_closed(SOON)?;
    fixture.undisturbed()
}

/// Bytes of other protocols, and additional headers without end, are no login.
#[test]
fn garbage_ends_the_connection() -> Result<()> {
    let fixture = Fixture::start()?;
    let mut with_headers = Fixture::login().pdu();
    with_headers.additional = vec![0; 255 * 4];
    let garbage: [&[u8]; 3] =
        [b"GET / HTTP/1.1\r\nHost: storage.example\r\nAccept: */*\r\n\r\n", &[0xff; 512], &[0; 48]];
    for bytes in garbage {
        let mut connection = fixture.connect()?;
        connection.send_bytes(bytes)?;
        connection.wait_closed(SOON)?;
    }
    let mut connection = fixture.connect()?;
    connection.send(&with_headers)?;
    if let Received::Pdu(answer) = connection.receive_within(SOON)? {
        assert!([opcode::LOGIN_RESPONSE, opcode::REJECT].contains(&answer.opcode()), "{answer:?}");
    }
    fixture.undisturbed()
}

/// A target that is not there is told so (status 0x0203), whatever stands in the name.
#[test]
fn unknown_target_is_not_found() -> Result<()> {
    let fixture = Fixture::start()?;
    for name in ["iqn.2026-11.io.evenkeel:another", "iqn.2026-11.io.evenkeel:volum", "", "../../etc/passwd"] {
        let answer = Login::normal(name).send(&mut fixture.connect()?)?;
        ensure!(answer.status >> 8 == 2, "a login to {name:?} came to {answer:?}");
        if name.starts_with("iqn") {
            assert_eq!(answer.status, TARGET_NOT_FOUND, "{name}");
        }
    }
    fixture.undisturbed()
}

/// Recipe 56, CVE-2024-45751 (tgt): challenges never repeat, across a restart neither, and have 16 bytes or more.
#[test]
fn challenges_never_repeat() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let chap = Chap { user: "db".into(), secret: "twelve-or-more".into() };
    let mut target = start_target(dir.path(), Some(chap))?;
    let mut challenges = BTreeSet::new();
    for count in 1..=200 {
        if count == 100 {
            target = target.kill_and_restart()?;
        }
        let mut connection = harness::raw::Connection::open(target.portal)?;
        let answer = offer_chap().send(&mut connection)?;
        ensure!(answer.status == 0, "{answer:?}");
        assert_eq!(answer.value("AuthMethod"), Some("CHAP"), "{answer:?}");
        let mut choose = offer_chap();
        choose.keys = vec!["CHAP_A=5".into()];
        let answer = choose.send(&mut connection)?;
        let challenge = challenge(&answer);
        assert!(challenge.len() >= 2 + 2 * 16, "a challenge of {} characters", challenge.len());
        assert!(challenges.insert(challenge.to_owned()), "{challenge} came twice in {count}");
    }
    target.server().alive()
}

/// Section 12.1.3: an unknown user and a wrong answer are refused alike, and nobody skips authentication.
#[test]
fn chap_refuses_strangers() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let chap = Chap { user: "db".into(), secret: "twelve-or-more".into() };
    let mut target = start_target(dir.path(), Some(chap))?;
    let mut refusals = BTreeSet::new();
    for user in ["db", "nobody"] {
        let mut connection = harness::raw::Connection::open(target.portal)?;
        offer_chap().send(&mut connection)?;
        let mut request = offer_chap();
        request.keys = vec!["CHAP_A=5".into()];
        request.send(&mut connection)?;
        request.keys = vec![format!("CHAP_N={user}"), format!("CHAP_R=0x{}", "00".repeat(16))];
        refusals.insert(request.flags(0x81).send(&mut connection)?.status);
    }
    assert_eq!(refusals, [AUTHENTICATION_FAILURE].into());
    let mut none = offer_chap().flags(0x81);
    none.keys.retain(|key| !key.starts_with("AuthMethod"));
    let none = none.key("AuthMethod", "None");
    // Straight to the operational stage, to the full-feature phase, or with AuthMethod=None.
    for login in [Fixture::login(), Fixture::login().flags(0x83), none] {
        let mut connection = harness::raw::Connection::open(target.portal)?;
        let refused = login.negotiate(&mut connection).map_or(true, |answer| answer.status >> 8 == 2);
        assert!(refused, "let in without authentication: {login:?}");
    }
    target.server().alive()
}

/// The first request of the security stage, which takes no operational keys (section 6.2).
fn offer_chap() -> Login {
    let mut login = Fixture::login().key("AuthMethod", "CHAP").flags(0);
    login.keys.retain(|key| !key.contains("Digest="));
    login
}

fn challenge(answer: &LoginAnswer) -> &str {
    answer.value("CHAP_C").unwrap_or_default()
}

const INITIATOR_ERROR: u16 = 0x0200;
const AUTHENTICATION_FAILURE: u16 = 0x0201;
const TARGET_NOT_FOUND: u16 = 0x0203;
const TOO_MANY_CONNECTIONS: u16 = 0x0206;
const SESSION_DOES_NOT_EXIST: u16 = 0x020a;
/// At once, on a busy machine.
const SOON: Duration = Duration::from_secs(3);
/// The login timer of 15 s, and a little.
const LOGIN_TIME: Duration = Duration::from_secs(18);
