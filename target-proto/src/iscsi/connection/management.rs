//! Task management of a connection (RFC 7143 4.2.3.3 to 4.2.3.6 and 11.5): tasks end, and the answer waits for the
//! last of them to settle.

use block::VolumeNumber;

use super::super::pdu::{
    Header, ManagementAnswer, ManagementFunction, ManagementRequest, ManagementResponse, Pdu, Received,
    RejectReason,
};
use super::super::task::{State, TaskId};
use super::{Close, Connection, Effect, Host, Manage};

/// A request whose answer waits.
#[derive(Debug)]
pub(super) struct Management {
    /// Its Initiator Task Tag.
    request: u32,
    function: ManagementFunction,
    /// Aborted tasks of this session that have not settled.
    waits_for: Vec<TaskId>,
    /// What the caller's part has led to; `None` while it is not done.
    answer: Option<ManagementAnswer>,
}

impl Connection {
    /// The caller's part of a [`Manage`] is done: the SCSI side has reset, and the tasks of other sessions have settled.
    pub fn managed(&mut self, request: u32, answer: ManagementAnswer, effects: &mut Vec<Effect>) {
        let waiting =
            |management: &&mut Management| management.request == request && management.answer.is_none();
        if let Some(management) = self.management.iter_mut().find(waiting) {
            management.answer = Some(answer);
        }
        self.settle(effects);
    }

    /// Another session's reset, or PREEMPT AND ABORT, ends the tasks of this one on `volume`, or all of them. They have
    /// settled when [`Connection::aborting`] is 0. Unit attentions tell the initiator, so nothing is answered.
    pub fn abort(&mut self, volume: Option<VolumeNumber>, effects: &mut Vec<Effect>) {
        self.abort_tasks(volume, effects);
        self.run(effects);
    }

    /// Like [`Connection::abort`], but the task that asks for it goes on.
    pub fn abort_others(&mut self, volume: VolumeNumber, but: TaskId, effects: &mut Vec<Effect>) {
        for id in self.tasks.filter(|task| task.volume == Some(volume)) {
            if id != but {
                self.abort_task(id, effects);
            }
        }
        self.run(effects);
    }

    /// Takes a request whose turn has come.
    pub(super) fn manage(
        &mut self,
        header: &Header,
        request: &ManagementRequest,
        host: &dyn Host,
        effects: &mut Vec<Effect>,
    ) {
        let volume = host.volume(request.lun);
        let Some(function) = request.function else {
            self.answer(request.task, ManagementAnswer::NotSupported);
            return;
        };
        if self.management.len() >= MANAGEMENT_MAX {
            self.reject(RejectReason::TooManyImmediate, header, effects);
            return;
        }
        match function {
            ManagementFunction::TaskReassign => {
                self.answer(request.task, ManagementAnswer::NoReassignment);
            }
            ManagementFunction::ClearAca => self.answer(request.task, ManagementAnswer::NotSupported),
            ManagementFunction::TargetWarmReset | ManagementFunction::TargetColdReset => {
                let waits_for = self.abort_tasks(None, effects);
                self.wait(request, function, waits_for, None, effects);
            }
            _ if volume.is_none() => self.answer(request.task, ManagementAnswer::NoLun),
            ManagementFunction::AbortTask => self.abort_one(request, volume, effects),
            ManagementFunction::AbortTaskSet => {
                let waits_for = self.abort_tasks(volume, effects);
                self.wait(request, function, waits_for, Some(ManagementAnswer::Complete), effects);
            }
            ManagementFunction::ClearTaskSet | ManagementFunction::LogicalUnitReset => {
                let waits_for = self.abort_tasks(volume, effects);
                self.wait(request, function, waits_for, None, effects);
            }
        }
        self.run(effects);
    }

