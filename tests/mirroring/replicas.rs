//! What operators do about replicas: give one up, hold a resync up.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use harness::{
    cluster::Cluster,
    image,
    raw::{Task, cdb},
};

use crate::cluster::{ALPHA, BRAVO, SIZE_BYTES, flush, identical, session, start};

/// Bytes that nobody wrote are on a disk, where no bookkeeping can know of them: with `invalidate-remote`, and then with
/// `invalidate`, everything is copied anew. A pause holds that up, whichever end it is asked of, and the Primary goes on.
#[test]
fn a_replica_is_replaced() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let write = |cluster: &Cluster, byte: u8| -> Result<()> {
        let mut session = session(cluster, ALPHA)?;
        let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 0, 8), [byte; 4096]))?;
        ensure!(written.status == 0, "{written:?}");
        flush(&mut session)
    };
    write(&cluster, 7)?;
    for (node, verb) in
        [(ALPHA, &["invalidate-remote", "db/0", "--peer", "bravo"][..]), (BRAVO, &["invalidate", "db/0"][..])]
    {
        cluster.stop_node(BRAVO)?;
        let disk = File::options().write(true).open(cluster.image(BRAVO))?;
        disk.write_all_at(&[0xa5; 8192], SIZE_BYTES / 2)?;
        cluster.start_node(BRAVO)?;
        cluster.wait_up_to_date()?;
        ensure!(image::compare(&cluster.image(ALPHA), &cluster.image(BRAVO), SIZE_BYTES).is_err());
        cluster.evenkeel(node, &["pause-sync", "db/0"])?;
        cluster.evenkeel(node, verb)?;
        let held = if node == BRAVO { "user" } else { "peer" };
        until(&cluster, &["replication:PausedSyncT", &format!("held up by: {held}"), "resume-sync db"])?;
        write(&cluster, 8)?;
        ensure!(image::compare(&cluster.image(ALPHA), &cluster.image(BRAVO), SIZE_BYTES).is_err());
        cluster.evenkeel(node, &["resume-sync", "db"])?;
        cluster.wait_up_to_date()?;
        identical(&cluster, Duration::from_secs(10))?;
    }
    cluster.evenkeel(ALPHA, &["primary", "db"])?;
    let refused = cluster.try_evenkeel(ALPHA, &["invalidate", "db/0"])?;
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && reason.contains("evenkeel secondary db"), "{reason}");
    let generation =
        |cluster: &Cluster| Ok::<_, anyhow::Error>(cluster.status(BRAVO)?[0]["generation"].clone());
    let before = generation(&cluster)?;
    cluster.evenkeel(ALPHA, &["new-generation", "db/0"])?;
    ensure!(generation(&cluster)? != before, "no generation began");
    Ok(())
}

/// A disk is taken from a running node and brought back: what was written meanwhile is copied, and nothing else. The last
/// good replica of a volume in use stays, as does what a Primary has.
#[test]
fn a_disk_is_detached_and_attached() -> Result<()> {
    let (cluster, _dir) = start("C")?;
    let mut session = session(&cluster, ALPHA)?;
    let mut write = |block: u32, byte: u8| -> Result<()> {
        // The path's state changed, perhaps.
        session.settle()?;
        let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, block, 8), [byte; 4096]))?;
        ensure!(written.status == 0, "{written:?}");
        flush(&mut session)
    };
    let refused = |verb: &str, reason: &str| -> Result<()> {
        let refused = cluster.try_evenkeel(ALPHA, &[verb, "db/0"])?;
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(1) && words.contains(reason), "{words}");
        Ok(())
    };
    write(0, 7)?;
    cluster.evenkeel(BRAVO, &["detach", "db/0"])?;
    let text = cluster.evenkeel(BRAVO, &["status", "db"])?;
    ensure!(text.contains("disk:Diskless") && text.contains("an operator detached it"), "{text}");
    refused("detach", "no other node that is connected has a good replica")?;
    write(64, 8)?;
    ensure!(image::compare(&cluster.image(ALPHA), &cluster.image(BRAVO), SIZE_BYTES).is_err());
    cluster.evenkeel(BRAVO, &["attach", "db/0"])?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::from_secs(10))?;
    // Without its own disk, the Primary goes on with bravo's.
    cluster.evenkeel(ALPHA, &["detach", "db/0"])?;
    write(128, 9)?;
    refused("attach", "evenkeel secondary db")?;
    drop(session);
    let deadline = Instant::now() + Duration::from_secs(10);
    while cluster.status(ALPHA)?[0]["role"] != "Secondary" {
        ensure!(Instant::now() < deadline, "alpha stays Primary");
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.evenkeel(ALPHA, &["attach", "db/0"])?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::from_secs(10))
}

/// Waits until bravo's `why` says all of it.
fn until(cluster: &Cluster, parts: &[&str]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = cluster.evenkeel(BRAVO, &["why", "db"])?;
        if parts.iter().all(|part| text.contains(part)) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not {parts:?}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
