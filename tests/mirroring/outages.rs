//! Nodes that die and return: writes go on, and what was missed is copied.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    load::{Load, Until, read_all},
    raw::Session,
};
use rustix::process::Signal;

use crate::cluster::{
    ALPHA, BRAVO, CHARLIE, DEPTH, SIZE_BYTES, SPAN_BLOCKS, flush, identical, session, start,
};

/// P7 and P11: bravo is killed and started ten times under load. No write fails, none waits longer than the
/// time-outs allow, and in the end the replicas are identical.
#[test]
fn a_peer_dies_ten_times() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut session = session(&cluster, ALPHA)?;
    let mut load = Load::new(5, SPAN_BLOCKS, DEPTH);
    under_load(&mut load, &mut session, || {
        for round in 0..10 {
            let part = |result: Result<()>| result.with_context(|| format!("round {round}"));
            part(cluster.kill_node(BRAVO))?;
            // Writes that bravo misses.
            thread::sleep(Duration::from_millis(200));
            part(cluster.start_node(BRAVO))?;
            // Some of the deaths meet a resync that has just begun.
            thread::sleep(Duration::from_millis(100 * (round % 4)));
        }
        Ok(())
    })?;
    ensure!(load.acknowledged > 1000, "only {} writes in ten rounds", load.acknowledged);
    ensure!(load.slowest < STALL_MAX, "a write took {:?}", load.slowest);
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// The same bytes come back through the node without a disk, with both replicas, and with each of them alone.
#[test]
fn a_diskless_node_reads_the_same() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    {
        let mut session = session(&cluster, ALPHA)?;
        Load::new(6, SPAN_BLOCKS, DEPTH).run(&mut session, Until::Writes(2000))?;
        flush(&mut session)?;
    }
    cluster.evenkeel(ALPHA, &["secondary", "db"])?;
    let expected = fs::read(cluster.image(ALPHA))?;
    let expected = &expected[..usize::try_from(SIZE_BYTES)?];
    let mut charlie = session(&cluster, CHARLIE)?;
    same(&mut charlie, expected).context("with both replicas")?;
    cluster.kill_node(ALPHA)?;
    same(&mut charlie, expected).context("with bravo alone")?;
    // Writes through charlie reach bravo now and alpha when it is back.
    Load::new(7, SPAN_BLOCKS, DEPTH)
        .run(&mut charlie, Until::Writes(500))
        .context("writes through charlie")?;
    flush(&mut charlie)?;
    cluster.start_node(ALPHA)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// Stopped cleanly under load, a node says good-bye with exit code 0 within ten seconds, and the rest goes on.
#[test]
fn a_peer_stops_cleanly_under_load() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut session = session(&cluster, ALPHA)?;
    let mut load = Load::new(8, SPAN_BLOCKS, DEPTH);
    under_load(&mut load, &mut session, || {
        cluster.stop_node(BRAVO)?;
        cluster.start_node(BRAVO)
    })?;
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    drop(session);
    for node in [CHARLIE, ALPHA, BRAVO] {
        cluster.stop_node(node)?;
    }
    identical(&cluster, Duration::ZERO)
}

/// A terminal that closes, or a habit of log rotation, does not end a node: SIGHUP is told apart from a stop.
#[test]
fn a_node_outlives_its_terminal() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    cluster.server(ALPHA).context("alpha runs")?.signal(Signal::HUP)?;
    // Answered after the signal: a node that it ended would not.
    cluster.status(ALPHA)?;
    cluster.alive()?;
    cluster.stop_node(ALPHA)
}

/// Runs `events` while `load` writes, and ends the load with them.
pub(crate) fn under_load(
    load: &mut Load,
    session: &mut Session,
    events: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let events = scope.spawn(|| {
            let outcome = events();
            stop.store(true, Ordering::Relaxed);
            outcome
        });
        let mut written = Ok(());
        while written.is_ok() && !stop.load(Ordering::Relaxed) {
            written = load.run(session, Until::Writes(200));
        }
        events.join().expect("the events do not panic")?;
        written.context("the load")
    })
}

fn same(session: &mut Session, expected: &[u8]) -> Result<()> {
    let mut read = Vec::with_capacity(expected.len());
    read_all(session, SIZE_BYTES, &mut read)?;
    let differs = (0..expected.len()).find(|&at| read[at] != expected[at]);
    ensure!(differs.is_none(), "byte {} differs", differs.unwrap_or_default());
    Ok(())
}

/// A dead peer's process is noticed by the closed connection; the keep-alive's time-outs are far below this.
const STALL_MAX: Duration = Duration::from_secs(10);
