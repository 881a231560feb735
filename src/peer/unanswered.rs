//! What a peer was sent and has not answered, and since when: changes and reads.

use std::{collections::VecDeque, fmt};

use ops::metrics::Operation;
use replication::{Packet, Sequence};
use tokio::time::Instant;

/// The changes, flushes and generations of one link that wait for their answer, in the order of their sequences,
/// which grow on a link, and the reads likewise. There are as many as the resource has in flight.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    changes: VecDeque<Change>,
    reads: VecDeque<Read>,
}

/// Something that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A change, a flush or a generation.
    Change(Sequence),
    /// A read, or a question about space.
    Read(u64),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(sequence) => write!(f, "change {}", sequence.0),
            Self::Read(read) => write!(f, "read {read}"),
        }
    }
}

#[derive(Debug)]
struct Read {
    id: u64,
    since: Instant,
    answered: bool,
}

#[derive(Debug)]
struct Change {
    sequence: Sequence,
    since: Instant,
    /// Under what its time is recorded, where it is.
    operation: Option<Operation>,
    answered: bool,
}

impl Unanswered {
    /// Takes note of a packet that goes to the peer.
    pub(super) fn sent(&mut self, packet: &Packet, since: Instant) {
        let (sequence, operation) = match *packet {
            Packet::Write { sequence, .. } => (sequence, Some(Operation::Write)),
            Packet::WriteZeroes { sequence, .. } => (sequence, Some(Operation::Discard)),
            Packet::Flush { sequence } => (sequence, Some(Operation::Flush)),
            Packet::NewGeneration { sequence, .. } => (sequence, None),
            Packet::Read { read, .. } | Packet::Allocation { read, .. } => {
                return self.reads.push_back(Read { id: read, since, answered: false });
            }
            _ => return,
        };
        self.changes.push_back(Change { sequence, since, operation, answered: false });
    }

    /// Takes note of a packet that came from the peer. Where it answers an operation: which, and since when it was out.
    pub(super) fn received(&mut self, packet: &Packet) -> Option<(Operation, Instant)> {
        let sequence = match *packet {
            Packet::Written { sequence } | Packet::WriteFailed { sequence } => sequence,
            Packet::ReadData { read, .. }
            | Packet::AllocationRuns { read, .. }
            | Packet::ReadFailed { read } => {
                self.read_answered(read);
                return None;
            }
            _ => return None,
        };
        let place = self.changes.binary_search_by_key(&sequence, |change| change.sequence).ok()?;
        let change = &mut self.changes[place];
        let first = !std::mem::replace(&mut change.answered, true);
        let timed = change.operation.filter(|_| first).map(|operation| (operation, change.since));
        while self.changes.front().is_some_and(|change| change.answered) {
            self.changes.pop_front();
        }
        timed
    }

    fn read_answered(&mut self, read: u64) {
        let Ok(place) = self.reads.binary_search_by_key(&read, |waiting| waiting.id) else { return };
        self.reads[place].answered = true;
        while self.reads.front().is_some_and(|waiting| waiting.answered) {
            self.reads.pop_front();
        }
    }

    /// The oldest that waits, and since when.
    pub(super) fn oldest(&self) -> Option<(Request, Instant)> {
        let change = self.changes.front().map(|change| (Request::Change(change.sequence), change.since));
        let read = self.reads.front().map(|waiting| (Request::Read(waiting.id), waiting.since));
        change.into_iter().chain(read).min_by_key(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P11: the oldest unanswered change is known, in whatever order the others are answered.
    #[test]
    fn answers_come_in_any_order() {
        let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
        for order in orders {
            let mut unanswered = Unanswered::default();
            let start = Instant::now();
            for sequence in 1..=3 {
                unanswered.sent(&Packet::Flush { sequence: Sequence(sequence) }, start);
            }
            let mut open = vec![1, 2, 3];
            for sequence in order {
                assert_eq!(
                    unanswered.oldest(),
                    Some((Request::Change(Sequence(open[0])), start)),
                    "{order:?}"
                );
                let sequence = Sequence(sequence);
                unanswered.received(&Packet::Received { sequence });
                assert_eq!(
                    unanswered.oldest(),
                    Some((Request::Change(Sequence(open[0])), start)),
                    "in memory is no answer"
                );
                let failed = sequence.0 == 2;
                let answer =
                    if failed { Packet::WriteFailed { sequence } } else { Packet::Written { sequence } };
                assert_eq!(unanswered.received(&answer), Some((Operation::Flush, start)));
                assert_eq!(unanswered.received(&answer), None, "it is timed once");
                open.retain(|&other| other != sequence.0);
            }
            assert_eq!(unanswered.oldest(), None, "{order:?}");
        }
    }
    /// P11: a read that a peer holds is known too, until it is answered in whichever way.
    #[test]
    fn reads_are_waited_for() {
        let (start, mut unanswered) = (Instant::now(), Unanswered::default());
        let later = start + std::time::Duration::from_secs(1);
        let (volume, extent) = (block::VolumeNumber(0), block::Extent::new(0, 4096));
        unanswered.sent(&Packet::Read { volume, read: 1, extent }, start);
        unanswered.sent(&Packet::Allocation { volume, read: 4, extent }, start);
        unanswered.sent(&Packet::Read { volume, read: 9, extent }, later);
        unanswered.sent(&Packet::Flush { sequence: Sequence(2) }, later);
        assert_eq!(unanswered.oldest(), Some((Request::Read(1), start)));
        unanswered.received(&Packet::AllocationRuns { read: 4, runs: Vec::new() });
        assert_eq!(unanswered.oldest(), Some((Request::Read(1), start)));
        unanswered.received(&Packet::ReadData { read: 1, data: block::Payload::new() });
        unanswered.received(&Packet::ReadFailed { read: 9 });
        assert_eq!(unanswered.oldest(), Some((Request::Change(Sequence(2)), later)));
    }
}
