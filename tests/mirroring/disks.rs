//! A disk that cannot be used: the volume is served without it, everything else goes on, and what is not ours stays.

use std::{fs, fs::File, os::unix::fs::FileExt, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use harness::{
    cluster::{Cluster, IQN},
    raw::{Login, Session, Task, cdb},
};

use crate::cluster::{ALPHA, BRAVO, SIZE_BYTES, flush, identical, session, start};

/// P12 at the start of a node: whatever is wrong with its one disk, the node starts, says what it is, serves the volume
/// from the peer that is up to date, and its other resources too. Foreign bytes are not touched.
#[test]
fn a_disk_that_cannot_be_used_keeps_nothing_else_back() -> Result<()> {
    let (mut cluster, dir) = start("C")?;
    {
        let mut session = session(&cluster, ALPHA)?;
        let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [7; 512]))?;
        assert_eq!(written.status, 0, "{written:?}");
        flush(&mut session)?;
    }
    add_spare(dir.path())?;
    let image = cluster.image(ALPHA);
    for (cause, spoil) in SPOILS {
        cluster.kill_node(ALPHA)?;
        let kept = dir.path().join("kept.img");
        fs::copy(&image, &kept)?;
        spoil(&image).context(cause)?;
        let foreign = fs::read(&image).ok();
        let part = |result: Result<()>| result.context(cause);
        part(cluster.start_node(ALPHA))?;
        part(served_without_disk(&cluster, cause))?;
        part(spare_is_served(&cluster))?;
        cluster.kill_node(ALPHA)?;
        ensure!(fs::read(&image).ok() == foreign, "{cause}: the disk was written");
        if image.is_dir() {
            fs::remove_dir(&image)?;
        }
        fs::copy(&kept, &image)?;
        part(cluster.start_node(ALPHA))?;
        part(cluster.evenkeel(ALPHA, &["wait", "db", "up-to-date", "--timeout", "60s"]).map(drop))?;
    }
    Ok(())
}

/// P10: a node that was killed inside the very first write of its superblock starts, and gets what the others have.
#[test]
fn a_torn_first_superblock_keeps_no_node_down() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut session = session(&cluster, BRAVO)?;
    let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 8, 1), [7; 512]))?;
    ensure!(written.status == 0, "{written:?}");
    flush(&mut session)?;
    let image = cluster.image(ALPHA);
    for torn in [512, 2048, 4095] {
        cluster.kill_node(ALPHA)?;
        // As the node made it: a hole, the label, and a part of the first write.
        let (len, was) = (fs::metadata(&image)?.len(), File::open(&image)?);
        let [mut label, mut superblock] = [[0; 4096]; 2];
        was.read_exact_at(&mut label, SIZE_BYTES)?;
        was.read_exact_at(&mut superblock, SIZE_BYTES + 2 * 4096)?;
        fs::remove_file(&image)?;
        let new = File::create_new(&image)?;
        new.set_len(len)?;
        new.write_all_at(&label, SIZE_BYTES)?;
        new.write_all_at(&superblock[..torn], SIZE_BYTES + 2 * 4096)?;
        cluster.start_node(ALPHA)?;
        cluster.evenkeel(ALPHA, &["wait", "db", "up-to-date", "--timeout", "60s"])?;
        identical(&cluster, Duration::from_secs(10))?;
    }
    Ok(())
}

/// With nothing at all to serve, a node does not start, and says why.
#[test]
fn nothing_to_serve_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let disk = dir.path().join("foreign.img");
    fs::write(&disk, vec![0xa5; 8 << 20])?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let ended = command.args(["serve", "--size", "4MiB", "--disk"]).arg(&disk).output()?;
    let words = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(!ended.status.success() && words.contains("nothing to serve"), "{words}");
    ensure!(fs::read(&disk)? == vec![0xa5; 8 << 20], "the disk was written");
    Ok(())
}

type Spoil = fn(&Path) -> Result<()>;

/// What stands in the way, a part of what is said about it, and how it comes about.
const SPOILS: [(&str, Spoil); 4] = [
    ("is not written", |image| Ok(fs::write(image, vec![0xa5; usize::try_from(2 * SIZE_BYTES)?])?)),
    ("is neither a file nor a block device", |image| {
        fs::remove_file(image)?;
        Ok(fs::create_dir(image)?)
    }),
    ("bytes", |image| Ok(File::options().write(true).open(image)?.set_len(SIZE_BYTES + 8192)?)),
    // The superblocks, behind the data and the label.
    ("its metadata is of no use", |image| {
        let file = File::options().write(true).open(image)?;
        Ok(file.write_all_at(&vec![0xff; 64 << 10], SIZE_BYTES + 4096)?)
    }),
];

fn served_without_disk(cluster: &Cluster, cause: &str) -> Result<()> {
    cluster.evenkeel(ALPHA, &["wait", "db", "connected", "--timeout", "30s"])?;
    let mut session = session(cluster, ALPHA)?;
    let read = session.run(&Task::read(cdb::ten(cdb::READ_10, 0, 1), 512))?;
    ensure!((read.status, &read.data[..]) == (0, &[7; 512]), "{read:?}");
    let text = cluster.evenkeel(ALPHA, &["status", "db"])?;
    ensure!(text.contains("disk:Diskless") && text.contains(cause), "{text}");
    let log = cluster.server(ALPHA).context("alpha runs")?.log();
    ensure!(log.contains("the disk cannot be used"), "{log}");
    Ok(())
}

/// A resource that alpha alone has a disk for.
fn add_spare(dir: &Path) -> Result<()> {
    let spare = "\n[[resource]]\nname = \"spare\"\n\n[[resource.volume]]\nnumber = 0\nsize = \"4MiB\"\n\
                 disks = { alpha = \"spare.img\" }\n\n[resource.export]\niqn = \"iqn.2026-11.io.evenkeel:spare\"\n";
    let path = dir.join("alpha.toml");
    let text = fs::read_to_string(&path)?;
    Ok(fs::write(path, text + spare)?)
}

fn spare_is_served(cluster: &Cluster) -> Result<()> {
    let iqn = IQN.replace(":db", ":spare");
    let mut session =
        Session::login(cluster.portal(ALPHA), &Login::normal(&iqn).from_initiator("load", 9), 0)?;
    session.settle()?;
    let written = session.run(&Task::write(cdb::ten(cdb::WRITE_10, 0, 1), [1; 512]))?;
    ensure!(written.status == 0, "{written:?}");
    Ok(())
}
