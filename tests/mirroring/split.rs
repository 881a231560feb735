//! Split brain, seen from outside: both sides were written while they were apart.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{Cluster, Layout},
    raw::{Task, cdb},
};

use crate::cluster::{ALPHA, BRAVO, CHARLIE, SIZE_BYTES, flush, identical, session};

/// P8: without a policy both sides stand alone with what they have, and `why` says what was asked and what was written;
/// with `discard-secondary` the Primary goes on, the other side becomes what it is, and both logs say so.
#[test]
fn a_policy_decides_or_nobody_does() -> Result<()> {
    for policy in ["disconnect", "discard-secondary"] {
        let options = format!("options = {{ quorum = \"off\" }}\nnet = {{ after-sb-1pri = \"{policy}\" }}\n");
        let dir = tempfile::tempdir()?;
        let layout =
            Layout { size_bytes: SIZE_BYTES, protocol: "C", disks: 2, cuttable: true, options: &options };
        let binary = Path::new(env!("CARGO_BIN_EXE_evenkeel"));
        let mut cluster = Cluster::start_as(binary, dir.path(), &layout)?;
        cluster.wait_up_to_date()?;
        cluster.stop_node(CHARLIE)?;
        cluster.evenkeel(ALPHA, &["primary", "db"])?;
        write(&cluster, ALPHA, 1)?;
        cluster.cut(ALPHA, BRAVO);
        cluster.cut(BRAVO, ALPHA);
        until(&cluster, BRAVO, "connection:Connecting")?;
        write(&cluster, ALPHA, 2)?;
        cluster.evenkeel(BRAVO, &["primary", "db", "--force"])?;
        write(&cluster, BRAVO, 3)?;
        cluster.evenkeel(BRAVO, &["secondary", "db"])?;
        cluster.heal();
        if policy == "disconnect" {
            for node in [ALPHA, BRAVO] {
                until(&cluster, node, "connection:StandAlone")?;
                let why = cluster.evenkeel(node, &["why", "db"])?;
                for part in
                    ["no policy decided: after-sb-1pri = \"disconnect\"", "written here: at most 4KiB"]
                {
                    ensure!(why.contains(part), "{part}: {why}");
                }
            }
            assert_eq!((first_byte(&cluster, ALPHA)?, first_byte(&cluster, BRAVO)?), (2, 3));
            continue;
        }
        until(&cluster, ALPHA, "peer-disk:UpToDate")?;
        identical(&cluster, Duration::from_secs(10))?;
        assert_eq!(first_byte(&cluster, BRAVO)?, 2);
        for node in [ALPHA, BRAVO] {
            let log = cluster.server(node).context("it runs")?.log();
            ensure!(log.contains("split brain: a policy decided") && log.contains(policy), "{log}");
        }
        write(&cluster, ALPHA, 4)?;
    }
    Ok(())
}

fn write(cluster: &Cluster, node: usize, byte: u8) -> Result<()> {
    let mut session = session(cluster, node)?;
    let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 0, 8), [byte; 4096]))?;
    ensure!(written.status == 0, "{written:?}");
    flush(&mut session)
}

fn first_byte(cluster: &Cluster, node: usize) -> Result<u8> {
    let mut byte = [0];
    std::io::Read::read_exact(&mut std::fs::File::open(cluster.image(node))?, &mut byte)?;
    Ok(byte[0])
}

/// Waits until a node's `status` says it.
fn until(cluster: &Cluster, node: usize, part: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = cluster.evenkeel(node, &["status", "db"])?;
        if text.contains(part) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not {part}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
