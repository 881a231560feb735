//! The Debian packages that the tests use, and the one command that installs them.

use std::{fs, process::Command};

use anyhow::{Result, bail};

use super::{Options, Tally};
use crate::command;

/// Checks for each program and installs what is missing when run by root.
pub(super) fn run(_options: &Options) -> Result<Tally> {
    // A package may push out another one that came from elsewhere: that one is missing then, and has a second turn.
    for _ in 0..2 {
        let missing = missing();
        if !missing.is_empty() {
            install(&missing)?;
        }
    }
    match missing().as_slice() {
        [] => Ok(Tally::passed(PACKAGES.len())),
        still => bail!("still missing after the installation: {}", still.join(" ")),
    }
}

fn install(missing: &[&str]) -> Result<()> {
    let install = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    if !is_root() || command::find("apt-get").is_none() {
        bail!("these packages are missing; install them with\n\n    sudo apt-get update && sudo {install}\n");
    }
    command::run(Command::new("apt-get").args(["update", "-q"]), "Is the network up?")?;
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "-q", "--no-install-recommends"]).args(missing);
    // A package's daemon must not start here: the tests start their own.
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    command::run(&mut apt, "Install the packages by hand, then run again.")
}

fn missing() -> Vec<&'static str> {
    let absent = |(_, path): &&(&str, &str)| {
        if path.starts_with('/') { fs::metadata(path).is_err() } else { command::find(path).is_none() }
    };
    PACKAGES.iter().filter(absent).map(|(package, _)| *package).collect()
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t0")))
}

/// A package and the program or file that proves it is there.
const PACKAGES: [(&str, &str); 15] = [
    ("tgt", "tgtadm"),
    ("libiscsi-bin", "iscsi-test-cu"),
    ("qemu-utils", "qemu-img"),
    ("qemu-block-extra", "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so"),
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("open-iscsi", "iscsiadm"),
    ("e2fsprogs", "mkfs.ext4"),
    ("util-linux", "blkdiscard"),
    ("fio", "fio"),
    ("busybox-static", "busybox"),
    ("cpio", "cpio"),
    ("iproute2", "ss"),
    ("nbdkit", "nbdkit"),
    ("libnbd-bin", "nbdfuse"),
    ("fuse3", "fusermount3"),
];
