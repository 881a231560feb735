//! QEMU's own iSCSI driver (libiscsi inside `qemu-img`), open and with CHAP.

use std::{fs::File, io::Write as _, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use harness::{
    load::Random,
    target::{Chap, Kind, Spec, Target},
};

use super::{Options, Tally};
use crate::command;

/// Converts, compares and benches images on the volume.
pub(super) fn run(options: &Options) -> Result<Tally> {
    let chap = Chap { user: "db".into(), secret: "twelve-or-more".into() };
    let mut passed = 0;
    for chap in [None, Some(chap)] {
        let login = if chap.is_some() { "with CHAP" } else { "without CHAP" };
        passed += round(&options.kind, chap).with_context(|| format!("QEMU {login}"))?;
        println!("qemu-img {login}: passed");
    }
    Ok(Tally::passed(passed))
}

/// Returns how many steps passed.
fn round(kind: &Kind, chap: Option<Chap>) -> Result<usize> {
    let dir = tempfile::tempdir()?;
    let authenticated = chap.is_some();
    let spec = Spec { chap, ..Spec::new(dir.path(), SIZE_BYTES) };
    let target = Target::start(kind, &spec)?;
    let url = target.url();
    let (source, back) = (dir.path().join("source.raw"), dir.path().join("back.qcow2"));
    write_source(&source)?;
    let steps: [&[&str]; 6] = [
        &["info", "-f", "raw", &url],
        &["convert", "-n", "-f", "raw", "-O", "raw", spell(&source)?, &url],
        &["compare", "-f", "raw", "-F", "raw", spell(&source)?, &url],
        &["convert", "-f", "raw", "-O", "qcow2", &url, spell(&back)?],
        &["compare", "-f", "raw", "-F", "qcow2", &url, spell(&back)?],
        &["map", "-f", "raw", "--output=json", &url],
    ];
    for step in steps {
        command::output(Command::new("qemu-img").args(step))?;
    }
    for write in [false, true] {
        let mut bench = Command::new("qemu-img");
        bench.args(["bench", "-f", "raw", "-t", "none", "-c", "2000", "-d", "16", "-s", "4096"]);
        if write {
            bench.args(["-w", "--pattern=165", "--flush-interval=100"]);
        }
        command::output(bench.arg(&url))?;
    }
    let mut passed = steps.len() + 2;
    if authenticated {
        refuse_strangers(&url)?;
        passed += 2;
    }
    Ok(passed)
}

/// A wrong secret and no secret are both refused.
fn refuse_strangers(url: &str) -> Result<()> {
    let (_, address) = url.split_once('@').context("the URL has no user")?;
    for wrong in [format!("iscsi://db%another-secret@{address}"), format!("iscsi://{address}")] {
        let output = Command::new("qemu-img").args(["info", "-f", "raw", &wrong]).output()?;
        ensure!(!output.status.success(), "a stranger was let in by {wrong}");
    }
    Ok(())
}

/// Data, holes and zeros in turn, so that discards and write-zeroes have something to do.
fn write_source(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = Random::new(2);
    for piece in 0..SIZE_BYTES / PIECE {
        match piece % 3 {
            0 => file.write_all(&random.bytes(usize::try_from(PIECE)?))?,
            1 => file.write_all(&vec![0; usize::try_from(PIECE)?])?,
            _ => {
                use std::io::{Seek as _, SeekFrom};
                file.seek(SeekFrom::Current(i64::try_from(PIECE)?))?;
            }
        }
    }
    file.set_len(SIZE_BYTES)?;
    Ok(())
}

fn spell(path: &Path) -> Result<&str> {
    path.to_str().context("the temporary directory's name is not UTF-8")
}

const SIZE_BYTES: u64 = 64 << 20;
const PIECE: u64 = 1 << 20;
