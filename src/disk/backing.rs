//! Opens one replica's file or block device: creates it where it does not exist, and never writes one that is not
//! ours. `creation` makes files, `layout` says where things are in them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use bytes::Bytes;
use replication::Superblocks;
use rustix::{
    fs::{AtFlags, FlockOperation, OFlags, StatxFlags},
    io::Errno,
};

use super::{
    DiskConfig, Found, Metadata,
    buffer::Buffer,
    creation,
    error::OpenError,
    layout::{HEAD_LEN, LABEL_LEN, Label, Layout},
};

/// The open and locked files of one replica, before a shard has them. Opening blocks, so it is done elsewhere.
#[derive(Debug)]
pub struct Backing {
    pub(super) files: Files,
    pub(super) layout: Layout,
    pub(super) config: DiskConfig,
}

/// The files of one replica.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) data: OpenFile,
    /// `None` where the metadata is internal.
    pub(super) metadata: Option<OpenFile>,
}

/// A file or device and how it can be accessed.
#[derive(Debug)]
pub(super) struct OpenFile {
    /// What reads and writes go to: opened with `O_DIRECT` where that is possible.
    pub(super) plain: File,
    /// The same with `O_DSYNC`: each write is stable when it returns. Only with `O_DIRECT`, where a failed write
    /// leaves nothing behind in the page cache.
    pub(super) through: Option<File>,
    /// What offsets and lengths are multiples of, in bytes.
    pub(super) alignment: usize,
    /// Why `O_DIRECT` is not used; `None` where it is.
    pub(super) not_direct: Option<String>,
    /// The handle that carries the lock, through the page cache.
    pub(super) locked: File,
}

impl Backing {
    /// Opens the backing, creates its files where they do not exist, and tells what is in it. Blocks; may be called
    /// on any thread.
    ///
    /// # Errors
    /// When the backing is not ours, in use, or cannot be opened. Then nothing was written.
    pub fn open(config: &DiskConfig) -> Result<(Self, Found), OpenError> {
        let layout = layout_of(config)?;
        match &config.metadata {
            Metadata::Internal => Self::open_internal(config, layout),
            Metadata::External(path) => Self::open_external(config, path, layout),
        }
    }

    fn open_internal(config: &DiskConfig, layout: Layout) -> Result<(Self, Found), OpenError> {
        let label = (layout.label_at, Label::of(&layout));
        let (file, len) = open_or_create(&config.path, layout.metadata_file_len(), Some(label))?;
        check_size(&file, &config.path, len, &layout)?;
        check_label(&file, &config.path, len, &layout)?;
        check_len(&config.path, &file, len, layout.metadata_file_len())?;
        let head = read_head(&file, &config.path, &layout)?;
        let found = found(&file, head, &layout);
        let files = Files { data: OpenFile::of(file, &config.path)?, metadata: None };
        Ok((Self { files, layout, config: config.clone() }, found))
    }

    fn open_external(config: &DiskConfig, path: &Path, layout: Layout) -> Result<(Self, Found), OpenError> {
        let data_exists = exists(&config.path)?;
        if data_exists && !exists(path)? {
            return Err(OpenError::MetadataMissing { data: config.path.clone(), metadata: path.to_owned() });
        }
        // The metadata comes first: a crash between the two leaves a label without superblocks, which the next
        // start takes up.
        let (metadata, len) =
            open_or_create(path, layout.metadata_file_len(), Some((0, Label::of(&layout))))?;
        check_label(&metadata, path, len, &layout)?;
        check_len(path, &metadata, len, layout.metadata_file_len())?;
        let head = read_head(&metadata, path, &layout)?;
        if !data_exists && head.is_some() {
            return Err(OpenError::DataMissing { data: config.path.clone(), metadata: path.to_owned() });
        }
        let (data, len) = open_or_create(&config.path, layout.data_len, None)?;
        check_len(&config.path, &data, len, layout.data_len)?;
        let found = found(&data, head, &layout);
        let files =
            Files { data: OpenFile::of(data, &config.path)?, metadata: Some(OpenFile::of(metadata, path)?) };
        Ok((Self { files, layout, config: config.clone() }, found))
    }

