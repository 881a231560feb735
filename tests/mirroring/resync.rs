//! Resyncs that are disturbed while hosts write: paused, broken off again and again, with a target whose disk fills up.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{Cluster, Layout},
    disk::{Behaviour, skipped},
    load::{Load, Until},
    raw::{Session, Task, cdb},
};
use tempfile::TempDir;

use crate::{
    cluster::{ALPHA, BRAVO, CHARLIE, SIZE_BYTES, flush, identical, identical_to, session},
    outages::under_load,
    site::Site,
};

/// DRBD 9.1.9: paused in the middle, with writes before and after the place where it stopped, a resync goes on to
/// replicas that are identical.
#[test]
fn a_paused_resync_goes_on() -> Result<()> {
    let (mut cluster, _dir) = narrow("C")?;
    let mut session = session(&cluster, ALPHA)?;
    resync_of_everything(&mut cluster, &mut session)?;
    cluster.evenkeel(ALPHA, &["pause-sync", "db/0"])?;
    wait_for(&cluster, ALPHA, "PausedSyncS")?;
    // Anywhere, so before and after.
    Load::new(41, SIZE_BLOCKS, DEPTH).run(&mut session, Until::Writes(300))?;
    ensure!(shows(&cluster, ALPHA, "PausedSyncS")?, "{}", cluster.evenkeel(ALPHA, &["status"])?);
    cluster.evenkeel(ALPHA, &["resume-sync", "db/0"])?;
    wide(&cluster);
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// Crucible #837, #968 and #1921: the target leaves and comes back again and again in the middle of its resync, under
/// load. No write fails, and in the end the replicas are identical.
#[test]
fn a_target_flaps_during_its_resync() -> Result<()> {
    let (mut cluster, _dir) = narrow("C")?;
    let mut session = session(&cluster, ALPHA)?;
    resync_of_everything(&mut cluster, &mut session)?;
    let mut load = Load::new(42, SIZE_BLOCKS, 4);
    under_load(&mut load, &mut session, || {
        for round in 0..10 {
            cluster.evenkeel(BRAVO, &["disconnect", "db", "--peer", "alpha"])?;
            thread::sleep(Duration::from_millis(20 * (round % 3)));
            cluster.evenkeel(BRAVO, &["connect", "db", "--peer", "alpha"])?;
            wait_for(&cluster, ALPHA, "SyncSource").with_context(|| format!("round {round}"))?;
        }
        Ok(())
    })?;
    wide(&cluster);
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// LINBIT/drbd#27 and 9.1.6: a diskless Primary loses one replica after the other, each as soon as it is good again.
#[test]
fn a_diskless_primary_loses_one_replica_after_the_other() -> Result<()> {
    let (mut cluster, _dir) = crate::cluster::start("C")?;
    let mut session = session(&cluster, CHARLIE)?;
    let mut load = Load::new(43, SIZE_BLOCKS, DEPTH);
    under_load(&mut load, &mut session, || {
        for node in [ALPHA, BRAVO].repeat(4) {
            cluster.kill_node(node)?;
            thread::sleep(Duration::from_millis(150));
            cluster.start_node(node)?;
            cluster.wait_up_to_date()?;
        }
        Ok(())
    })?;
    ensure!(load.acknowledged > 500, "only {} writes", load.acknowledged);
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// LINBIT/drbd#60 and 9.1.13: the target of a resync fills up. The target says so and is no replica any more, the source
/// does not go on as if it were, and with room made and the node started again the resync runs to its end.
#[test]
fn a_target_that_fills_up_is_given_up() -> Result<()> {
    if skipped("a_target_that_fills_up_is_given_up")? {
        return Ok(());
    }
    let mut site = Site::start("C", Behaviour::Failing("ENOSPC"), true, "")?;
    let mut session = session(&site.cluster, ALPHA)?;
    site.cluster.shape(Duration::ZERO, NARROW);
    site.cluster.kill_node(BRAVO)?;
    write_everything(&mut session, Site::SIZE_BYTES)?;
    site.cluster.start_node(BRAVO)?;
    wait_for(&site.cluster, ALPHA, "SyncSource")?;
    site.disks[BRAVO].fail(true)?;
    wait_for(&site.cluster, BRAVO, "disk:Diskless")?;
    wait_for_absence(&site.cluster, ALPHA, "SyncSource")?;
    Load::new(44, Site::SIZE_BYTES / 512, DEPTH).run(&mut session, Until::Writes(200))?;
    site.disks[BRAVO].fail(false)?;
    site.cluster.shape(Duration::ZERO, 0);
    site.cluster.stop_node(BRAVO)?;
    site.cluster.start_node(BRAVO)?;
    flush(&mut session)?;
    site.cluster.wait_up_to_date()?;
    identical_to(&site.cluster, Site::SIZE_BYTES, Duration::ZERO)?;
    site.cluster.alive()
}

/// DRBD 9.0.8 and 9.0.9: a volume is unmapped in large pieces while others write into it.
#[test]
fn a_volume_is_unmapped_in_large_pieces_under_writes() -> Result<()> {
    let (mut cluster, _dir) = crate::cluster::start("C")?;
    let mut writer = session(&cluster, ALPHA)?;
    let isid = harness::raw::Login::normal(harness::cluster::IQN).from_initiator("unmap", 9);
    let mut unmapper = Session::login(cluster.portal(ALPHA), &isid, 0)?;
    unmapper.settle()?;
    let mut load = Load::new(46, SIZE_BLOCKS, DEPTH);
    under_load(&mut load, &mut writer, || {
        for _ in 0..10 {
            for piece in 0..8 {
                unmap(&mut unmapper, piece * SIZE_BLOCKS / 8, SIZE_BLOCKS / 8)?;
            }
        }
        Ok(())
    })?;
    flush(&mut writer)?;
    identical(&cluster, Duration::ZERO)?;
    cluster.alive()
}

/// LB-TCP and DRBD 9.2.17: between nodes the stream comes in pieces of 1 to 1500 bytes, whatever was sent at once.
#[test]
fn a_stream_in_small_pieces_is_the_same_stream() -> Result<()> {
    let (mut cluster, _dir) = cuttable("B")?;
    cluster.cut_into_pieces(1500);
    let mut session = session(&cluster, ALPHA)?;
    let mut load = Load::new(47, SIZE_BLOCKS, DEPTH);
    under_load(&mut load, &mut session, || {
        cluster.kill_node(BRAVO)?;
        cluster.start_node(BRAVO)?;
        cluster.wait_up_to_date()
    })?;
    ensure!(load.acknowledged > 100, "only {} writes", load.acknowledged);
    flush(&mut session)?;
    cluster.wait_up_to_date()?;
    identical(&cluster, Duration::from_secs(5))?;
    cluster.alive()
}

/// A cluster whose ways between nodes can be shaped.
fn cuttable(protocol: &str) -> Result<(Cluster, TempDir)> {
    let dir = tempfile::tempdir()?;
    let layout = Layout { size_bytes: SIZE_BYTES, protocol, disks: 2, cuttable: true, options: "" };
    let cluster = Cluster::start_as(Path::new(env!("CARGO_BIN_EXE_evenkeel")), dir.path(), &layout)?;
    cluster.wait_up_to_date()?;
    cluster.wait_connected()?;
    Ok((cluster, dir))
}

/// The same with ways so narrow that a resync takes seconds.
fn narrow(protocol: &str) -> Result<(Cluster, TempDir)> {
    let (cluster, dir) = cuttable(protocol)?;
    cluster.shape(Duration::ZERO, NARROW);
    Ok((cluster, dir))
}

fn wide(cluster: &Cluster) {
    cluster.shape(Duration::ZERO, 0);
}

/// Leaves bravo, back after it has missed all of the volume, in the middle of its resync.
fn resync_of_everything(cluster: &mut Cluster, session: &mut Session) -> Result<()> {
    cluster.kill_node(BRAVO)?;
    write_everything(session, SIZE_BYTES)?;
    cluster.start_node(BRAVO)?;
    wait_for(cluster, ALPHA, "SyncSource")
}

fn write_everything(session: &mut Session, size_bytes: u64) -> Result<()> {
    for lba in (0..size_bytes / 512).step_by(128) {
        let bytes = vec![u8::try_from(lba / 128 % 251)? + 1; 128 * 512];
        good(session, &Task::write(cdb::ten(cdb::WRITE_10, u32::try_from(lba)?, 128), bytes))?;
    }
    Ok(())
}

/// UNMAP with one descriptor (SBC-3, section 5.28).
fn unmap(session: &mut Session, lba: u64, blocks: u64) -> Result<()> {
    let mut list = [0; 24];
    list[1] = 22;
    list[3] = 16;
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&u32::try_from(blocks)?.to_be_bytes());
    good(session, &Task::write(cdb::ten(0x42, 0, 24), list))
}

/// Repeats what a unit attention kept from being done, as every initiator does (SAM-5, section 5.14).
fn good(session: &mut Session, task: &Task) -> Result<()> {
    let mut outcome = session.run(task)?;
    while outcome.check().is_some_and(|(key, ..)| key == 6) {
        outcome = session.run(task)?;
    }
    ensure!(outcome.status == 0, "{:02x?}: {outcome:?}", task.cdb);
    Ok(())
}

fn shows(cluster: &Cluster, node: usize, what: &str) -> Result<bool> {
    Ok(cluster.evenkeel(node, &["status", "db"])?.contains(what))
}

fn wait_for(cluster: &Cluster, node: usize, what: &str) -> Result<()> {
    wait_until(cluster, node, &format!("shows {what}"), || shows(cluster, node, what))
}

fn wait_for_absence(cluster: &Cluster, node: usize, what: &str) -> Result<()> {
    wait_until(cluster, node, &format!("shows no {what}"), || Ok(!shows(cluster, node, what)?))
}

fn wait_until(cluster: &Cluster, node: usize, what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(
            Instant::now() < deadline,
            "no status that {what}:\n{}",
            cluster.evenkeel(node, &["status"])?
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

const SIZE_BLOCKS: u64 = SIZE_BYTES / 512;
const DEPTH: usize = 16;
/// Bytes in a second: a resync of everything takes four seconds and more.
const NARROW: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
