//! A command as it comes, and what it needs next: nothing more, or work of somebody else.

use block::{Command, Payload, VolumeNumber};
use bytes::Bytes;

use super::work::Work;
use super::{NexusId, Response, SenseFormat};

/// How many bytes a CDB moves, before anything is known of the initiator's buffers. Both are 0 where the CDB is
/// going to be refused for what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// At most this many to the initiator, in bytes.
    pub data_in: u32,
    /// Exactly this many from the initiator, in bytes.
    pub data_out: u32,
}

/// A command that an initiator sent.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Who sent it.
    pub nexus: NexusId,
    /// The LUN field as it stands in the PDU.
    pub lun: u64,
    /// The CDB. One of fewer than 16 bytes is padded to 16.
    pub cdb: &'a [u8],
    /// What the initiator sent of the [`Transfer::data_out`] that the CDB says it moves: less where it said that it
    /// would send less, never more.
    pub data_out: Payload,
    /// How many bytes the initiator said that it would send, whatever the CDB says (iSCSI's Expected Data Transfer
    /// Length of a write). Some commands fail when it is not what the CDB says.
    pub data_out_expected: u32,
}

/// What comes next for a command.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// It has ended.
    Done(Response),
    /// The volume executes `command`; its [`block::Status`] goes to [`super::Target::resume`].
    Submit {
        /// Whose command it is.
        volume: VolumeNumber,
        /// What to do.
        command: Command,
        /// What resumes with the outcome.
        then: Continuation,
    },
    /// The registry of the volume is stored, to be handed to [`super::Target::restore`] after a restart. It resumes
    /// with [`block::Status::Done`] once it is stable.
    Persist {
        /// Whose reservations they are.
        volume: VolumeNumber,
        /// The reservations.
        registry: Bytes,
        /// What resumes with the outcome.
        then: Continuation,
    },
    /// The other tasks that these nexuses have on the volume are aborted (PREEMPT AND ABORT). It resumes with
    /// [`block::Status::Done`] once none of them can change the medium any more.
    Abort {
        /// Whose tasks they are.
        volume: VolumeNumber,
        /// The nexuses that lose their tasks, except for the one that asks for it.
        nexuses: Vec<NexusId>,
        /// What resumes with the outcome.
        then: Continuation,
    },
}

/// What others may want to know of a change, in the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEffect {
    /// A unit attention waits for this nexus: an asynchronous message may tell it.
    Attention {
        /// Whom it waits for.
        nexus: NexusId,
        /// On which volume.
        volume: VolumeNumber,
    },
}

/// The rest of a command, between a [`Step`] and its outcome. It is bound to the target that made it.
#[derive(Debug)]
pub struct Continuation {
    pub(super) volume: VolumeNumber,
    pub(super) format: SenseFormat,
    pub(super) work: Work,
}