    /// Makes an existing file or device ours, as `evenkeel metadata create` does: its first bytes become the volume's
    /// data, and new, empty metadata is written. Blocks.
    ///
    /// # Errors
    /// When it does not exist, is in use, or, without `force`, has bytes that are neither the volume's data nor our
    /// metadata where the metadata has to be.
    pub fn create_metadata(config: &DiskConfig, force: bool) -> Result<(), OpenError> {
        creation::adopt(config, &layout_of(config)?, force)
    }

    /// As [`Self::open`], and creates nothing.
    ///
    /// # Errors
    /// As there, and when it does not exist.
    pub fn open_existing(config: &DiskConfig) -> Result<(Self, Found), OpenError> {
        config.path.metadata().map_err(|source| OpenError::io(&config.path, "look at", source))?;
        Self::open(config)
    }

    /// Takes the metadata away: a file ends after its data again, a file of its own goes. The data stays. Blocks.
    ///
    /// # Errors
    /// When it cannot be written. It can be tried again.
    pub fn wipe_metadata(self) -> Result<(), OpenError> {
        creation::wipe(&self.config, &self.layout, &self.files)
    }

    /// Reads a part of the metadata area. Blocks.
    ///
    /// # Errors
    /// When the bytes cannot be read or are not all inside the area.
    pub fn read_metadata(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let inside = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.layout.area_len);
        if !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = self.files.metadata.as_ref().unwrap_or(&self.files.data);
        file.locked.read_exact_at(bytes, self.layout.area_at + offset)
    }

    /// How long the metadata area is, in bytes.
    #[must_use]
    pub const fn metadata_len(&self) -> u64 {
        self.layout.area_len
    }
}

/// The size of the data area of a file of ours with internal metadata; `None` where there is no file.
///
/// # Errors
/// When the file is not ours, or cannot be read.
pub fn labelled_size(path: &Path) -> Result<Option<u64>, OpenError> {
    if !exists(path)? {
        return Ok(None);
    }
    let (file, len) = open_existing(path)?;
    let Some((size, layout)) = Layout::size_in(len).and_then(|size| Some((size, Layout::of(size, true)?)))
    else {
        let needed = Layout::of(len, true).map_or(u64::MAX, |layout| layout.metadata_file_len());
        return Err(OpenError::NoRoom { path: path.to_owned(), len, needed });
    };
    check_label(&file, path, len, &layout)?;
    Ok(Some(size))
}

/// Behind data of another size the label is elsewhere: such a file is ours, and metadata is not to be made for it anew.
fn check_size(file: &File, path: &Path, len: u64, layout: &Layout) -> Result<(), OpenError> {
    let size = layout.data_len;
    let was = Layout::size_in(len).filter(|was| *was != size);
    match was.and_then(|was| Some((was, Layout::of(was, true)?))) {
        Some((was, other)) if check_label(file, path, len, &other).is_ok() => {
            Err(OpenError::OtherSize { path: path.to_owned(), size, was })
        }
        _ => Ok(()),
    }
}

impl OpenFile {
    /// Opens the file again for its I/O: with `O_DIRECT` where that is possible.
    fn of(locked: File, path: &Path) -> Result<Self, OpenError> {
        let io = |doing| move |source| OpenError::io(path, doing, source);
        let not_direct = match direct_access(&locked, path).map_err(io("find out how to access"))? {
            Ok((plain, through, alignment)) => {
                return Ok(Self { plain, through: Some(through), alignment, not_direct: None, locked });
            }
            Err(reason) => reason,
        };
        let plain = locked.try_clone().map_err(io("open"))?;
        Ok(Self { plain, through: None, alignment: 1, not_direct: Some(not_direct), locked })
    }
}

