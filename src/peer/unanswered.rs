//! The changes that a peer was sent and has not answered, and since when.

use std::collections::VecDeque;

use ops::metrics::Operation;
use replication::{Packet, Sequence};
use tokio::time::Instant;

/// The changes, flushes and generations of one link that wait for their answer, in the order of their sequences,
/// which grow on a link. There are as many as the resource has in flight.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    changes: VecDeque<Change>,
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
            _ => return,
        };
        self.changes.push_back(Change { sequence, since, operation, answered: false });
    }

    /// Takes note of a packet that came from the peer. Where it answers an operation: which, and since when it was out.
    pub(super) fn received(&mut self, packet: &Packet) -> Option<(Operation, Instant)> {
        let (Packet::Written { sequence } | Packet::WriteFailed { sequence }) = *packet else {
            return None;
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

    /// The oldest that waits, and since when.
    pub(super) fn oldest(&self) -> Option<(Sequence, Instant)> {
        self.changes.front().map(|change| (change.sequence, change.since))
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
                assert_eq!(unanswered.oldest(), Some((Sequence(open[0]), start)), "{order:?}");
                let sequence = Sequence(sequence);
                unanswered.received(&Packet::Received { sequence });
                assert_eq!(unanswered.oldest(), Some((Sequence(open[0]), start)), "in memory is no answer");
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
}
