//! Round after round something breaks under a host that keeps 32 commands in flight and checks what it reads: no
//! acknowledged write is lost, and in the end of each round all replicas are identical.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{Cluster, IQN, Layout, NODES},
    host::Host,
    image,
    load::Random,
};
use rustix::process::Signal;

/// P1, P3, P5, P7, P9, P10, P14: three replicas with quorum, and any node is killed, stopped, frozen or cut off at any
/// moment, the Primary most of all.
#[test]
fn three_replicas_survive_what_comes() -> Result<()> {
    rounds(&Layout { disks: 3, ..LAYOUT }, 30, 11)
}

/// The same with two replicas and a diskless node that breaks ties.
#[test]
fn two_replicas_and_a_tiebreaker_survive_what_comes() -> Result<()> {
    rounds(&LAYOUT, 20, 12)
}

/// What breaks in a round.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGKILL of all but one, one after the other.
    KillMost,
    /// SIGTERM.
    Stop,
    /// SIGSTOP, and SIGCONT when others have gone on.
    Freeze,
    /// Nothing gets from the node to others, and nothing back.
    Isolate,
    /// One way between two nodes lets nothing through.
    CutOneWay,
}

impl Fault {
    const ALL: [Self; 6] =
        [Self::Kill, Self::KillMost, Self::Stop, Self::Freeze, Self::Isolate, Self::CutOneWay];
}

fn rounds(layout: &Layout<'_>, rounds: usize, seed: u64) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut cluster = Cluster::start_as(Path::new(env!("CARGO_BIN_EXE_evenkeel")), dir.path(), layout)?;
    cluster.wait_up_to_date()?;
    let portals = (0..NODES.len()).map(|node| cluster.portal(node)).collect();
    let mut host = Host::new(IQN, portals, BLOCKS, DEPTH, seed);
    let mut random = Random::new(seed);
    for (round, &fault) in (0..rounds).zip(Fault::ALL.iter().cycle()) {
        one_round(&mut cluster, &mut host, fault, &mut random)
            .and_then(|()| agree(&cluster, &mut host, layout))
            .with_context(|| format!("round {round}, {fault:?}\n{}", everything(&cluster)))?;
    }
    println!(
        "{rounds} rounds: {} writes, {} reads, {} unknown outcomes, {} failovers, longest silence {:?}",
        host.acknowledged, host.reads, host.unknown, host.failovers, host.longest_silence
    );
    ensure!(host.acknowledged > 100 * rounds as u64, "only {} writes", host.acknowledged);
    ensure!(host.unknown > 0 && host.failovers > 0, "nothing happened to the host");
    cluster.alive()
}

/// Breaks something in the middle of the work and mends it.
fn one_round(cluster: &mut Cluster, host: &mut Host, fault: Fault, random: &mut Random) -> Result<()> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let events = scope.spawn(|| {
            thread::sleep(Duration::from_millis(100 + random.below(200)));
            let outcome = strike(cluster, fault, random);
            thread::sleep(Duration::from_millis(random.below(300)));
            ended.store(true, Ordering::Relaxed);
            outcome
        });
        let worked = host.work(|| !ended.load(Ordering::Relaxed));
        events.join().expect("the events do not panic")?;
        worked
    })
}

fn strike(cluster: &mut Cluster, fault: Fault, random: &mut Random) -> Result<()> {
    // The Primary is the most interesting one.
    let primary = (0..NODES.len()).find(|&node| is_primary(cluster, node));
    let node = match primary {
        Some(primary) if random.below(3) > 0 => primary,
        _ => usize::try_from(random.below(NODES.len() as u64))?,
    };
    let others = [(node + 1) % NODES.len(), (node + 2) % NODES.len()];
    let while_broken = Duration::from_millis(random.below(1500));
    match fault {
        Fault::Kill => {
            cluster.kill_node(node)?;
            thread::sleep(while_broken);
            cluster.start_node(node)
        }
        Fault::KillMost => {
            for node in [node, others[0]] {
                cluster.kill_node(node)?;
                thread::sleep(while_broken / 4);
            }
            for node in [others[0], node] {
                cluster.start_node(node)?;
            }
            Ok(())
        }
        Fault::Stop => {
            cluster.stop_node(node)?;
            thread::sleep(while_broken);
            cluster.start_node(node)
        }
        Fault::Freeze => {
            let server = cluster.server(node).context("it runs")?;
            server.signal(Signal::STOP)?;
            thread::sleep(NOTICED + while_broken);
            server.signal(Signal::CONT)
        }
        Fault::Isolate => {
            for other in others {
                cluster.cut(node, other);
                cluster.cut(other, node);
            }
            thread::sleep(NOTICED + while_broken);
            cluster.heal();
            Ok(())
        }
        Fault::CutOneWay => {
            cluster.cut(node, others[0]);
            thread::sleep(NOTICED + while_broken);
            cluster.heal();
            Ok(())
        }
    }
}

/// Everyone is good again, holds the same bytes, and they are the right ones.
fn agree(cluster: &Cluster, host: &mut Host, layout: &Layout<'_>) -> Result<()> {
    cluster.wait_up_to_date()?;
    for other in 1..layout.disks {
        image::compare(&cluster.image(0), &cluster.image(other), layout.size_bytes)?;
    }
    host.read_everything()
}

fn is_primary(cluster: &Cluster, node: usize) -> bool {
    cluster.status(node).is_ok_and(|status| status[0]["role"] == "Primary")
}

fn everything(cluster: &Cluster) -> String {
    let status = |node| cluster.evenkeel(node, &["status"]).unwrap_or_else(|error| error.to_string());
    (0..NODES.len()).map(status).collect::<Vec<_>>().join("\n")
}

const LAYOUT: Layout<'_> =
    Layout { size_bytes: 16 << 20, protocol: "C", disks: 2, cuttable: true, options: "" };
const BLOCKS: usize = 256;
const DEPTH: usize = 32;
/// By then a peer that is silent has been noticed.
const NOTICED: Duration = Duration::from_millis(2500);