impl OpenFile {
    /// The kind of filesystem, where a process or another machine has to answer for it. The kernel waits for that answer
    /// in the middle of a submission to `io_uring` (`fuse_do_getattr` before a direct read, for one): a shard would
    /// stand still with its disk.
    pub(super) fn served_by(&self) -> io::Result<Option<&'static str>> {
        let magic = rustix::fs::fstatfs(&self.locked)?.f_type;
        // A device's own node may be anywhere.
        let known = SERVED.iter().find(|(served, _)| *served == magic).map(|(_, name)| *name);
        Ok(known.filter(|_| self.locked.metadata().is_ok_and(|metadata| metadata.is_file())))
    }
}

/// The file opened with `O_DIRECT` and with `O_DIRECT | O_DSYNC`, and its alignment; or why that is not to be had.
fn direct_access(locked: &File, path: &Path) -> io::Result<Result<(File, File, usize), String>> {
    // A device's own node is on a tmpfs too, often.
    let is_file = locked.metadata()?.is_file();
    if is_file && rustix::fs::fstatfs(locked)?.f_type == TMPFS_MAGIC {
        return Ok(Err("tmpfs keeps its files in memory".to_owned()));
    }
    let plain = match reopen(locked, path, OFlags::DIRECT) {
        Ok(plain) => plain,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            return Ok(Err("its filesystem does not do O_DIRECT".to_owned()));
        }
        Err(error) => return Err(error),
    };
    match direct_alignment(&plain)? {
        Some(alignment) => {
            let through = reopen(locked, path, OFlags::DIRECT | OFlags::DSYNC)?;
            Ok(Ok((plain, through, alignment)))
        }
        None => Ok(Err("its filesystem does not do O_DIRECT".to_owned())),
    }
}

fn reopen(locked: &File, path: &Path, flags: OFlags) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let (ours, now) = (locked.metadata()?, file.metadata()?);
    if (ours.dev(), ours.ino(), ours.rdev()) != (now.dev(), now.ino(), now.rdev()) {
        return Err(io::Error::other("the file was replaced while it was being opened"));
    }
    Ok(file)
}

/// What `O_DIRECT` wants offsets and lengths to be multiples of: as the kernel says since 6.1, or as found out.
/// `None` where it does not work after all.
fn direct_alignment(direct: &File) -> io::Result<Option<usize>> {
    let statx = rustix::fs::statx(direct, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(statx) = statx
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        let (memory, offset) = (statx.stx_dio_mem_align as usize, statx.stx_dio_offset_align as usize);
        let usable = offset.is_power_of_two() && memory <= super::ALIGNMENT;
        return Ok(usable.then_some(offset));
    }
    if direct.metadata()?.file_type().is_block_device() {
        return Ok(Some(rustix::fs::ioctl_blksszget(direct)? as usize));
    }
    let mut buffer = Buffer::with_room(SECTOR);
    match rustix::io::pread(direct, buffer.room_mut(0, SECTOR), 0) {
        Ok(_) => Ok(Some(SECTOR)),
        Err(Errno::INVAL) => Ok(Some(super::ALIGNMENT)),
        Err(errno) => Err(errno.into()),
    }
}

fn layout_of(config: &DiskConfig) -> Result<Layout, OpenError> {
    let block_size = u64::from(config.block_size.bytes());
    let internal = config.metadata == Metadata::Internal;
    if config.size == 0 || !config.size.is_multiple_of(block_size) {
        return Err(OpenError::Size { size: config.size, block_size });
    }
    Layout::of(config.size, internal).ok_or(OpenError::Size { size: config.size, block_size })
}

/// Opens and locks the file or device; a file that does not exist is made. Gives its length.
fn open_or_create(path: &Path, len: u64, label: Option<(u64, Label)>) -> Result<(File, u64), OpenError> {
    if exists(path)? {
        return open_existing(path);
    }
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(OpenError::DeviceMissing { path: path.to_owned() });
    }
    match creation::create(path, len, label)? {
        Some(file) => Ok((file, len)),
        // Somebody else made it in the meantime.
        None => open_existing(path),
    }
}

