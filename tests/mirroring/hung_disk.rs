//! A disk that answers nothing, not even an error.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use harness::{
    disk::{Behaviour, Disk, skipped},
    raw::{Task, cdb},
};
use rustix::process::Signal;

use crate::cluster::{ALPHA, session, start};

/// P11: a stuck disk delays a write by at most `disk-timeout`, the node answers `status` all the time, and SIGTERM ends it.
#[test]
fn a_hung_disk_is_given_up() -> Result<()> {
    if skipped("a_hung_disk_is_given_up")? {
        return Ok(());
    }
    let (mut cluster, dir) = start("C")?;
    cluster.stop_node(ALPHA)?;
    let config = dir.path().join("alpha.toml");
    let text = fs::read_to_string(&config)?;
    fs::write(
        &config,
        text.replace("protocol = \"C\"", "protocol = \"C\"\ndisk = { disk-timeout = \"1s\" }"),
    )?;
    let disk = Disk::over(&cluster.image(ALPHA), Behaviour::Plain)?;
    cluster.start_node(ALPHA)?;
    cluster.wait_up_to_date()?;
    let mut session = session(&cluster, ALPHA)?;
    let write = Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [7; 512]);
    ensure!(session.run(&write)?.status == 0, "with the disk");

    disk.freeze(true)?;
    let began = Instant::now();
    let outcome = session.run(&write)?;
    ensure!(
        outcome.status == 0 && began.elapsed() < Duration::from_secs(5),
        "{:?}: {outcome:?}",
        began.elapsed()
    );
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
    ensure!((read.status, &read.data[..]) == (0, &[7; 512]), "{read:?}");
    let status = cluster.evenkeel(ALPHA, &["status", "db"])?;
    ensure!(status.contains("did not answer for 1 s (disk-timeout)"), "{status}");
    let log = cluster.server(ALPHA).context("alpha runs")?.log();
    ensure!(log.contains("it is given up"), "{log}");
    drop(session);
    while cluster.status(ALPHA)?[0]["role"] != "Secondary" {
        ensure!(began.elapsed() < Duration::from_secs(20), "alpha stays Primary");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = cluster.try_evenkeel(ALPHA, &["attach", "db/0"])?;
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && words.contains("has not answered yet"), "{words}");

    let alpha = cluster.server(ALPHA).context("alpha runs")?;
    alpha.signal(Signal::TERM)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !alpha.log().contains("leaving without it") {
        ensure!(Instant::now() < deadline, "the node waits for the disk:\n{}", alpha.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The kernel does not end a process before such a disk answers, whatever the process does.
    disk.freeze(false)?;
    cluster.stop_node(ALPHA)
}
