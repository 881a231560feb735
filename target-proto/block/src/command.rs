//! What an initiator asks of a volume, and what became of it.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::{Extent, Payload};

/// The number of a volume in its resource: the LUN in iSCSI, the NSID less one in NVMe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeNumber(pub u16);

impl fmt::Display for VolumeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one command from its submission to its completion, within one resource of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// What an initiator asks of a volume. Its extents lie inside the volume: the front ends check that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Returns the bytes: [`Status::Data`].
    Read {
        /// What to read.
        extent: Extent,
    },
    /// Stores the bytes.
    Write {
        /// Where.
        extent: Extent,
        /// The bytes, `extent.len` of them.
        data: Payload,
        /// Force unit access: stable before the command completes.
        fua: bool,
    },
    /// Makes every write that completed before it stable.
    Flush,
    /// The bytes are of no use any more and read as zeros from now on; their space is given back.
    Discard {
        /// Which bytes.
        extent: Extent,
    },
    /// The bytes become zeros.
    WriteZeroes {
        /// Which bytes.
        extent: Extent,
        /// Whether their space may be given back.
        unmap: bool,
        /// Force unit access: stable before the command completes.
        fua: bool,
    },
    /// Stores `write` where `compare` is what stands there, as one step that no other command cuts.
    CompareAndWrite {
        /// Where.
        extent: Extent,
        /// What has to stand there, `extent.len` bytes.
        compare: Bytes,
        /// What is stored then, `extent.len` bytes.
        write: Bytes,
        /// Force unit access: stable before the command completes.
        fua: bool,
    },
    /// Stores the bitwise OR of `data` and what stands there, as one step that no other command cuts.
    OrWrite {
        /// Where.
        extent: Extent,
        /// What is combined with it, `extent.len` bytes.
        data: Bytes,
        /// Force unit access: stable before the command completes.
        fua: bool,
    },
    /// Tells which bytes occupy space: [`Status::Allocation`].
    Allocation {
        /// Where to look.
        extent: Extent,
    },
}

impl Command {
    /// The bytes that the command reads or changes; `None` for a flush, which is about all of them.
    #[must_use]
    pub const fn extent(&self) -> Option<Extent> {
        match self {
            Self::Flush => None,
            Self::Read { extent }
            | Self::Write { extent, .. }
            | Self::Discard { extent }
            | Self::WriteZeroes { extent, .. }
            | Self::CompareAndWrite { extent, .. }
            | Self::OrWrite { extent, .. }
            | Self::Allocation { extent } => Some(*extent),
        }
    }

    /// Whether the command may change what the volume holds.
    #[must_use]
    pub const fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush | Self::Allocation { .. })
    }
}

/// A run of bytes that occupies space, or that does not and reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which bytes.
    pub extent: Extent,
    /// Whether they occupy space.
    pub mapped: bool,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done, with nothing to return.
    Done,
    /// What a read returned.
    Data(Payload),
    /// What [`Command::Allocation`] asked: runs in order, without gaps, from the start of its extent on. They may
    /// stop short of its end.
    Allocation(Vec<Run>),
    /// What stood there was not what [`Command::CompareAndWrite`] compared with.
    Miscompare {
        /// The first byte that differs, counted from the start of the extent.
        offset: u64,
    },
    /// Not done.
    Failed(Failure),
}

/// Why a command was not done. Whether anything of it was stored is unknown, unless the variant says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Failure {
    /// No replica could read the medium.
    #[error("the medium could not be read")]
    ReadError,
    /// No replica could write the medium.
    #[error("the medium could not be written")]
    WriteError,
    /// The backing store is full.
    #[error("no space is left in the backing store")]
    NoSpace,
    /// This node is not Primary, could not become it, or stopped being it. Another path may serve. A change that was
    /// under way when the node stepped down may be stored or not; it is not stored later, behind newer changes.
    #[error("this node may not serve the volume now")]
    Standby,
    /// No replica with up-to-date data can be reached; nothing was stored.
    #[error("no up-to-date replica can be reached")]
    NoData,
    /// The node is stopping. A change that was under way may be stored or not, as for [`Failure::Standby`].
    #[error("the node is stopping")]
    Stopping,
    /// Nobody waits for the command any more. A change that was under way may be stored or not, as for
    /// [`Failure::Standby`].
    #[error("the command was aborted")]
    Aborted,
}