pub(super) fn open_existing(path: &Path) -> Result<(File, u64), OpenError> {
    let io = |doing| move |source| OpenError::io(path, doing, source);
    let kind = path.metadata().map_err(io("look at"))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::Kind { path: path.to_owned() });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if kind.is_block_device() {
        // For a block device this means: not while it is mounted or part of something else.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut file = match options.open(path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            return Err(OpenError::Busy { path: path.to_owned() });
        }
        opened => opened.map_err(io("open"))?,
    };
    lock(&file, path)?;
    let len = file.seek(SeekFrom::End(0)).map_err(io("find the length of"))?;
    Ok((file, len))
}

/// Takes the lock that keeps a second daemon away for as long as the file is open.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::Busy { path: path.to_owned() }),
        Err(errno) => Err(OpenError::io(path, "lock", errno.into())),
    }
}

fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(|source| OpenError::io(path, "look at", source))
}

pub(super) fn check_label(file: &File, path: &Path, len: u64, layout: &Layout) -> Result<(), OpenError> {
    let foreign = |what| OpenError::Foreign { path: path.to_owned(), at: layout.label_at, what };
    if len < layout.label_at + LABEL_LEN as u64 {
        return Err(OpenError::NoRoom { path: path.to_owned(), len, needed: layout.metadata_file_len() });
    }
    let mut bytes = [0; LABEL_LEN];
    file.read_exact_at(&mut bytes, layout.label_at).map_err(|source| OpenError::io(path, "read", source))?;
    let label = Label::decode(&bytes).map_err(foreign)?;
    if label != Label::of(layout) {
        return Err(OpenError::OtherSize {
            path: path.to_owned(),
            size: layout.data_len,
            was: label.data_len,
        });
    }
    Ok(())
}

/// A file is exactly as long as it was made, or up to a whole page; a device may be longer.
pub(super) fn check_len(path: &Path, file: &File, len: u64, needed: u64) -> Result<(), OpenError> {
    let longest = if is_device(file, path)? { u64::MAX } else { needed.next_multiple_of(LABEL_LEN as u64) };
    if (needed..=longest).contains(&len) {
        Ok(())
    } else {
        Err(OpenError::Length { path: path.to_owned(), len, needed })
    }
}

pub(super) fn is_device(file: &File, path: &Path) -> Result<bool, OpenError> {
    let metadata = file.metadata().map_err(|source| OpenError::io(path, "look at", source))?;
    Ok(metadata.file_type().is_block_device())
}

/// The head of the metadata area; `None` where nothing was written there.
fn read_head(file: &File, path: &Path, layout: &Layout) -> Result<Option<Bytes>, OpenError> {
    let mut head = vec![0; usize::try_from(HEAD_LEN).expect("1 MiB fits")];
    file.read_exact_at(&mut head, layout.area_at).map_err(|source| OpenError::io(path, "read", source))?;
    Ok(head.iter().any(|byte| *byte != 0).then(|| head.into()))
}

fn found(data: &File, head: Option<Bytes>, layout: &Layout) -> Found {
    let known_zero = || {
        let is_file = data.metadata().is_ok_and(|metadata| metadata.file_type().is_file());
        is_file
            && match rustix::fs::seek(data, rustix::fs::SeekFrom::Data(0)) {
                Ok(first) => first >= layout.data_len,
                Err(errno) => errno == Errno::NXIO,
            }
    };
    match head {
        Some(head) => match Superblocks::of(&head) {
            // A file of zeros that starts anew loses nothing.
            Superblocks::FirstTorn | Superblocks::Damaged if known_zero() => Found::Fresh,
            Superblocks::FirstTorn => Found::Data,
            Superblocks::Whole | Superblocks::Damaged => Found::Superblocks(head),
        },
        None if known_zero() => Found::Fresh,
        None => Found::Data,
    }
}

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
/// Filesystems that something else than the kernel answers for (linux/magic.h, fs/smb/client/cifsglob.h).
const SERVED: [(rustix::fs::FsWord, &str); 6] = [
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
];

const SECTOR: usize = 512;
