//! What a shard keeps of a resource beside its task: what front ends share, and what operators may ask.

use replication::{Refusal, ResourceStatus, Verb};
use tokio::sync::oneshot;

use super::Handle;

/// A resource as its front ends see it. It lives on the resource's shard.
#[derive(Debug)]
pub struct Export {
    /// Where commands go.
    pub volume: Handle,
}

/// What the control side asks of a resource's task.
#[derive(Debug)]
pub enum Control {
    /// Do something. Answered once it is true.
    Operate {
        /// What.
        verb: Verb,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// Give a picture.
    Report {
        /// Where it goes.
        reply: oneshot::Sender<Report>,
    },
}

/// A picture of a resource and of who uses it.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the core says.
    pub status: ResourceStatus,
    /// Who is logged in.
    pub sessions: Vec<SessionReport>,
}

/// One session of an initiator or controller of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The initiator's IQN or the host's NQN.
    pub initiator: String,
    /// `iscsi` or `nvme-tcp`.
    pub transport: &'static str,
    /// Where it comes from.
    pub address: String,
}
