//! SCSI commands of a connection: from the command to its execution, and back to the initiator (RFC 7143 11.3, 11.4,
//! 11.7, 11.8).

use block::Payload;
use bytes::Bytes;

use super::super::pdu::{
    DataIn, DataInStatus, DataOut, Header, NO_TAG, ReadyToTransfer, RejectReason, Residual, ScsiCommand,
    ScsiResponse,
};
use super::super::task::{DataFailure, State, Task, TaskId};
use super::{Connection, Effect, Execute, Host, IMMEDIATE_MAX, MEMORY_MAX, TaskAttribute};
use crate::scsi::Response;

impl Connection {
    /// The outcome of a task that was handed out.
    ///
    /// # Panics
    /// When the task was not handed out, or was completed before.
    pub fn complete(&mut self, task: TaskId, response: &Response, effects: &mut Vec<Effect>) {
        let task_id = task;
        let task = self.tasks.remove(task).expect("the caller completes each task once");
        assert_eq!(task.state, State::Executing, "the caller completes what it was handed");
        self.stop(&task);
        if task.aborted {
            self.settled(task_id, effects);
        } else {
            self.respond(&task, response);
        }
        self.run(effects);
    }

    /// Takes a command whose turn has come.
    pub(super) fn command(
        &mut self,
        header: &Header,
        command: ScsiCommand,
        host: &dyn Host,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(reason) = self.violation(&command) {
            self.reject(reason, header, effects);
            return;
        }
        let transfer = host.transfer(command.lun, &command.cdb);
        let task = Task::new(&command, host.volume(command.lun), transfer, &self.parameters);
        let first = task.attribute == TaskAttribute::HeadOfQueue;
        let Some(id) = self.tasks.insert(task) else {
            // The window keeps a place for each command in it.
            self.reject(RejectReason::TooManyImmediate, header, effects);
            return;
        };
        if let Some(task) = self.tasks.get_mut(id) {
            task.collection.immediate(command.data);
        }
        if first {
            self.queue.push_front(id);
        } else {
            self.queue.push_back(id);
        }
        self.run(effects);
    }

    /// What a command does that it may not (RFC 7143 11.3).
    fn violation(&self, command: &ScsiCommand) -> Option<RejectReason> {
        let data_len = u32::try_from(command.data.len()).unwrap_or(u32::MAX);
        let unsolicited_max = self.parameters.unsolicited_max().min(command.expected_len);
        let writes = command.direction.writes();
        let too_many = command.immediate && self.tasks.count().1 >= IMMEDIATE_MAX;
        let unasked = data_len > 0 && !(writes && self.parameters.immediate_data);
        let too_long = data_len > unsolicited_max;
        let more_unasked = writes && !command.last && self.parameters.initial_r2t;
        [
            (command.task == NO_TAG, RejectReason::InvalidField),
            (self.tasks.find(command.task).is_some(), RejectReason::TaskInProgress),
            (too_many, RejectReason::TooManyImmediate),
            (unasked || too_long || more_unasked, RejectReason::Protocol),
        ]
        .into_iter()
        .find_map(|(violated, reason)| violated.then_some(reason))
    }

    /// Takes data for a task.
    pub(super) fn data_out(&mut self, header: &Header, pdu: &DataOut, effects: &mut Vec<Effect>) {
        // Data for a task that is gone is on its way after an abort (RFC 7143 11.5.1): nothing is wrong with it.
        let Some(id) = self.tasks.find(pdu.task) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        if task.state == State::Executing {
            self.reject(RejectReason::Protocol, header, effects);
            return;
        }
        if let Err((reason, _)) = task.collection.receive(pdu) {
            self.reject(reason, header, effects);
        }
        self.advance(id, effects);
    }

    /// A Data-Out whose data was damaged: its task fails once the rest is here (RFC 7143 7.8).
    pub(super) fn data_out_lost(&mut self, header: &Header, effects: &mut Vec<Effect>) {
        let Ok(pdu) = DataOut::read(header, Bytes::new()) else { return };
        let Some(id) = self.tasks.find(pdu.task) else { return };
        if let Some(task) = self.tasks.get_mut(id).filter(|task| task.state != State::Executing) {
            task.collection.fail(DataFailure::Digest, pdu.transfer, pdu.last);
            self.advance(id, effects);
        }
    }

