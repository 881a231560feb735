//! One Primary at a time, and refusals that say why.

use anyhow::{Result, ensure};
use harness::raw::{Task, cdb};

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

fn role(status: &serde_json::Value) -> String {
    status[0]["role"].as_str().unwrap_or_default().to_owned()
}
