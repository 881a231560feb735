//! A resource on its shard: the handle that front ends submit commands to, and the task behind it.

mod export;
mod reopen;
mod reservations;
mod start;
mod task;
mod waiting;

use std::rc::Rc;

use block::{Command, CommandId, VolumeNumber};
use bytes::Bytes;
use replication::Input;

pub use export::{Control, Export, Report, SessionReport};
pub use reopen::{Opened, Opener};
pub use reservations::{Reservations, SLOTS_AT, SLOTS_LEN, Store, Stored};
pub use start::{Core, Start};
pub use task::Task;
pub use waiting::{Completions, Waiting};

use crate::local::Queue;

/// What a resource's task takes in, in batches.
pub type Mailbox = Queue<Input>;

/// A way to give commands to a resource. It lives on the resource's shard.
#[derive(Clone, Debug)]
pub struct Handle {
    mailbox: Rc<Mailbox>,
    waiting: Rc<Waiting>,
    stores: Rc<Queue<Store>>,
}

impl Handle {
    /// A handle to the task that drains `mailbox` and `stores` and completes through `waiting`.
    #[must_use]
    pub const fn new(mailbox: Rc<Mailbox>, waiting: Rc<Waiting>, stores: Rc<Queue<Store>>) -> Self {
        Self { mailbox, waiting, stores }
    }

    /// Stores the persistent reservations of a volume. The outcome arrives in `completions` under `tag`, once they
    /// are stable.
    pub fn store(&self, volume: VolumeNumber, registry: Bytes, completions: &Rc<Completions>, tag: u64) {
        self.stores.push(Store { volume, registry, completions: Rc::clone(completions), tag });
    }

    /// Submits a command. Its status arrives in `completions` under `tag`, once.
    pub fn submit(
        &self,
        volume: VolumeNumber,
        command: Command,
        completions: &Rc<Completions>,
        tag: u64,
    ) -> CommandId {
        let id = self.waiting.expect(&command, completions, tag);
        self.mailbox.push(Input::Command { volume, id, command });
        id
    }

    /// Nobody waits for a command any more: its status arrives soon, whatever the command waited for. Nothing happens
    /// where the status is in `completions` already.
    pub fn abort(&self, id: CommandId, completions: &Rc<Completions>, tag: u64) {
        if self.waiting.expects(id, completions, tag) {
            self.mailbox.push(Input::Abort { id });
        }
    }

    /// Tells how many sessions use the resource now.
    pub fn sessions(&self, count: u32) {
        self.mailbox.push(Input::Sessions { count });
    }
}