    /// ABORT TASK (RFC 7143 11.6.1): a task that has its place, one that waits for its turn, or one that never came.
    fn abort_one(
        &mut self,
        request: &ManagementRequest,
        volume: Option<VolumeNumber>,
        effects: &mut Vec<Effect>,
    ) {
        let found = self.tasks.find(request.referenced_task);
        if let Some(id) = found.filter(|id| self.tasks.get_mut(*id).is_some_and(|task| task.volume == volume))
        {
            let waits_for = self.abort_task(id, effects).into_iter().collect();
            let (function, answer) = (ManagementFunction::AbortTask, Some(ManagementAnswer::Complete));
            self.wait(request, function, waits_for, answer, effects);
            return;
        }
        let referenced = |waiting: &Received| waiting.header.task() == request.referenced_task;
        let waiting = self.window.find(referenced);
        let older = request.cmd_sn.wrapping_sub(request.ref_cmd_sn).wrapping_sub(1) < 1 << 31;
        let aborted = match waiting.first() {
            Some(cmd_sn) => self.window.abort(*cmd_sn),
            None => found.is_none() && older && self.window.abort(request.ref_cmd_sn),
        };
        let answer = if aborted { ManagementAnswer::Complete } else { ManagementAnswer::NoTask };
        self.answer(request.task, answer);
    }

    /// Aborts the tasks of a volume, or all tasks and the commands that wait for their turn. Returns those that have yet to settle.
    pub(super) fn abort_tasks(
        &mut self,
        volume: Option<VolumeNumber>,
        effects: &mut Vec<Effect>,
    ) -> Vec<TaskId> {
        if volume.is_none() {
            // Commands whose turn has not come belong to the session as well. Those of one volume have their turn
            // before a request that comes in order; an immediate one leaves them alone.
            for cmd_sn in self.window.find(|waiting| matches!(waiting.pdu, Pdu::ScsiCommand(_))) {
                self.window.abort(cmd_sn);
            }
        }
        let ids = self.tasks.filter(|task| volume.is_none() || task.volume == volume);
        ids.into_iter().filter_map(|id| self.abort_task(id, effects)).collect()
    }

    /// Aborts a task. One that is being executed has yet to settle, and is returned.
    fn abort_task(&mut self, id: TaskId, effects: &mut Vec<Effect>) -> Option<TaskId> {
        let task = self.tasks.get_mut(id)?;
        if task.state == State::Executing {
            task.aborted = true;
            effects.push(Effect::Abort(id));
            return Some(id);
        }
        if let Some(task) = self.tasks.remove(id) {
            self.unqueue(id, &task);
        }
        None
    }

    fn wait(
        &mut self,
        request: &ManagementRequest,
        function: ManagementFunction,
        waits_for: Vec<TaskId>,
        answer: Option<ManagementAnswer>,
        effects: &mut Vec<Effect>,
    ) {
        self.management.push(Management { request: request.task, function, waits_for, answer });
        if answer.is_none() {
            effects.push(Effect::Manage(Manage { request: request.task, function, lun: request.lun }));
        }
        self.settle(effects);
    }

    /// An aborted task has settled.
    pub(super) fn settled(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        for management in &mut self.management {
            management.waits_for.retain(|other| *other != id);
        }
        self.settle(effects);
    }

    /// Answers what has nothing left to wait for.
    pub(super) fn settle(&mut self, effects: &mut Vec<Effect>) {
        while let Some(at) = self
            .management
            .iter()
            .position(|management| management.waits_for.is_empty() && management.answer.is_some())
        {
            let Management { request, function, answer, .. } = self.management.remove(at);
            let answer = answer.unwrap_or(ManagementAnswer::Rejected);
            self.answer(request, answer);
            let cold = function == ManagementFunction::TargetColdReset;
            if cold && answer == ManagementAnswer::Complete && !self.closed {
                self.close(Close::ColdReset, effects);
            }
        }
        if let Some(leaving) = self.logout.filter(|_| self.tasks.count().0 == 0) {
            self.leave(leaving.request, effects);
        }
    }

    fn answer(&mut self, task: u32, answer: ManagementAnswer) {
        let numbers = self.next_numbers();
        ManagementResponse { task, answer, numbers }.write(&mut self.output);
    }
}

/// Requests of a connection whose answers wait at once.
const MANAGEMENT_MAX: usize = 16;