    /// Starts queued tasks in order, as far as the ordered ones and the memory allow.
    pub(super) fn run(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&id) = self.queue.front().filter(|_| !self.closed) {
            let Some(task) = self.tasks.get_mut(id) else {
                self.queue.pop_front();
                continue;
            };
            let ordered = task.attribute == TaskAttribute::Ordered;
            let first = task.attribute == TaskAttribute::HeadOfQueue;
            let alone = self.running.count == 0;
            let in_turn = first || alone || !(ordered || self.running.ordered);
            if !in_turn || !alone && self.running.memory + task.cost() > MEMORY_MAX {
                return;
            }
            task.state = State::Collecting;
            self.running.count += 1;
            self.running.memory += task.cost();
            self.running.ordered |= ordered;
            self.queue.pop_front();
            self.advance(id, effects);
        }
    }

    /// Does the next thing for a task: ask for data, hand it out, or fail it.
    fn advance(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if let Some(failure) = task.collection.failure() {
            if task.collection.is_complete() {
                self.fail(id, failure, effects);
            }
            return;
        }
        if task.state != State::Collecting {
            return;
        }
        if task.collection.is_complete() {
            task.state = State::Executing;
            effects.push(Effect::Execute(Execute {
                task: id,
                lun: task.lun,
                cdb: task.cdb,
                data_out: task.collection.take_data(),
                data_out_expected: if task.direction.writes() { task.expected_len } else { 0 },
            }));
            return;
        }
        self.solicit(id);
    }

    /// Asks for data with as many R2Ts as were agreed on.
    fn solicit(&mut self, id: TaskId) {
        let (r2t_max, burst_max) = (self.parameters.r2t_max, self.parameters.burst_max);
        loop {
            let transfer = self.new_transfer();
            let numbers = self.numbers();
            let Some(task) = self.tasks.get_mut(id) else { return };
            let Some(ask) = task.collection.ask(transfer, r2t_max, burst_max) else { return };
            let r2t_sn = task.r2t_sn;
            task.r2t_sn += 1;
            let (lun, task) = (task.lun, task.tag);
            ReadyToTransfer { lun, task, transfer, numbers, r2t_sn, offset: ask.offset, len: ask.len }
                .write(&mut self.output);
        }
    }

    /// Ends a task whose data went wrong.
    fn fail(&mut self, id: TaskId, failure: DataFailure, effects: &mut Vec<Effect>) {
        let Some(task) = self.tasks.remove(id) else { return };
        self.unqueue(id, &task);
        let numbers = self.next_numbers();
        ScsiResponse {
            task: task.tag,
            response: 0,
            status: CHECK_CONDITION,
            numbers,
            exp_data_sn: task.r2t_sn,
            residual: Residual::of(task.expected_len, 0),
            sense: failure.sense(),
        }
        .write(&mut self.output);
        self.run(effects);
    }

    /// Takes a removed task out of the queue or of what runs.
    pub(super) fn unqueue(&mut self, id: TaskId, task: &Task) {
        if task.state == State::Queued {
            self.queue.retain(|queued| *queued != id);
        } else {
            self.stop(task);
        }
    }

    fn stop(&mut self, task: &Task) {
        self.running.count -= 1;
        self.running.memory -= task.cost();
        if task.attribute == TaskAttribute::Ordered {
            self.running.ordered = false;
        }
    }

    /// Sends data and status of a task.
    fn respond(&mut self, task: &Task, response: &Response) {
        let expected_read_len = if task.direction.reads() { task.expected_read_len } else { 0 };
        let data_len = response.data_in.len();
        let residual = if task.direction.writes() && data_len == 0 {
            Residual::of(task.expected_len, u64::from(task.transfer.data_out))
        } else if task.direction.reads() {
            Residual::of(expected_read_len, data_len as u64)
        } else {
            Residual::of(
                task.expected_len.min(expected_read_len),
                u64::from(task.transfer.data_out).max(data_len as u64),
            )
        };
        let sense = response.sense_bytes();
        let sent = data_len.min(expected_read_len as usize);
        let status = response.status as u8;
        let mut exp_data_sn = task.r2t_sn;
        if sent > 0 {
            let in_last = sense.is_empty().then_some((status, residual));
            exp_data_sn = self.send_data(task, &response.data_in, sent, in_last);
            if in_last.is_some() {
                return;
            }
        }
        let numbers = self.next_numbers();
        ScsiResponse { task: task.tag, response: 0, status, numbers, exp_data_sn, residual, sense }
            .write(&mut self.output);
    }

    /// Sends the first `len` bytes of `data`, cut as the initiator wants it, the status in the last PDU if there is
    /// one. Returns how many PDUs it took.
    fn send_data(&mut self, task: &Task, data: &Payload, len: usize, status: Option<(u8, Residual)>) -> u32 {
        let segment_max = self.parameters.peer_data_segment_max as usize;
        let burst_max = self.parameters.burst_max as usize;
        let (mut offset, mut data_sn) = (0, 0);
        while offset < len {
            let burst_left = burst_max - offset % burst_max;
            let here = segment_max.min(burst_left).min(len - offset);
            let end = offset + here;
            let status = status.filter(|_| end == len);
            let numbers = if status.is_some() { self.next_numbers() } else { self.numbers() };
            DataIn {
                last: end == len || here == burst_left,
                status: status.map(|(status, residual)| DataInStatus {
                    status,
                    stat_sn: numbers.stat_sn,
                    residual,
                }),
                lun: 0,
                task: task.tag,
                exp_cmd_sn: numbers.exp_cmd_sn,
                max_cmd_sn: numbers.max_cmd_sn,
                data_sn,
                offset: u32::try_from(offset).unwrap_or(u32::MAX),
                data: if here == data.len() { data.clone() } else { data.slice(offset, here) },
            }
            .write(&mut self.output);
            offset = end;
            data_sn += 1;
        }
        data_sn
    }
}

const CHECK_CONDITION: u8 = 0x02;
