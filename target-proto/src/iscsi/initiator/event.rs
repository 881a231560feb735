//! What an initiator learns from its target.

use block::Payload;
use bytes::Bytes;
use thiserror::Error;

use super::super::connection::DiscoveredTarget;
use super::super::pdu::{AsyncEvent, DecodeError, LoginStatus, ManagementAnswer, RejectReason, Residual};

/// What has come from the target.
#[derive(Debug)]
pub enum Event {
    /// The login is done: requests may be made.
    LoggedIn {
        /// The target's part of the session identifier.
        tsih: u16,
    },
    /// A command has ended.
    Completed(Completed),
    /// The answer to SendTargets.
    Targets(Vec<DiscoveredTarget>),
    /// The answer to a ping, with its bytes.
    Pong(Bytes),
    /// The answer to a task management request.
    Managed {
        /// Initiator Task Tag of the request.
        task: u32,
        /// What became of it.
        answer: ManagementAnswer,
    },
    /// An asynchronous message.
    Async(AsyncEvent),
    /// The target rejected a PDU.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The header of that PDU.
        header: Bytes,
    },
    /// The logout is done: close.
    LoggedOut,
}

/// The end of a command.
#[derive(Debug)]
pub struct Completed {
    /// Its tag, as [`super::Initiator::command`] gave it.
    pub task: u32,
    /// The SCSI status.
    pub status: u8,
    /// The sense data.
    pub sense: Bytes,
    /// What was read.
    pub data: Payload,
    /// How much fewer or more than expected.
    pub residual: Residual,
}

/// Why the connection is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InitiatorError {
    /// The bytes are not what a target sends.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The target refused the login.
    #[error("login refused: {0}")]
    Refused(LoginStatus),
    /// The target did not prove itself.
    #[error("the target did not prove itself")]
    Unproven,
    /// The target breaks the protocol.
    #[error("the target breaks the protocol: {0}")]
    Protocol(&'static str),
}
