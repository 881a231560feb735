//! A command of an initiator, from its arrival to its answer.

use block::{Command, CommandId, Extent, Failure, Payload, Status, VolumeNumber};
use bytes::Bytes;

use crate::{
    DiskState, Effect, Instant, NodeSet, Resource, Role,
    job::Activity,
    range_lock::{Access, Ticket},
    resource::Granted,
    sabotage::{Fault, planted},
};

/// A command that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) volume: usize,
    pub(crate) id: CommandId,
    pub(crate) command: Command,
    ticket: Option<Ticket>,
    /// What it holds of the activity log.
    pub(crate) activity: Activity,
    pub(crate) state: State,
    /// The read that it waits for.
    pub(crate) read: u64,
    /// When that read was asked for.
    pub(crate) asked: Instant,
    /// The replicas that failed to read for it; this node's own stands for the local disk.
    pub(crate) failed: NodeSet,
    /// What a command that reads before it writes is going to write.
    pub(crate) computed: Option<Payload>,
    /// Whether it was answered before its end, because nobody waits for it.
    pub(crate) answered: bool,
}

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Earlier commands on the same bytes.
    Locked,
    /// The activity log.
    Activating,
    /// Quorum, data, or room in the log.
    Held,
    /// The local disk's or a peer's answer.
    Reading,
    /// The replicas.
    Changing(usize),
}

impl Resource {
    /// A command arrives.
    pub(crate) fn command(&mut self, volume: VolumeNumber, id: CommandId, command: Command) {
        if self.stopping.is_some() {
            return self.complete(id, Status::Failed(Failure::Stopping));
        }
        if self.role != Role::Primary {
            return self.early_command(volume, id, command);
        }
        self.admit(volume, id, command);
    }

    /// A command of an initiator reaches the Primary.
    pub(crate) fn admit(&mut self, number: VolumeNumber, id: CommandId, command: Command) {
        let Some(volume) = self.volume_at(number) else {
            return self.complete(id, Status::Failed(Failure::NoData));
        };
        if self.demotion.is_some() {
            return self.complete(id, Status::Failed(Failure::Standby));
        }
        let extent = command.extent();
        if extent.is_some_and(|extent| extent.is_empty() || !self.volumes[volume].holds(extent)) {
            return self.complete(id, empty_or_outside(extent, &command));
        }
        let torn = matches!(command, Command::CompareAndWrite { .. }) && planted(Fault::TornCompare);
        let access = if command.changes() && !torn { Access::Exclusive } else { Access::Shared };
        let key = self.tasks.insert(Task {
            volume,
            id,
            command,
            ticket: None,
            activity: Activity::Cold,
            state: State::Locked,
            read: 0,
            asked: self.now,
            failed: NodeSet::EMPTY,
            computed: None,
            answered: false,
        });
        let mut free = true;
        if let Some(extent) = extent {
            let (ticket, granted) = self.volumes[volume].commands.acquire(extent, access, key);
            self.tasks[key].ticket = Some(ticket);
            free = granted;
        }
        if free {
            self.granted.push_back(Granted::Task(key));
        }
    }

    /// Goes on with a command that nothing on the same bytes is in the way of.
    pub(crate) fn run(&mut self, key: usize) {
        let Some(task) = self.tasks.get(key) else { return };
        let volume = task.volume;
        if !self.volumes[volume].quorum
            || !self.has_data(volume)
            || task.command.changes() && self.log_is_full()
        {
            self.let_extents_go(key);
            self.hold(key);
            return;
        }
        match &task.command {
            Command::Read { extent } | Command::Allocation { extent } => {
                let extent = *extent;
                self.read(key, extent);
            }
            Command::CompareAndWrite { extent, .. } | Command::OrWrite { extent, .. }
                if task.computed.is_none() =>
            {
                let extent = *extent;
                self.read(key, extent);
            }
            _ => {
                if self.activate(key) {
                    self.change(key);
                } else {
                    self.tasks[key].state = State::Activating;
                }
            }
        }
    }

    /// Holds the extents that a command changes. Whether it may change them now; else it is run again once it may.
    fn activate(&mut self, key: usize) -> bool {
        let task = &self.tasks[key];
        let volume = task.volume;
        match task.activity {
            Activity::Cold => {}
            Activity::Waiting(_) => return false,
            Activity::Hot(_) => return true,
        }
        let Some(extent) = task.command.extent().filter(|_| task.command.changes()) else { return true };
        if self.volumes[volume].books.log.is_none() {
            return true;
        }
        let hot = self.hold_extents(volume, extent, Granted::Task(key));
        self.tasks[key].activity = if hot { Activity::Hot(extent) } else { Activity::Waiting(extent) };
        hot
    }

    /// A command does not need the extents that it changes any more, or not yet.
    fn let_extents_go(&mut self, key: usize) {
        let task = &mut self.tasks[key];
        let volume = task.volume;
        match std::mem::take(&mut task.activity) {
            Activity::Cold => {}
            Activity::Waiting(_) => self.cancel_extents(volume, Granted::Task(key)),
            Activity::Hot(extent) => self.release_extents(volume, extent),
        }
    }

