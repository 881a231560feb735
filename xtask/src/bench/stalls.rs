//! How long a write waits when a peer dies, is cut off, or a disk freezes: the slowest of those under way then (P11).

use std::{
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use harness::{
    cluster::{self, Cluster, Layout},
    disk::{Behaviour, Disk},
    load::{Load, Until},
    raw::Session,
};

use super::{Plan, login, section};
use crate::command;

/// What happens to the mirror in the middle of the load, and what a write may wait for it.
struct Trouble {
    name: &'static str,
    goal: Duration,
    /// The node whose disk another process serves.
    served: Option<usize>,
    strike: fn(&mut Cluster, Option<&Disk>) -> Result<()>,
}

const TROUBLES: [Trouble; 5] = [
    Trouble { name: "nothing", goal: Duration::from_millis(50), served: None, strike: |_, _| Ok(()) },
    Trouble {
        name: "the peer is killed",
        goal: Duration::from_millis(50),
        served: None,
        strike: |cluster, _| cluster.kill_node(PEER),
    },
    Trouble {
        name: "the link to it is silently cut",
        goal: Duration::from_secs(2),
        served: None,
        strike: |cluster, _| {
            for other in [PRIMARY, TIEBREAKER] {
                cluster.cut(PEER, other);
                cluster.cut(other, PEER);
            }
            Ok(())
        },
    },
    Trouble {
        name: "the peer's disk freezes (`disk-timeout` 1 s)",
        goal: DISK_TIMEOUT,
        served: Some(PEER),
        strike: freeze,
    },
    Trouble {
        name: "the Primary's own disk freezes (`disk-timeout` 1 s)",
        goal: DISK_TIMEOUT,
        served: Some(PRIMARY),
        strike: freeze,
    },
];

fn freeze(_: &mut Cluster, disk: Option<&Disk>) -> Result<()> {
    disk.context("a disk of its own")?.freeze(true)
}

/// Measures every trouble in turn, as many rounds as the plan says, and puts the table into benches/README.md.
///
/// # Errors
/// When a node does not come up, or a write fails.
pub(super) fn run(plan: &Plan, dry_run: bool) -> Result<()> {
    let mut waits = [const { Vec::new() }; TROUBLES.len()];
    for round in 0..plan.pairs {
        for (trouble, waits) in TROUBLES.iter().zip(&mut waits) {
            let wait = one(trouble).with_context(|| format!("{}, round {round}", trouble.name))?;
            println!("{:50} {wait:>9.1?}", trouble.name);
            waits.push(wait);
        }
    }
    let mut text = format!(
        "{}, {} rounds in turn. Mode C, two replicas and a tiebreaker, writes of 0.5 to 16 KiB at depth {DEPTH}, default \
         timeouts.\n\n| what happens | median of the slowest writes | slowest of all | goal |\n|---|---|---|---|\n",
        section::machine()?,
        plan.pairs
    );
    for (trouble, waits) in TROUBLES.iter().zip(&mut waits) {
        waits.sort_unstable();
        let (median, most) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        let (name, goal) = (trouble.name, trouble.goal.as_millis());
        writeln!(text, "| {name} | {} ms | {} ms | {goal} ms |", median.as_millis(), most.as_millis())?;
    }
    section::put("stalls", &text, dry_run)
}

fn one(trouble: &Trouble) -> Result<Duration> {
    let dir = tempfile::tempdir_in(command::repository().join("target"))?;
    let options = "disk = { disk-timeout = \"1s\" }\n";
    let layout = Layout { size_bytes: 64 << 20, protocol: "C", disks: 2, cuttable: true, options };
    let mut cluster = Cluster::start_as(&command::binary(), dir.path(), &layout)?;
    cluster.wait_up_to_date()?;
    let mut disk = None;
    if let Some(node) = trouble.served {
        cluster.stop_node(node)?;
        disk = Some(Disk::over(&cluster.image(node), Behaviour::Plain)?);
        cluster.start_node(node)?;
        cluster.wait_up_to_date()?;
    }
    let mut session = Session::login(cluster.portal(PRIMARY), &login(cluster::IQN), 0)?;
    session.settle()?;
    // Once over the span, so that no write waits for space on the filesystem.
    let mut load = Load::new(41, SPAN_BLOCKS, DEPTH);
    load.run(&mut session, Until::Moment(Instant::now() + Duration::from_secs(1)))?;
    load.slowest = Duration::ZERO;
    let until = Until::Moment(Instant::now() + BEFORE + AFTER);
    thread::scope(|scope| {
        let loaded = scope.spawn(|| load.run(&mut session, until));
        thread::sleep(BEFORE);
        let struck = (trouble.strike)(&mut cluster, disk.as_ref());
        loaded.join().expect("the load does not panic").and(struck)
    })?;
    // The kernel ends no process that waits for a disk.
    drop(disk);
    Ok(load.slowest)
}

const PRIMARY: usize = 0;
const PEER: usize = 1;
const TIEBREAKER: usize = 2;
const DEPTH: usize = 16;
const SPAN_BLOCKS: u64 = 16 << 10;
const DISK_TIMEOUT: Duration = Duration::from_secs(1);
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(3500);
