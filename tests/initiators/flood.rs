//! Promise P13: strangers cost bounded memory and disturb nobody.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::Result;
use harness::raw::{Connection, Session, Task, cdb};

use crate::fixture::Fixture;

/// A thousand connections that never finish their login: memory grows by less than 32 MiB, a good login takes
/// less than a second, and a running session goes on.
#[test]
fn half_open_logins() -> Result<()> {
    let mut fixture = Fixture::start()?;
    let before = fixture.target.server().resident_bytes()?;
    let half = &Fixture::login().pdu().encode()[..60];
    let mut flood = Vec::new();
    for number in 0..1000 {
        // The target may have closed some already: that is its right.
        if let Ok(mut connection) = Connection::open_from(STRANGER, fixture.target.portal) {
            let sent = match number % 3 {
                0 => Ok(()),
                1 => connection.send_bytes(half),
                _ => connection.send_bytes(&half[..47]),
            };
            if sent.is_ok() {
                flood.push(connection);
            }
        }
        if number % 100 == 0 {
            fixture.bystander().ping()?;
        }
    }
    let began = Instant::now();
    let login = Fixture::login().from_initiator("two", 2);
    let mut good = Session::login(fixture.target.portal, &login, fixture.target.lun())?;
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(1),
        "a good login took {took:?} beside {} half-open ones",
        flood.len()
    );
    good.settle()?;
    let read = good.run(&Task::read(cdb::ten(cdb::READ_10, 0, 8), 4096))?;
    assert_eq!(read.status, 0, "{read:?}");
    let grown = fixture.target.server().resident_bytes()?.saturating_sub(before);
    assert!(grown < 32 << 20, "{} half-open logins cost {grown} bytes", flood.len());
    drop(flood);
    fixture.undisturbed()
}

/// Discarded connections leave nothing behind: a thousand sessions cost what one costs.
#[test]
fn many_short_sessions() -> Result<()> {
    let mut fixture = Fixture::start()?;
    for _ in 0..200 {
        drop(fixture.session()?);
    }
    let before = fixture.target.server().resident_bytes()?;
    for _ in 0..1000 {
        drop(fixture.session()?);
    }
    let grown = fixture.target.server().resident_bytes()?.saturating_sub(before);
    assert!(grown < 16 << 20, "a thousand sessions left {grown} bytes behind");
    fixture.undisturbed()
}

/// A loopback address that is not the good initiators'.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
