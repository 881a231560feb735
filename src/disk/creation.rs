//! Makes a backing file that a crash at any moment leaves either absent or whole.
//!
//! The file is made under a name of its own, gets its length and its label, is made stable, and then gets its
//! name. What a crash leaves under the first name is taken up by the next start.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};

use super::{
    backing::{OpenError, lock},
    layout::Label,
};

/// Makes a sparse file of `len` zeros with a label at the place given. Gives it locked; `None` where another
/// process was faster.
pub(super) fn create(path: &Path, len: u64, label: Option<(u64, Label)>) -> Result<Option<File>, OpenError> {
    let unfinished = unfinished_name(path);
    let io = |doing| move |source| OpenError::io(path, doing, source);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&unfinished)
        .map_err(io("create"))?;
    lock(&file, path)?;
    if !is_at(&file, &unfinished) {
        // Another process finished it between our opening and our locking.
        return Ok(None);
    }
    file.set_len(0).and_then(|()| file.set_len(len)).map_err(io("set the length of"))?;
    if let Some((at, label)) = label {
        file.write_all_at(&label.encode(), at).map_err(io("write"))?;
    }
    file.sync_all().map_err(io("make stable"))?;
    match rename_to_new(&unfinished, path) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            std::fs::remove_file(&unfinished).map_err(io("tidy up beside"))?;
            return Ok(None);
        }
        Err(errno) => return Err(OpenError::io(path, "name", errno.into())),
    }
    sync_directory(path).map_err(io("make stable the directory of"))?;
    Ok(Some(file))
}

/// Renames, and never over something that exists. Filesystems that cannot promise that get a look before.
fn rename_to_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_ok() => Err(Errno::EXIST),
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        renamed => renamed,
    }
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

/// The name of a file that is being made: hidden, beside its place.
fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".evenkeel-unfinished");
    path.with_file_name(name)
}

fn is_at(file: &File, path: &Path) -> bool {
    let here = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(ours), Ok(there)) => here(ours) == here(there),
        _ => false,
    }
}
