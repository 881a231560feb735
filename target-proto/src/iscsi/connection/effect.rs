//! What a connection asks of its caller, and what it wants done.

use block::{Payload, VolumeNumber};
use thiserror::Error;

use super::super::pdu::{DecodeError, Header, ManagementFunction, RejectReason};
use super::super::task::TaskId;
use crate::scsi::Transfer;

/// What a connection asks while it takes PDUs.
pub trait Host {
    /// What a CDB says that it moves.
    fn transfer(&self, lun: u64, cdb: &[u8; 16]) -> Transfer;

    /// The volume that a LUN field names.
    fn volume(&self, lun: u64) -> Option<VolumeNumber>;

    /// The targets that an initiator may use (SendTargets).
    fn targets(&self, initiator: &str) -> Vec<DiscoveredTarget>;
}

/// A target as discovery tells of it (RFC 7143 appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its iSCSI name.
    pub name: String,
    /// Its portals on all nodes: address with port, and portal group tag.
    pub portals: Vec<(String, u16)>,
}

/// What the caller has to do.
#[derive(Debug)]
pub enum Effect {
    /// Execute a task, whose data is whole. Its outcome goes to [`super::Connection::complete`].
    Execute(Execute),
    /// A task that is being executed was aborted: what is not submitted yet need not be. It is completed all the same.
    Abort(TaskId),
    /// A reset or CLEAR TASK SET, which concerns other sessions too. Its outcome goes to [`super::Connection::managed`] when
    /// their tasks have settled. The tasks of this session have been aborted.
    Manage(Manage),
    /// A PDU was rejected: for the log.
    Rejected(RejectReason, Header),
    /// Nothing more is received. Close when the output is sent.
    Close(Close),
}

/// A task to execute.
#[derive(Debug)]
pub struct Execute {
    /// Its name until it is completed.
    pub task: TaskId,
    /// The LUN field.
    pub lun: u64,
    /// The CDB.
    pub cdb: [u8; 16],
    /// The data of a write: as much of what the CDB moves as the initiator has.
    pub data_out: Payload,
    /// How many bytes the initiator said that it would send.
    pub data_out_expected: u32,
}

/// A task management request that the caller carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manage {
    /// Its Initiator Task Tag, which names it until it is done.
    pub request: u32,
    /// One of CLEAR TASK SET, LOGICAL UNIT RESET, TARGET WARM RESET, TARGET COLD RESET.
    pub function: ManagementFunction,
    /// The LUN field.
    pub lun: u64,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Close {
    /// The initiator logged out.
    #[error("logout")]
    Logout,
    /// The bytes are of no use any more.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The initiator does not answer a ping.
    #[error("no answer to a ping")]
    NoAnswer,
    /// A discovery session said nothing for long.
    #[error("idle discovery session")]
    Idle,
    /// TARGET COLD RESET ends every session.
    #[error("target cold reset")]
    ColdReset,
}
