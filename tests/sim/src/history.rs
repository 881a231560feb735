//! What initiators did and saw, and whether one register per sector explains it (P1, P3, P4, P14).
//!
//! Every write stores a number that is never used again. So the reads of one number belong to one write, and with it
//! they form a cluster that has to happen between the latest start and the earliest end of its members. The exact
//! rule (Gibbons and Korach, "Testing shared memories", 1997): no two clusters that last may overlap, and none that
//! is a moment may lie within one that lasts. A write whose outcome is not known ends when its initiator gave it up:
//! that it happens later, after a newer one, is what P14 forbids.

use std::collections::BTreeMap;

/// What a command did to one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Stored this number; zero for a discard.
    Write(u64),
    /// Saw this number.
    Read(u64),
}

/// One command on one sector. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What it did.
    pub access: Access,
    /// When it was sent.
    pub start: u64,
    /// When its answer came, or when it was given up.
    pub end: u64,
    /// Whether it is known to have happened.
    pub done: bool,
}

/// Everything that happened.
#[derive(Clone, Debug)]
pub struct History {
    sectors: Vec<Vec<Operation>>,
    flushes: Vec<(u64, u64)>,
    /// How many writes were acknowledged.
    pub acknowledged: u64,
    /// How many reads were answered.
    pub reads: u64,
    /// How many writes have an unknown outcome.
    pub unknown: u64,
}

#[derive(Debug)]
struct Cluster {
    latest_start: u64,
    earliest_end: u64,
    write: Operation,
    read: bool,
}

impl History {
    /// Nothing yet, for so many sectors.
    #[must_use]
    pub fn new(sectors: usize) -> Self {
        Self {
            sectors: vec![Vec::new(); sectors],
            flushes: Vec::new(),
            acknowledged: 0,
            reads: 0,
            unknown: 0,
        }
    }

    /// Adds a command.
    pub fn add(&mut self, sector: usize, operation: Operation) {
        self.sectors[sector].push(operation);
    }

    /// Adds an acknowledged flush.
    pub fn flushed(&mut self, start: u64, end: u64) {
        self.flushes.push((start, end));
    }

    /// What cannot be explained, if anything.
    #[must_use]
    pub fn judge(&self) -> Option<String> {
        (0..).zip(&self.sectors).find_map(|(sector, operations)| {
            judge_sector(operations).map(|fault: String| format!("sector {sector}: {fault}"))
        })
    }

    /// What of `values`, found after everything lost power, breaks the word of a flush (P2).
    pub fn judge_flushes(&self, values: impl Iterator<Item = u64>) -> Option<String> {
        for (sector, (operations, value)) in self.sectors.iter().zip(values).enumerate() {
            let found = operations.iter().find(|operation| operation.access == Access::Write(value));
            let covered = |write: &Operation| {
                let ended = |&(start, _): &(u64, u64)| write.end < start;
                matches!(write.access, Access::Write(_)) && write.done && self.flushes.iter().any(ended)
            };
            if let Some(lost) = operations
                .iter()
                .find(|write| covered(write) && found.is_none_or(|found| found.end < write.start))
                && (value != 0 || !operations.iter().any(|other| other.access == Access::Write(0)))
            {
                return Some(format!("sector {sector}: flushed {lost:?} is lost, {value} stands there"));
            }
        }
        None
    }
}

fn judge_sector(operations: &[Operation]) -> Option<String> {
    let mut clusters: BTreeMap<u64, Cluster> = BTreeMap::new();
    let mut discards = Vec::new();
    for operation in operations {
        match operation.access {
            Access::Write(0) => discards.push(*operation),
            Access::Write(value) => {
                let (latest_start, earliest_end) = (operation.start, operation.end);
                clusters
                    .insert(value, Cluster { latest_start, earliest_end, write: *operation, read: false });
            }
            Access::Read(_) => {}
        }
    }
    for operation in operations {
        match operation.access {
            Access::Read(0) => {
                if let Some(fault) = judge_zero(operation, &clusters, &discards) {
                    return Some(fault);
                }
            }
            Access::Read(value) => {
                let Some(cluster) = clusters.get_mut(&value) else {
                    return Some(format!("{operation:?} was never written"));
                };
                if operation.end < cluster.write.start {
                    return Some(format!("{operation:?} saw {:?} before it was sent", cluster.write));
                }
                cluster.latest_start = cluster.latest_start.max(operation.start);
                cluster.earliest_end = cluster.earliest_end.min(operation.end);
                cluster.read = true;
                let write = cluster.write;
                let over = |discard: &&Operation| {
                    discard.done && write.end < discard.start && discard.end < operation.start
                };
                if let Some(discard) = discards.iter().find(over) {
                    return Some(format!("{operation:?} saw {write:?} behind {discard:?}"));
                }
            }
            Access::Write(_) => {}
        }
    }
    judge_clusters(clusters.into_values().filter(|cluster| cluster.read || cluster.write.done).collect())
}

