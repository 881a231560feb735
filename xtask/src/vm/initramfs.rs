//! The machine's root: busybox, the initiator's programs with their libraries, and the modules they need.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use super::kernel::Package;
use crate::command;

/// Writes the archive for `package` to `archive`.
pub(super) fn build(package: &Package, archive: &Path) -> Result<()> {
    let root = tempfile::tempdir()?;
    let root = root.path();
    for dir in
        ["proc", "sys", "dev", "run/lock/iscsi", "tmp", "mnt", "var/lib/iscsi", "etc/iscsi", "modules", "bin"]
    {
        fs::create_dir_all(root.join(dir))?;
    }
    let busybox = command::find("busybox").context("busybox is missing; run `cargo xtask test packages`")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    symlink("busybox", root.join("bin/sh"))?;
    for program in PROGRAMS {
        let found = command::find(program);
        let path = found.with_context(|| format!("{program} is missing; run `cargo xtask test packages`"))?;
        copy_with_libraries(&path, root)?;
    }
    for file in ["/etc/iscsi/iscsid.conf", "/etc/mke2fs.conf"] {
        copy_in(Path::new(file), root)?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    for (number, module) in package.modules(&MODULES)?.iter().enumerate() {
        let name = module.file_name().context("a module without a name")?.to_string_lossy();
        fs::copy(module, root.join(format!("modules/{number:02}-{name}")))?;
    }
    pack(root, archive)
}

/// Writes all of `root` as an archive in the form that the kernel unpacks.
pub(super) fn pack(root: &Path, archive: &Path) -> Result<()> {
    let mut list = Command::new("find").arg(".").current_dir(root).stdout(Stdio::piped()).spawn()?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--quiet", "--owner=0:0"]).current_dir(root);
    cpio.stdin(list.stdout.take().context("find has no output")?).stdout(File::create(archive)?);
    let status = cpio.status().context("cpio is missing; run `cargo xtask test packages`")?;
    ensure!(list.wait()?.success() && status.success(), "cannot pack {}", archive.display());
    Ok(())
}

/// Copies a program under its name into `bin`, and what the dynamic linker loads for it to its own place.
fn copy_with_libraries(program: &Path, root: &Path) -> Result<()> {
    let name = program.file_name().context("a program without a name")?;
    fs::copy(program, root.join("bin").join(name))?;
    let libraries = command::output(Command::new("ldd").arg(program))?;
    for line in libraries.lines() {
        // `name => /path (address)` or `/path (address)`.
        if let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) {
            copy_in(Path::new(path), root)?;
        }
    }
    Ok(())
}

/// Copies a file, or what a link points to, to the same path below `root`.
fn copy_in(path: &Path, root: &Path) -> Result<()> {
    let to: PathBuf = root.join(path.strip_prefix("/")?);
    if !to.exists() {
        fs::create_dir_all(to.parent().context("a file has a directory")?)?;
        fs::copy(path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

/// What the guest runs besides busybox.
const PROGRAMS: [&str; 6] = ["iscsid", "iscsiadm", "mkfs.ext4", "e2fsck", "blkdiscard", "fio"];
/// What the guest's kernel loads; `ext4` and `crc32c` are built in.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_net", "sd_mod", "iscsi_tcp", "dm_multipath"];
