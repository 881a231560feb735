//! One task: the data it collects before it can be executed (RFC 7143 4.2.5, 11.7, 11.8), and the table of all tasks.

use std::collections::VecDeque;

use block::{Payload, VolumeNumber};
use bytes::{Bytes, BytesMut};

use super::keys::Parameters;
use super::pdu::{DataOut, Direction, NO_TAG, RejectReason, ScsiCommand, TaskAttribute};
use crate::scsi::Transfer;

/// Names a task of a connection from its execution to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u16);

/// A task in the table.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) tag: u32,
    pub(super) lun: u64,
    pub(super) volume: Option<VolumeNumber>,
    pub(super) cdb: [u8; 16],
    pub(super) attribute: TaskAttribute,
    pub(super) immediate: bool,
    pub(super) direction: Direction,
    /// Expected Data Transfer Length of the one direction, and of the read where there are two, in bytes.
    pub(super) expected_len: u32,
    pub(super) expected_read_len: u32,
    pub(super) transfer: Transfer,
    pub(super) state: State,
    /// An initiator or a session's end has aborted it: its outcome is not told.
    pub(super) aborted: bool,
    pub(super) collection: Collection,
    /// R2TSN of the next R2T.
    pub(super) r2t_sn: u32,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the queue: other tasks or memory stand before it.
    Queued,
    /// Its data is coming.
    Collecting,
    /// It was handed out.
    Executing,
}

/// Why a task fails before it is executed (RFC 7143 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataFailure {
    /// Unexpected unsolicited data, or data out of its place.
    Unexpected,
    /// Not as much data as announced.
    Amount,
    /// A data digest did not match.
    Digest,
}

impl DataFailure {
    /// Fixed format sense data: ABORTED COMMAND with the additional code of the condition.
    pub(super) fn sense(self) -> Bytes {
        let (code, qualifier) = match self {
            Self::Unexpected => (0x0c, 0x0c),
            Self::Amount => (0x0c, 0x0d),
            Self::Digest => (0x47, 0x05),
        };
        Bytes::copy_from_slice(&[0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0])
    }
}

impl Task {
    pub(super) fn new(
        command: &ScsiCommand,
        volume: Option<VolumeNumber>,
        transfer: Transfer,
        parameters: &Parameters,
    ) -> Self {
        let writes = command.direction.writes();
        let expected_read_len = match command.bidirectional_len {
            Some(len) if writes => len,
            _ => command.expected_len,
        };
        let unsolicited_end = parameters.unsolicited_max().min(command.expected_len);
        Self {
            tag: command.task,
            lun: command.lun,
            volume,
            cdb: command.cdb,
            attribute: command.attribute,
            immediate: command.immediate,
            direction: command.direction,
            expected_len: command.expected_len,
            expected_read_len,
            transfer,
            state: State::Queued,
            aborted: false,
            collection: Collection {
                // Never more than the CDB moves, whatever the initiator says it has.
                wanted: if writes { command.expected_len.min(transfer.data_out) } else { 0 },
                unsolicited: (writes && !command.last).then_some(Sequence {
                    transfer: NO_TAG,
                    end: unsolicited_end,
                    data_sn: 0,
                }),
                ..Collection::default()
            },
            r2t_sn: 0,
        }
    }

    /// The memory that the task may take, in bytes.
    pub(super) fn cost(&self) -> u64 {
        u64::from(self.transfer.data_in).max(u64::from(self.collection.wanted))
    }
}

/// The data of a write on its way in. It comes in order: DataPDUInOrder and DataSequenceInOrder are always Yes.
#[derive(Debug, Default)]
pub(super) struct Collection {
    /// How many bytes the command takes; the initiator may send more unasked, which are dropped.
    pub(super) wanted: u32,
    /// The offset of the next byte.
    received: u32,
    /// Up to where R2Ts have asked.
    asked: u32,
    unsolicited: Option<Sequence>,
    solicited: VecDeque<Sequence>,
    data: Payload,
    /// Short pieces, copied together, so that a write of single bytes costs no more memory than it has bytes.
    short: BytesMut,
    failure: Option<DataFailure>,
}

