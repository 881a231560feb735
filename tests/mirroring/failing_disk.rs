//! Disks that fail, are full, or stop answering under a host that keeps 32 commands in flight and checks what it reads.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::NODES,
    disk::{Behaviour, skipped},
    host::Host,
};

use crate::{
    cluster::{ALPHA, BRAVO},
    site::Site,
};

/// P12: a disk that fails every write, the Primary's or the other, costs no command; mended, it catches up.
#[test]
fn a_disk_that_fails_costs_nothing() -> Result<()> {
    rounds("a_disk_that_fails_costs_nothing", "EIO", false)
}

/// The same where the disk is full.
#[test]
fn a_full_disk_costs_nothing() -> Result<()> {
    rounds("a_full_disk_costs_nothing", "ENOSPC", false)
}

/// P11: a disk that stops answering is given up after `disk-timeout`, under load too; when it answers again, it catches up.
#[test]
fn a_frozen_disk_costs_its_timeout() -> Result<()> {
    rounds("a_frozen_disk_costs_its_timeout", "EIO", true)
}

fn rounds(test: &str, error: &'static str, frozen: bool) -> Result<()> {
    if skipped(test)? {
        return Ok(());
    }
    let options = "disk = { disk-timeout = \"1s\" }\n";
    let mut site = Site::start("C", Behaviour::Failing(error), false, options)?;
    let mut host = site.host(&[ALPHA, BRAVO], 31);
    for round in 0..4 {
        let node = round % 2;
        break_and_mend(&mut site, &mut host, node, frozen)
            .and_then(|()| site.agree(&mut host))
            .with_context(|| format!("round {round}, {}\n{}", NODES[node], site.status()))?;
    }
    println!(
        "{} writes, {} reads, {} unknown outcomes, {} failovers, longest silence {:?}",
        host.acknowledged, host.reads, host.unknown, host.failovers, host.longest_silence
    );
    ensure!(host.longest_silence < Duration::from_secs(4), "silent for {:?}", host.longest_silence);
    Ok(())
}

/// Breaks a disk under load until its node has given it up, and mends it.
fn break_and_mend(site: &mut Site, host: &mut Host, node: usize, frozen: bool) -> Result<()> {
    let before = host.acknowledged;
    under_load(host, || {
        if frozen {
            site.disks[node].freeze(true)?;
        } else {
            site.disks[node].fail(true)?;
        }
        given_up(site, node)?;
        // The others go on without it.
        thread::sleep(Duration::from_millis(200));
        if frozen { site.disks[node].freeze(false) } else { site.disks[node].fail(false) }
    })?;
    ensure!(host.acknowledged > before + 100, "{} writes", host.acknowledged - before);
    under_load(host, || {
        site.cluster.stop_node(node)?;
        site.cluster.start_node(node)
    })
}

/// Runs `events` while the host works.
fn under_load(host: &mut Host, events: impl FnOnce() -> Result<()>) -> Result<()> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let worked = scope.spawn(|| host.work(|| !ended.load(Ordering::Relaxed)));
        thread::sleep(Duration::from_millis(200));
        let outcome = events();
        ended.store(true, Ordering::Relaxed);
        worked.join().expect("the host does not panic").and(outcome)
    })
}

/// Waits until the node says that it has no disk any more, and why.
fn given_up(site: &Site, node: usize) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = site.cluster.evenkeel(node, &["status", "db"])?;
        if text.contains("disk:Diskless") && text.contains("cause:") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the disk is kept:\n{text}");
        thread::sleep(Duration::from_millis(20));
    }
}
