//! Makes files and devices ours.
//!
//! A new file is made under a name of its own, gets its length and its label, is made stable, and then gets its
//! name: a crash at any moment leaves it absent or whole, and what is left under the first name is taken up by the
//! next start. What exists gets its label last.

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
    DiskConfig, Metadata,
    backing::{Files, check_label, check_len, is_device, lock, open_existing},
    error::OpenError,
    layout::{HEAD_LEN, LABEL_LEN, Label, Layout},
    signature,
    steps::Zeroing,
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

/// Makes what exists ours, at an operator's word: its first bytes become the volume's data. A new file behind them,
/// or in the external place, takes the metadata; metadata that is there already is wiped, and with `force` whatever
/// else is there.
pub(super) fn adopt(config: &DiskConfig, layout: &Layout, force: bool) -> Result<(), OpenError> {
    let (data, len) = open_existing(&config.path)?;
    let Metadata::External(path) = &config.metadata else {
        let free = force || check_label(&data, &config.path, len, layout).is_ok();
        if is_device(&data, &config.path)? {
            check_len(&config.path, &data, len, layout.metadata_file_len())?;
            if !free {
                check_free(&data, &config.path, layout)?;
            }
        } else {
            // Bytes behind the data that are not ours would be lost.
            if !free || len < layout.data_len {
                check_len(&config.path, &data, len, layout.data_len)?;
            }
            let cut = data.set_len(layout.data_len).and_then(|()| data.set_len(layout.metadata_file_len()));
            cut.map_err(|source| OpenError::io(&config.path, "set the length of", source))?;
        }
        return write_metadata(&data, &config.path, layout);
    };
    check_len(&config.path, &data, len, layout.data_len)?;
    if !path.try_exists().map_err(|source| OpenError::io(path, "look at", source))? {
        return create(path, layout.metadata_file_len(), Some((0, Label::of(layout)))).map(drop);
    }
    let (metadata, len) = open_existing(path)?;
    if !force && check_label(&metadata, path, len, layout).is_err() {
        check_free(&metadata, path, layout)?;
    }
    if is_device(&metadata, path)? {
        check_len(path, &metadata, len, layout.metadata_file_len())?;
    } else {
        let cut = metadata.set_len(0).and_then(|()| metadata.set_len(layout.metadata_file_len()));
        cut.map_err(|source| OpenError::io(path, "set the length of", source))?;
    }
    write_metadata(&metadata, path, layout)
}

/// Takes the metadata away. The label goes after what it stands for, so that a crash leaves something to wipe again.
pub(super) fn wipe(config: &DiskConfig, layout: &Layout, files: &Files) -> Result<(), OpenError> {
    let (file, path) = match (&files.metadata, &config.metadata) {
        (Some(metadata), Metadata::External(path)) => (&metadata.locked, path),
        _ => (&files.data.locked, &config.path),
    };
    let io = |doing| move |source| OpenError::io(path, doing, source);
    zero(file, layout.area_at, layout.area_len)
        .and_then(|()| file.sync_all())
        .and_then(|()| zero(file, layout.label_at, LABEL_LEN as u64))
        .and_then(|()| file.sync_all())
        .map_err(io("write"))?;
    if is_device(file, path)? {
        return Ok(());
    }
    if files.metadata.is_some() {
        std::fs::remove_file(path).map_err(io("remove"))?;
        return sync_directory(path).map_err(io("make stable the directory of"));
    }
    file.set_len(layout.data_len).and_then(|()| file.sync_all()).map_err(io("set the length of"))
}

/// Fails where there are bytes in the place of the metadata, or a filesystem that reaches there: what was written
/// behind the superblocks is not looked at, it would be gigabytes.
fn check_free(file: &File, path: &Path, layout: &Layout) -> Result<(), OpenError> {
    let occupied = |what: String| OpenError::Occupied { path: path.to_owned(), at: layout.label_at, what };
    let read = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        let read = file.read_at(&mut bytes, at).map_err(|source| OpenError::io(path, "read", source))?;
        bytes.truncate(read);
        Ok(bytes)
    };
    let head = read(0, signature::LOOKED_AT)?;
    let known = signature::signature(&head);
    if let Some(len) = signature::filesystem_len(&head)
        && len > layout.label_at
    {
        return Err(occupied(format!("{} of {len} bytes", known.unwrap_or("a filesystem"))));
    }
    let place = read(layout.label_at, LABEL_LEN + usize::try_from(HEAD_LEN).expect("1 MiB fits"))?;
    if place.iter().any(|byte| *byte != 0) {
        let what = known.filter(|_| layout.label_at == 0).unwrap_or("something else");
        return Err(occupied(what.to_owned()));
    }
    Ok(())
}

/// Makes the metadata area zeros, and then writes the label.
fn write_metadata(file: &File, path: &Path, layout: &Layout) -> Result<(), OpenError> {
    zero(file, layout.area_at, layout.area_len)
        .and_then(|()| file.sync_all())
        .and_then(|()| file.write_all_at(&Label::of(layout).encode(), layout.label_at))
        .and_then(|()| file.sync_all())
        .map_err(|source| OpenError::io(path, "write", source))
}

fn zero(file: &File, from: u64, len: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, Zeroing::Range.flags(), from, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, from, len),
        done => done.map_err(io::Error::from),
    }
}

fn write_zeros(file: &File, from: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < from + len {
        let count = zeros.len().min(usize::try_from(from + len - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..count], at)?;
        at += count as u64;
    }
    Ok(())
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