/// A run of Data-Out PDUs that is expected.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    transfer: u32,
    /// The offset behind its last byte.
    end: u32,
    /// DataSN of the next one.
    data_sn: u32,
}

/// What an R2T is to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) offset: u32,
    pub(super) len: u32,
}

impl Collection {
    /// Takes the data that came with the command.
    pub(super) fn immediate(&mut self, data: Bytes) {
        self.store(data);
        if self.unsolicited.is_some_and(|sequence| self.received >= sequence.end) {
            self.unsolicited = None;
        }
    }

    /// Takes a Data-Out.
    pub(super) fn receive(&mut self, pdu: &DataOut) -> Result<(), (RejectReason, DataFailure)> {
        if self.failure.is_some() {
            self.close(pdu.transfer, pdu.last);
            return Ok(());
        }
        let taken = self.take(pdu);
        match taken {
            Ok(()) => {}
            Err((_, failure)) => self.fail(failure, pdu.transfer, pdu.last),
        }
        taken
    }

    fn take(&mut self, pdu: &DataOut) -> Result<(), (RejectReason, DataFailure)> {
        let Some(sequence) = self.sequence(pdu.transfer) else {
            let reason =
                if pdu.transfer.is_none() { RejectReason::Protocol } else { RejectReason::InvalidField };
            return Err((reason, DataFailure::Unexpected));
        };
        if pdu.data_sn != sequence.data_sn {
            return Err((RejectReason::Protocol, DataFailure::Unexpected));
        }
        let end = sequence.end;
        let in_place = u32::try_from(pdu.data.len()).ok().and_then(|len| pdu.offset.checked_add(len));
        if pdu.offset != self.received || in_place.is_none_or(|in_place| in_place > end) {
            return Err((RejectReason::InvalidField, DataFailure::Unexpected));
        }
        if pdu.data.is_empty() && !pdu.last {
            return Err((RejectReason::InvalidField, DataFailure::Amount));
        }
        self.store(pdu.data.clone());
        let whole = self.received >= end;
        if let Some(sequence) = self.sequence(pdu.transfer) {
            sequence.data_sn = sequence.data_sn.wrapping_add(1);
        }
        if pdu.last || whole {
            self.close(pdu.transfer, true);
        }
        if pdu.last && !whole && !self.solicited.is_empty() {
            // The rest could only come after what later R2Ts asked for, which is out of order.
            return Err((RejectReason::Protocol, DataFailure::Amount));
        }
        // A sequence that ended early is asked for again from where it ended.
        if self.solicited.is_empty() {
            self.asked = self.received;
        }
        Ok(())
    }

    /// Fails the task. The data that is still due is waited for and dropped (RFC 7143 11.17.1).
    pub(super) fn fail(&mut self, failure: DataFailure, transfer: Option<u32>, last: bool) {
        self.failure = self.failure.or(Some(failure));
        self.data = Payload::new();
        self.short = BytesMut::new();
        self.close(transfer, last);
    }

    /// Why the task fails, if it does.
    pub(super) const fn failure(&self) -> Option<DataFailure> {
        self.failure
    }

    /// Whether nothing more is to come.
    pub(super) fn is_complete(&self) -> bool {
        let quiet = self.unsolicited.is_none() && self.solicited.is_empty();
        quiet && (self.failure.is_some() || self.received >= self.wanted)
    }

    /// The next run to ask for, with at most `r2t_max` on the way and `burst_max` bytes each.
    pub(super) fn ask(&mut self, transfer: u32, r2t_max: u32, burst_max: u32) -> Option<Ask> {
        let outstanding = u32::try_from(self.solicited.len()).unwrap_or(u32::MAX);
        let offset = self.asked.max(self.received);
        if self.unsolicited.is_some() || self.failure.is_some() || outstanding >= r2t_max {
            return None;
        }
        let len = self.wanted.checked_sub(offset).filter(|left| *left > 0)?.min(burst_max);
        self.asked = offset + len;
        self.solicited.push_back(Sequence { transfer, end: offset + len, data_sn: 0 });
        Some(Ask { offset, len })
    }