fn judge_zero(read: &Operation, clusters: &BTreeMap<u64, Cluster>, discards: &[Operation]) -> Option<String> {
    let lost = clusters.values().map(|cluster| cluster.write).find(|write| {
        let explains = |discard: &&Operation| discard.end > write.start && discard.start < read.end;
        write.done && write.end < read.start && !discards.iter().any(|discard| explains(&discard))
    })?;
    Some(format!("{read:?} saw zeros behind {lost:?}"))
}

fn judge_clusters(clusters: Vec<Cluster>) -> Option<String> {
    let (mut lasting, moments): (Vec<_>, Vec<_>) =
        clusters.into_iter().partition(|cluster| cluster.earliest_end < cluster.latest_start);
    lasting.sort_by_key(|cluster| cluster.earliest_end);
    for pair in lasting.windows(2) {
        if pair[1].earliest_end < pair[0].latest_start {
            return Some(format!("old and new alternate: {:?} and {:?}", pair[0], pair[1]));
        }
    }
    for moment in moments {
        let at = lasting.partition_point(|cluster| cluster.earliest_end < moment.latest_start);
        if let Some(around) = at.checked_sub(1).map(|at| &lasting[at])
            && moment.earliest_end < around.latest_start
        {
            return Some(format!("{around:?} was seen behind {moment:?}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(operations: &[(Access, u64, u64, bool)]) -> History {
        let mut history = History::new(1);
        for &(access, start, end, done) in operations {
            history.add(0, Operation { access, start, end, done });
        }
        history
    }

    /// P3: the judge refuses a lost write, a stale read, and old after new.
    #[test]
    fn impossible_histories_are_refused() {
        use Access::{Read, Write};
        let lost = [(Write(1), 0, 1, true), (Read(0), 2, 3, true)];
        let stale = [(Write(1), 0, 1, true), (Write(2), 2, 3, true), (Read(1), 4, 5, true)];
        let again = [
            (Write(1), 0, 9, true),
            (Write(2), 0, 9, true),
            (Read(1), 1, 2, true),
            (Read(2), 3, 4, true),
            (Read(1), 5, 6, true),
        ];
        let zombie =
            [(Write(1), 0, 1, false), (Write(2), 2, 3, true), (Read(2), 4, 5, true), (Read(1), 6, 7, true)];
        let unwritten = [(Read(7), 0, 1, true)];
        let early = [(Read(7), 0, 1, true), (Write(7), 2, 3, true)];
        for history in [
            history(&lost),
            history(&stale),
            history(&again),
            history(&zombie),
            history(&unwritten),
            history(&early),
        ] {
            assert!(history.judge().is_some(), "{history:?}");
        }
    }

    /// What a register can do is accepted: unknown outcomes, concurrent writes, discards.
    #[test]
    fn possible_histories_are_accepted() {
        use Access::{Read, Write};
        let unknown =
            [(Write(1), 0, 5, false), (Read(0), 1, 2, true), (Read(1), 3, 4, true), (Read(1), 6, 7, true)];
        let concurrent = [(Write(1), 0, 9, true), (Write(2), 0, 9, true), (Read(2), 10, 11, true)];
        let discard = [(Write(1), 0, 1, true), (Write(0), 2, 3, true), (Read(0), 4, 5, true)];
        for history in [history(&unknown), history(&concurrent), history(&discard)] {
            assert_eq!(history.judge(), None);
        }
    }

    /// P2: what a flush covered may not be gone after a power cut; what it did not cover may.
    #[test]
    fn a_broken_flush_is_noticed() {
        let mut history = history(&[(Access::Write(1), 0, 1, true), (Access::Write(2), 4, 5, true)]);
        history.flushed(2, 3);
        assert_eq!(history.judge_flushes([1].into_iter()), None);
        assert_eq!(history.judge_flushes([2].into_iter()), None);
        assert!(history.judge_flushes([0].into_iter()).is_some());
    }
}
