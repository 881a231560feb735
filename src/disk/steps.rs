//! The steps that disk operations are made of, which an engine takes, and why they fail.

use block::Extent;
use replication::DiskError;
use rustix::{fs::FallocateFlags, io::Errno};

use super::buffer::Buffer;

/// Takes the steps: positioned I/O on one backing. Each call is one system call or its like in a ring, and may do
/// less than asked.
pub(super) trait Steps {
    /// Reads into the buffer's bytes `from..to` from byte `at` of the file on.
    async fn read(&self, file: Place, span: Span) -> (Result<usize, Errno>, Buffer);

    /// Writes the buffer's bytes `from..to` to byte `at` of the file; where `stable`, they are when it returns.
    async fn write(&self, file: Place, span: Span, stable: bool) -> (Result<usize, Errno>, Buffer);

    /// Makes what was written to the file stable.
    async fn sync(&self, file: Place) -> Result<(), Errno>;

    /// Makes bytes of the data file zeros without writing them.
    async fn zero(&self, how: Zeroing, extent: Extent) -> Result<(), Errno>;
}

/// The file that a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The one with the data area.
    Data,
    /// The one with the metadata area; the same where that is internal.
    Metadata,
}

/// A part of a buffer and where it goes or comes from.
#[derive(Debug)]
pub(super) struct Span {
    /// The memory. It belongs to the step until it returns.
    pub(super) buffer: Buffer,
    /// The first byte of the buffer.
    pub(super) from: usize,
    /// The byte of the buffer behind the last.
    pub(super) to: usize,
    /// The first byte of the file.
    pub(super) at: u64,
}

/// How bytes become zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroing {
    /// Their space is given back, and they read as zeros for certain.
    Punch,
    /// They keep their space or get some.
    Range,
}

impl Zeroing {
    /// The flags of fallocate(2). On a block device they are requests to write zeros, with and without giving the
    /// space back; a plain discard would not promise zeros.
    pub(super) fn flags(self) -> FallocateFlags {
        match self {
            Self::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Self::Range => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        }
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: DiskError,
    /// Whether bytes may be lost that were reported as written: the kernel tells that once, and forgets.
    pub(super) lost: bool,
}

impl Failure {
    /// A failure that leaves what was written before alone.
    pub(super) fn of(errno: Errno) -> Self {
        Self { error: error_of(errno), lost: false }
    }

    /// A failure to make bytes stable. The kernel reports it once and then takes the bytes for clean, so a later
    /// success would mean nothing.
    pub(super) fn lost(errno: Errno) -> Self {
        Self { error: error_of(errno), lost: true }
    }
}

/// What the core is told of a system's error.
pub(super) fn error_of(errno: Errno) -> DiskError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => DiskError::NoSpace,
        errno => DiskError::Io { errno: errno.raw_os_error() },
    }
}
