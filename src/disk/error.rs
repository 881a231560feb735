//! Why a backing is not opened, in words that say what to do.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::layout::LabelError;

/// Why a backing was not opened. Nothing of it was written.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The size is none that a volume can have.
    #[error(
        "a volume of {size} bytes cannot be made of blocks of {block_size}; choose a multiple of it, up to 8 EiB"
    )]
    Size {
        /// The size in the configuration, in bytes.
        size: u64,
        /// The block size, in bytes.
        block_size: u64,
    },
    /// It is a directory, a character device, a socket or a pipe.
    #[error("{} is neither a file nor a block device; name one of these", path.display())]
    Kind {
        /// Which.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{} is in use: by another evenkeel, a mount or a volume manager; stop that first", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
    },
    /// Devices are not created.
    #[error("there is no device {}; is it attached, and its name right?", path.display())]
    DeviceMissing {
        /// Which.
        path: PathBuf,
    },
    /// Where our label has to be, there is something else.
    #[error(
        "{} is not written: at byte {at} there is {what}. If its first bytes are to become the volume's data, \
         run `evenkeel metadata create`; otherwise name another file",
        path.display()
    )]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Where, in bytes.
        at: u64,
        /// What is there.
        what: LabelError,
    },
    /// Where metadata is to be made, there is something that is not ours.
    #[error(
        "{} is not written: at byte {at}, where the metadata goes, there is {what}; `metadata create --force` overwrites it",
        path.display()
    )]
    Occupied {
        /// Which.
        path: PathBuf,
        /// Where, in bytes.
        at: u64,
        /// What is there.
        what: String,
    },
    /// It ends before the place of our label.
    #[error(
        "{} is not written: it has {len} bytes and carries no Evenkeel label; data and metadata need {needed}. If its \
         bytes are to become the volume's data, run `evenkeel metadata create`; otherwise name another file",
        path.display()
    )]
    NoRoom {
        /// Which.
        path: PathBuf,
        /// Its length, in bytes.
        len: u64,
        /// The length with metadata, in bytes.
        needed: u64,
    },
    /// It is ours, and its length is not what it was made with.
    #[error("{} has {len} bytes instead of {needed}; somebody cut it or wrote behind its end", path.display())]
    Length {
        /// Which.
        path: PathBuf,
        /// Its length, in bytes.
        len: u64,
        /// What it was made with, in bytes.
        needed: u64,
    },
    /// It is ours, for a volume of another size.
    #[error("{} holds a volume of {was} bytes, and the configuration says {size}; correct the size", path.display())]
    OtherSize {
        /// Which.
        path: PathBuf,
        /// The size in the configuration, in bytes.
        size: u64,
        /// The size on the label, in bytes.
        was: u64,
    },
    /// The external metadata does not exist, and the data does.
    #[error(
        "{} exists and its metadata {} does not. If its bytes are to become the volume's data, run \
         `evenkeel metadata create`; if the metadata was lost or is not attached, bring it back",
        data.display(),
        metadata.display()
    )]
    MetadataMissing {
        /// The data file.
        data: PathBuf,
        /// The metadata file.
        metadata: PathBuf,
    },
    /// The data does not exist, and its external metadata does.
    #[error(
        "{} does not exist, and {} has the metadata of what it held; bring it back, or remove the metadata too",
        data.display(),
        metadata.display()
    )]
    DataMissing {
        /// The data file.
        data: PathBuf,
        /// The metadata file.
        metadata: PathBuf,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {reason}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        reason: io::Error,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, doing: &'static str, reason: io::Error) -> Self {
        Self::Io { path: path.to_owned(), doing, reason }
    }

    /// Whether there is data, and nothing that looks like metadata of ours.
    pub(crate) const fn is_unlabelled(&self) -> bool {
        matches!(
            self,
            Self::Foreign { what: LabelError::Missing, .. }
                | Self::NoRoom { .. }
                | Self::MetadataMissing { .. }
        )
    }
}