    /// The change of a command takes over what the command holds of the activity log.
    pub(crate) fn take_extents(&mut self, key: usize) -> Option<Extent> {
        match std::mem::take(&mut self.tasks[key].activity) {
            Activity::Hot(extent) => Some(extent),
            Activity::Cold | Activity::Waiting(_) => None,
        }
    }

    /// Lets a command wait. The replicas that could not read for it may be good ones again when it goes on.
    pub(crate) fn hold(&mut self, key: usize) {
        if self.tasks[key].answered {
            return self.finish(key, Status::Failed(Failure::Aborted));
        }
        let task = &mut self.tasks[key];
        task.state = State::Held;
        task.failed = NodeSet::EMPTY;
        self.held.push_back(key);
    }

    /// Nobody waits for a command any more. What was sent goes on, and keeps others from its bytes until it is everywhere
    /// (P3, P14).
    pub(crate) fn abort(&mut self, id: CommandId) {
        if let Some(at) = self.early.iter().position(|(_, early, _)| *early == id) {
            self.early.remove(at);
            return self.complete(id, Status::Failed(Failure::Aborted));
        }
        let mut tasks = self.tasks.iter();
        let Some((key, task)) = tasks.find(|(_, task)| task.id == id && !task.answered) else { return };
        if matches!(task.state, State::Changing(_)) {
            self.tasks[key].answered = true;
            self.complete(id, Status::Failed(Failure::Aborted));
        } else {
            self.held.retain(|held| *held != key);
            self.finish(key, Status::Failed(Failure::Aborted));
        }
    }

    /// Tries the held commands again, in order.
    pub(crate) fn run_held(&mut self) {
        for _ in 0..self.held.len() {
            let Some(key) = self.held.pop_front() else { break };
            if self.tasks.get(key).is_some_and(|task| task.state == State::Held) {
                self.run(key);
            }
        }
    }

    /// Whether a good replica of the volume can be reached.
    pub(crate) fn has_data(&self, volume: usize) -> bool {
        self.volumes[volume].state == DiskState::UpToDate || self.has_good_peer(volume)
    }

    /// A read for a command has its bytes.
    pub(crate) fn read_done(&mut self, key: usize, data: Payload) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        match &task.command {
            Command::CompareAndWrite { compare, write, .. } => {
                let found = data.to_bytes();
                if let Some(offset) = found.iter().zip(compare).position(|(found, wanted)| found != wanted) {
                    return self.finish(key, Status::Miscompare { offset: offset as u64 });
                }
                task.computed = Some(write.clone().into());
                self.granted.push_back(Granted::Task(key));
            }
            Command::OrWrite { data: mask, .. } => {
                let found = data.to_bytes();
                let ored: Bytes = found.iter().zip(mask).map(|(found, mask)| found | mask).collect();
                task.computed = Some(ored.into());
                self.granted.push_back(Granted::Task(key));
            }
            _ => self.finish(key, Status::Data(data)),
        }
    }

    /// Answers a command and lets the next ones on its bytes go on.
    pub(crate) fn finish(&mut self, key: usize, status: Status) {
        self.let_extents_go(key);
        let task = self.tasks.remove(key);
        if let Some(ticket) = task.ticket {
            let granted = &mut self.granted;
            self.volumes[task.volume].commands.release(ticket, |next| granted.push_back(Granted::Task(next)));
        }
        if !task.answered {
            self.complete(task.id, status);
        }
        if self.tasks.is_empty() {
            self.changed |= self.demotion.is_some() || self.stopping.is_some() || self.sessions == 0;
        }
    }

    pub(crate) fn complete(&mut self, id: CommandId, status: Status) {
        self.out.push(Effect::Complete { id, status });
    }

    /// Answers every command that is not answered: the node may not serve them any more. Changes that were sent go
    /// on to their replicas, in their order.
    pub(crate) fn fail_tasks(&mut self, failure: Failure) {
        let keys: Vec<usize> = self.tasks.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let State::Changing(change) = self.tasks[key].state {
                self.changes[change].task = None;
            }
            self.finish(key, Status::Failed(failure));
        }
        self.held.clear();
    }
}

/// The answer to a command about no bytes, or about bytes that the front end should have refused.
fn empty_or_outside(extent: Option<Extent>, command: &Command) -> Status {
    match (extent, command) {
        (Some(extent), Command::Read { .. }) if extent.is_empty() => Status::Data(Payload::new()),
        (Some(extent), Command::Allocation { .. }) if extent.is_empty() => Status::Allocation(Vec::new()),
        (Some(extent), _) if extent.is_empty() => Status::Done,
        (_, Command::Read { .. } | Command::Allocation { .. }) => Status::Failed(Failure::ReadError),
        _ => Status::Failed(Failure::WriteError),
    }
}