    /// The data, once it is complete.
    pub(super) fn take_data(&mut self) -> Payload {
        self.flush();
        std::mem::take(&mut self.data)
    }

    /// The sequence that a Data-Out belongs to: R2Ts are answered in their order.
    fn sequence(&mut self, transfer: Option<u32>) -> Option<&mut Sequence> {
        match transfer {
            None => self.unsolicited.as_mut(),
            Some(transfer) => self.solicited.front_mut().filter(|sequence| sequence.transfer == transfer),
        }
    }

    fn close(&mut self, transfer: Option<u32>, last: bool) {
        if !last {
            return;
        }
        match transfer {
            None => self.unsolicited = None,
            Some(transfer) => self.solicited.retain(|sequence| sequence.transfer != transfer),
        }
    }

    fn store(&mut self, mut data: Bytes) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let room = self.wanted.saturating_sub(self.received);
        self.received = self.received.saturating_add(len);
        data.truncate(room as usize);
        let whole = self.received >= self.wanted && self.data.is_empty() && self.short.is_empty();
        if data.len() < SHORT && !whole {
            self.short.extend_from_slice(&data);
        } else {
            self.flush();
            self.data.push(data);
        }
    }

    fn flush(&mut self) {
        if !self.short.is_empty() {
            self.data.push(self.short.split().freeze());
        }
    }
}

/// The tasks of a connection, by place and by Initiator Task Tag.
#[derive(Debug)]
pub(super) struct Tasks {
    /// The tag in each place, so that a tag is found by a scan of a few cache lines.
    tags: Vec<u32>,
    places: Vec<Option<Task>>,
    free: Vec<u16>,
    immediate: u32,
}

impl Tasks {
    pub(super) fn new(places: u16) -> Self {
        Self {
            tags: vec![NO_TAG; usize::from(places)],
            places: (0..places).map(|_| None).collect(),
            free: (0..places).rev().collect(),
            immediate: 0,
        }
    }

    /// How many tasks there are: all, and those outside the order of CmdSN.
    pub(super) fn count(&self) -> (u32, u32) {
        let all = self.places.len() - self.free.len();
        (u32::try_from(all).unwrap_or(u32::MAX), self.immediate)
    }

    /// Adds a task; `None` when there is no place.
    pub(super) fn insert(&mut self, task: Task) -> Option<TaskId> {
        let place = self.free.pop()?;
        self.immediate += u32::from(task.immediate);
        self.tags[usize::from(place)] = task.tag;
        self.places[usize::from(place)] = Some(task);
        Some(TaskId(place))
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.places.get_mut(usize::from(id.0))?.take()?;
        self.immediate -= u32::from(task.immediate);
        self.tags[usize::from(id.0)] = NO_TAG;
        self.free.push(id.0);
        Some(task)
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.places.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The live task with this tag. An aborted one that is still settling does not count.
    pub(super) fn find(&self, tag: u32) -> Option<TaskId> {
        let mut found = self.tags.iter().enumerate().filter(|(_, other)| **other == tag);
        found.find_map(|(place, _)| {
            let id = TaskId(u16::try_from(place).ok()?);
            self.places[place].as_ref().filter(|task| !task.aborted).map(|_| id)
        })
    }

    /// The live tasks that `which` picks.
    pub(super) fn filter(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let live = |(place, task): (usize, &Option<Task>)| {
            let task = task.as_ref().filter(|task| !task.aborted && which(task))?;
            let _ = task;
            u16::try_from(place).ok().map(TaskId)
        };
        self.places.iter().enumerate().filter_map(live).collect()
    }

    /// How many aborted tasks have not settled yet.
    pub(super) fn aborting(&self) -> usize {
        self.places.iter().flatten().filter(|task| task.aborted).count()
    }
}

/// Pieces shorter than this are copied together, in bytes.
const SHORT: usize = 2048;

#[cfg(test)]
mod tests;
