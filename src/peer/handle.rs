//! What the resource's task holds of its link with a peer.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use replication::{
    LinkId, Packet,
    wire::{CloseReason, Frame},
};
use tokio::{
    sync::{Notify, mpsc},
    task::{JoinHandle, spawn_local},
};
use tracing::info;

use super::{
    Setup,
    connection::{Ended, Link},
    listener::Accepted,
    task::Task,
};
use crate::volume::Mailbox;

/// The resource's handle to its link with a peer. It lives on the resource's shard.
#[derive(Debug)]
pub struct Peer {
    shared: Rc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) wanted: Cell<bool>,
    pub(super) stopping: Cell<bool>,
    pub(super) changed: Notify,
    pub(super) link: RefCell<Option<Rc<Link>>>,
    /// Why the last call did not become a link, where somebody answered it.
    pub(super) trouble: RefCell<Option<String>>,
}

impl Peer {
    /// Starts the task on this shard. Nothing is dialled before [`Peer::want`].
    ///
    /// `accepted` comes from [`super::Directory::admit`]; what happens on the link goes to `mailbox`.
    #[must_use]
    pub fn start(setup: Setup, accepted: mpsc::Receiver<Accepted>, mailbox: Rc<Mailbox>) -> Self {
        let shared = Rc::new(Shared {
            wanted: Cell::new(false),
            stopping: Cell::new(false),
            changed: Notify::new(),
            link: RefCell::default(),
            trouble: RefCell::default(),
        });
        let task = Task::new(Rc::new(setup), accepted, mailbox, Rc::clone(&shared));
        Self { shared, task: spawn_local(task.run()) }
    }

    /// Whether a connection is wanted from now on. One that is there stays until it is disconnected.
    pub fn want(&self, wanted: bool) {
        if self.shared.wanted.replace(wanted) != wanted {
            self.shared.changed.notify_one();
        }
    }

    /// Queues a packet; nothing happens where the link is lost already. All that is queued until the shard turns
    /// to the link goes out with one write.
    pub fn send(&self, link: LinkId, packet: Packet) {
        if let Some(current) = &*self.shared.link.borrow()
            && current.id() == link
        {
            current.push(Frame::Packet(packet));
        }
    }

    /// Takes a link down once what is queued was sent; nothing happens where it is lost already.
    pub fn disconnect(&self, link: LinkId, reason: &str) {
        if let Some(current) = &*self.shared.link.borrow()
            && current.id() == link
        {
            info!(link = link.0, reason, "taking a link down");
            current.finish(Ended::Here(CloseReason::Disconnected));
        }
    }

    /// Whether more is queued than should be.
    #[must_use]
    pub fn congested(&self) -> bool {
        self.shared.link.borrow().as_ref().is_some_and(|link| link.congested())
    }

    /// Why this node and the peer do not come together, in words for an operator. `None` where nobody answers at all.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.borrow().clone()
    }

    /// Closes whatever is open, with a good-bye, and ends the task.
    pub async fn stop(mut self) {
        self.shared.stop();
        // The task does not panic; where it did, there is nothing left to stop.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn stop(&self) {
        self.stopping.set(true);
        self.changed.notify_one();
    }
}
