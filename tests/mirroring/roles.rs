//! One Primary at a time, and refusals that say why.

use anyhow::{Result, ensure};
use harness::{
    cluster::IQN,
    raw::{Login, Session, Task, cdb},
};

use crate::cluster::{ALPHA, BRAVO, session, start};

/// The first use of the medium promotes a node; another is refused with a reason, until the first steps down.
#[test]
fn one_primary_at_a_time() -> Result<()> {
    let (cluster, _dir) = start("C")?;
    {
        let mut session = session(&cluster, ALPHA)?;
        let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [1; 512]))?;
        assert_eq!(written.status, 0, "{written:?}");
        assert_eq!(role(&cluster.status(ALPHA)?), "Primary");
        assert_eq!(role(&cluster.status(BRAVO)?), "Secondary");
        let refused = cluster.try_evenkeel(BRAVO, &["primary", "db"])?;
        assert_eq!(refused.status.code(), Some(1));
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(reason.contains("alpha"), "the refusal does not name the Primary: {reason}");
    }
    cluster.evenkeel(ALPHA, &["secondary", "db"])?;
    cluster.evenkeel(BRAVO, &["primary", "db"])?;
    assert_eq!(role(&cluster.status(BRAVO)?), "Primary");
    let mut session = session(&cluster, BRAVO)?;
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
    assert_eq!((read.status, read.data), (0, vec![1; 512]));
    Ok(())
}

/// What an operator forces stays: a session that goes on using the medium does not make the node Primary again, and its
/// path says so. A new session may.
#[test]
fn a_forced_demotion_outlives_a_session() -> Result<()> {
    let (cluster, _dir) = start("C")?;
    let mut first = session(&cluster, ALPHA)?;
    let write = Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [1; 512]);
    assert_eq!(first.run(&write)?.status, 0);
    cluster.evenkeel(ALPHA, &["secondary", "db", "--force"])?;
    let told: Vec<_> = (0..3).map(|_| Ok(first.run(&write)?.check())).collect::<Result<_>>()?;
    ensure!(told.contains(&Some((6, 0x2a, 6))), "no unit attention for the change of the path: {told:x?}");
    assert_eq!(told.last(), Some(&Some((2, 4, 0x0b))), "standby: {told:x?}");
    assert_eq!(role(&cluster.status(ALPHA)?), "Secondary");
    let mut second = Session::login(cluster.portal(ALPHA), &Login::normal(IQN).from_initiator("new", 7), 0)?;
    second.settle()?;
    assert_eq!(second.run(&write)?.status, 0);
    assert_eq!(role(&cluster.status(ALPHA)?), "Primary");
    Ok(())
}

fn role(status: &serde_json::Value) -> String {
    status[0]["role"].as_str().unwrap_or_default().to_owned()
}
