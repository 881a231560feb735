//! What a shard keeps of a resource beside its task: what front ends share, and what operators may ask.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

use replication::{Event, Refusal, ResourceStatus, Role, Verb};
use target_proto::scsi::{NexusId, PathState, PortGroup, Target};
use tokio::sync::oneshot;

use super::Handle;
use crate::front::sessions::Sessions;

/// A resource as its front ends see it. It lives on the resource's shard.
#[derive(Debug)]
pub struct Export {
    /// Where commands go.
    pub volume: Handle,
    /// The SCSI target.
    pub target: RefCell<Target>,
    /// The iSCSI sessions.
    pub iscsi: Rc<Sessions>,
    able: Cell<bool>,
    sessions: RefCell<BTreeMap<NexusId, SessionReport>>,
}

impl Export {
    /// An export whose paths do not serve yet.
    #[must_use]
    pub fn new(volume: Handle, target: Target) -> Self {
        Self {
            volume,
            target: RefCell::new(target),
            iscsi: Rc::default(),
            able: Cell::new(false),
            sessions: RefCell::new(BTreeMap::new()),
        }
    }

    /// A session has begun.
    pub fn opened(&self, nexus: NexusId, session: SessionReport) {
        self.sessions.borrow_mut().insert(nexus, session);
        self.count_sessions();
    }

    /// A session has ended: none of its commands is with the resource any more.
    pub fn closed(&self, nexus: NexusId) {
        self.sessions.borrow_mut().remove(&nexus);
        self.count_sessions();
    }

    /// Who is logged in.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionReport> {
        self.sessions.borrow().values().cloned().collect()
    }

    fn count_sessions(&self) {
        let count = self.sessions.borrow().len();
        self.volume.sessions(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Whether this node serves the resource, or would after a promotion.
    #[must_use]
    pub const fn serves(&self) -> bool {
        self.able.get()
    }

    /// Reports the states of paths, as far as the event changes them.
    pub(super) fn changed(&self, event: &Event) {
        // Initiators learn of a unit attention by their next command.
        let mut attentions = Vec::new();
        let mut target = self.target.borrow_mut();
        match event {
            Event::Serves { able } => {
                self.able.set(*able);
                let path = if *able { PathState::ActiveOptimized } else { PathState::Standby };
                target.set_path(path, &mut attentions);
            }
            Event::PeerRole { peer, role } => {
                let path = match role {
                    Role::Primary => PathState::ActiveOptimized,
                    Role::Secondary => PathState::Standby,
                    Role::Unknown => PathState::Unavailable,
                };
                let group = PortGroup(crate::daemon::portal_group(*peer));
                target.set_peer_path(group, path, &mut attentions);
            }
            _ => {}
        }
    }
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
    /// Finish what is in flight and end. Answered once the disks are closed.
    Stop {
        /// Where the answer goes.
        reply: oneshot::Sender<()>,
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
