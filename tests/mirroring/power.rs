//! Power cuts: nodes and their disks end in the same moment, and the disks lose what was not flushed.

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
    load::Random,
};

use crate::{
    cluster::{ALPHA, BRAVO, CHARLIE},
    site::Site,
};

/// P2 and P10: in mode C both replicas lose their power right after an acknowledged flush. What it covers is on both
/// disks already, and after the nodes came back in any order it is what the volume holds.
#[test]
fn what_was_flushed_is_on_both_disks() -> Result<()> {
    if skipped("what_was_flushed_is_on_both_disks")? {
        return Ok(());
    }
    let mut site = Site::start("C", Behaviour::VolatileCache, false, "")?;
    let mut host = site.host(&[ALPHA, BRAVO], 21);
    let mut random = Random::new(21);
    let mut lost = 0;
    for round in 0..8 {
        let off = if random.below(2) == 0 { vec![ALPHA, BRAVO] } else { vec![ALPHA, BRAVO, CHARLIE] };
        cut_after_flush(&mut site, &mut host, &off, &mut random)
            .and_then(|()| {
                lost += host.check_file(&site.disks[ALPHA].behind())?;
                lost += host.check_file(&site.disks[BRAVO].behind())?;
                Ok(())
            })
            .and_then(|()| site.power_on(&off, &mut random))
            .and_then(|()| site.agree(&mut host))
            .with_context(|| format!("round {round}, without power: {off:?}\n{}", site.status()))?;
    }
    ensure!(lost > 0, "the disks lost nothing: this shows nothing");
    told(&host, 8)
}

/// P1, P7, P10: in mode C one node loses its power under load, the Primary as often as the other. Nothing acknowledged is
/// lost, flushed or not, for the other one has it.
#[test]
fn one_node_without_power_in_mode_c() -> Result<()> {
    one_node("C", &[ALPHA, BRAVO])
}

/// The same in mode B, where the other one has it at least in memory.
#[test]
fn one_node_without_power_in_mode_b() -> Result<()> {
    one_node("B", &[ALPHA, BRAVO])
}

/// In mode A a Secondary that loses its power costs nothing.
#[test]
fn a_secondary_without_power_in_mode_a() -> Result<()> {
    one_node("A", &[ALPHA])
}

/// P2 in mode A: a Primary that loses its power and comes back, and that nobody replaced, still has what was flushed.
#[test]
fn a_primary_without_power_in_mode_a() -> Result<()> {
    if skipped("a_primary_without_power_in_mode_a")? {
        return Ok(());
    }
    let mut site = Site::start("A", Behaviour::VolatileCache, false, "")?;
    let mut host = site.host(&[ALPHA], 23);
    let mut random = Random::new(23);
    for round in 0..5 {
        cut_after_flush(&mut site, &mut host, &[ALPHA], &mut random)
            .and_then(|()| host.check_file(&site.disks[ALPHA].behind()).map(drop))
            .and_then(|()| site.power_on(&[ALPHA], &mut random))
            .and_then(|()| site.agree(&mut host))
            .with_context(|| format!("round {round}\n{}", site.status()))?;
    }
    told(&host, 5)
}

/// The host has paths to `paths`; where that is more than one, each may be the one without power.
fn one_node(protocol: &str, paths: &[usize]) -> Result<()> {
    if skipped(&format!("one node without power in mode {protocol}"))? {
        return Ok(());
    }
    let mut site = Site::start(protocol, Behaviour::VolatileCache, false, "")?;
    let mut host = site.host(paths, 22);
    let mut random = Random::new(22);
    for round in 0..ROUNDS {
        let node = if paths == [ALPHA] { BRAVO } else { round % 2 };
        cut_under_load(&mut site, &mut host, node, &mut random)
            .and_then(|()| site.agree(&mut host))
            .with_context(|| format!("round {round}, without power: {}\n{}", NODES[node], site.status()))?;
    }
    told(&host, ROUNDS)
}

/// Works for a while, then cuts the power of the nodes `off` as soon as a flush is acknowledged.
fn cut_after_flush(site: &mut Site, host: &mut Host, off: &[usize], random: &mut Random) -> Result<()> {
    let flushes = host.flushes.clone();
    let ended = AtomicBool::new(false);
    let pause = Duration::from_millis(200 + random.below(400));
    thread::scope(|scope| {
        let worked = scope.spawn(|| host.work(|| !ended.load(Ordering::Relaxed)));
        thread::sleep(pause);
        let (before, deadline) = (flushes.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while flushes.load(Ordering::Relaxed) == before && Instant::now() < deadline {
            thread::sleep(Duration::from_micros(50));
        }
        let off = site.power_off(off);
        ended.store(true, Ordering::Relaxed);
        worked.join().expect("the host does not panic").and(off)
    })?;
    host.power_lost();
    Ok(())
}

/// Cuts the power of `node` while the host goes on, and gives it back.
fn cut_under_load(site: &mut Site, host: &mut Host, node: usize, random: &mut Random) -> Result<()> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let worked = scope.spawn(|| host.work(|| !ended.load(Ordering::Relaxed)));
        let mut pause = |most| thread::sleep(Duration::from_millis(100 + random.below(most)));
        pause(400);
        let off = site.power_off(&[node]);
        pause(800);
        let on = off.and_then(|()| site.power_on(&[node], &mut Random::new(0)));
        pause(400);
        ended.store(true, Ordering::Relaxed);
        worked.join().expect("the host does not panic").and(on)
    })
}

/// Something has to have happened.
fn told(host: &Host, rounds: usize) -> Result<()> {
    let flushes = host.flushes.load(Ordering::Relaxed);
    println!(
        "{rounds} power cuts: {} writes, {} reads, {flushes} flushes, {} unknown outcomes, longest silence {:?}",
        host.acknowledged, host.reads, host.unknown, host.longest_silence
    );
    ensure!(
        host.acknowledged > 50 * rounds as u64 && flushes > rounds as u64,
        "only {} writes and {flushes} flushes",
        host.acknowledged
    );
    Ok(())
}

const ROUNDS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(20);
