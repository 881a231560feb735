//! What initiators did and saw, and whether one register per sector explains it (P1, P3, P4, P14).

use std::ops::Range;

use crate::judge::{Swap, judge_sector};

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

/// An acknowledged flush, or a write that was forced to the medium.
#[derive(Clone, Debug)]
pub struct FlushPoint {
    /// The sectors that it covers.
    pub sectors: Range<usize>,
    /// It covers what was acknowledged before this moment; for a forced write, at this moment.
    pub before: u64,
    /// For a forced write, the only value that it covers at each of its sectors.
    pub values: Option<Vec<u64>>,
    /// The nodes whose disks it speaks for.
    pub nodes: u32,
}

/// What cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether an abandoned write is part of it (P14).
    pub abandoned: bool,
    /// What was seen.
    pub what: String,
}

/// Everything that happened.
#[derive(Clone, Debug)]
pub struct History {
    sectors: Vec<Vec<Operation>>,
    flushes: Vec<FlushPoint>,
    swaps: Vec<Vec<Swap>>,
    /// How many writes were acknowledged.
    pub acknowledged: u64,
    /// How many reads were answered.
    pub reads: u64,
    /// How many writes have an unknown outcome.
    pub unknown: u64,
}

impl History {
    /// Nothing yet, for so many sectors.
    #[must_use]
    pub fn new(sectors: usize) -> Self {
        Self {
            sectors: vec![Vec::new(); sectors],
            flushes: Vec::new(),
            swaps: vec![Vec::new(); sectors],
            acknowledged: 0,
            reads: 0,
            unknown: 0,
        }
    }

    /// Adds a command.
    pub fn add(&mut self, sector: usize, operation: Operation) {
        self.sectors[sector].push(operation);
    }

    /// Adds that a command which was done, and added as a read of `old` and a write of `new`, was one step.
    pub fn add_swap(&mut self, sector: usize, old: u64, new: u64) {
        self.swaps[sector].push(Swap { old, new });
    }

    /// Adds an acknowledged flush, or a forced write.
    pub fn flushed(&mut self, point: FlushPoint) {
        self.flushes.push(point);
    }

    /// Begins anew from what the sectors hold now: after more went wrong than is promised to be survived.
    pub fn rebase(&mut self, image: &[u64], now: u64) {
        self.flushes.clear();
        self.swaps.iter_mut().for_each(Vec::clear);
        for (operations, &value) in self.sectors.iter_mut().zip(image) {
            operations.clear();
            if value != 0 {
                operations.push(Operation { access: Access::Write(value), start: now, end: now, done: true });
            }
        }
    }

    /// What cannot be explained, if anything.
    #[must_use]
    pub fn judge(&self) -> Option<Fault> {
        (0..).zip(self.sectors.iter().zip(&self.swaps)).find_map(|(sector, (operations, swaps))| {
            let fault = judge_sector(operations, swaps)?;
            Some(Fault { what: format!("sector {sector}: {}", fault.what), ..fault })
        })
    }

    /// What of `image`, an acknowledged write that is lost in it: an older one stands there. `zeroing` are sectors that
    /// may just become zeros.
    #[must_use]
    pub fn lost(&self, image: &[u64], zeroing: &[Range<usize>]) -> Option<Fault> {
        self.lost_of(image, zeroing, |_, _| true)
    }

    /// What of `image`, found on a node's disk after it lost power, breaks the word of a flush (P2). Without a node,
    /// what breaks the word of any of them.
    #[must_use]
    pub fn lost_of_flushed(
        &self,
        image: &[u64],
        node: Option<usize>,
        zeroing: &[Range<usize>],
    ) -> Option<Fault> {
        let speaks = |point: &&FlushPoint| node.is_none_or(|node| point.nodes & 1 << node != 0);
        let mut before = vec![0; self.sectors.len()];
        let mut forced = std::collections::BTreeSet::new();
        for point in self.flushes.iter().filter(speaks) {
            match &point.values {
                Some(values) => {
                    let values = values.iter().map(|&value| (value, point.before));
                    forced.extend(point.sectors.clone().zip(values));
                }
                None => {
                    for before in &mut before[point.sectors.clone()] {
                        *before = point.before.max(*before);
                    }
                }
            }
        }
        self.lost_of(image, zeroing, |sector, write| {
            write.end < before[sector]
                || matches!(write.access, Access::Write(value) if forced.contains(&(sector, (value, write.end))))
        })
    }

    /// A node's disk was replaced: no flush speaks for it.
    pub fn forget_flushes_of(&mut self, node: usize) {
        for point in &mut self.flushes {
            point.nodes &= !(1 << node);
        }
    }

    /// How many flushes speak for a node's disk.
    #[must_use]
    pub fn flushes_of(&self, node: usize) -> u64 {
        self.flushes.iter().filter(|point| point.nodes & 1 << node != 0).count() as u64
    }

    fn lost_of(
        &self,
        image: &[u64],
        zeroing: &[Range<usize>],
        covered: impl Fn(usize, &Operation) -> bool,
    ) -> Option<Fault> {
        for (sector, (operations, &value)) in self.sectors.iter().zip(image).enumerate() {
            let is_write = |write: &&Operation| matches!(write.access, Access::Write(_)) && write.done;
            let lasts = |write: &&Operation| covered(sector, write);
            let newest = operations.iter().filter(is_write).filter(lasts).max_by_key(|write| write.start);
            let Some(newest) = newest else { continue };
            // Of zeros it is not known whose they are: any that may be late enough will do.
            let found = operations
                .iter()
                .filter(|operation| operation.access == Access::Write(value))
                .max_by_key(|write| write.end);
            let older = match found {
                Some(found) => found.end < newest.start,
                None => value == 0,
            };
            if older && (value != 0 || !zeroing.iter().any(|range| range.contains(&sector))) {
                return Some(Fault {
                    abandoned: found.is_some_and(|found| !found.done),
                    what: format!("sector {sector}: {newest:?} is lost, {value} stands there: {found:?}"),
                });
            }
        }
        None
    }
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

    /// P2: what a flush covered may not be gone after a power cut; what it did not cover may, and so may what stood
    /// on a disk that it does not speak for.
    #[test]
    fn a_broken_flush_is_noticed() {
        let mut history = history(&[(Access::Write(1), 0, 1, true), (Access::Write(2), 4, 5, true)]);
        history.flushed(FlushPoint { sectors: 0..1, before: 2, values: None, nodes: 0b01 });
        assert_eq!(history.lost_of_flushed(&[1], None, &[]), None);
        assert_eq!(history.lost_of_flushed(&[2], Some(0), &[]), None);
        assert!(history.lost_of_flushed(&[0], Some(0), &[]).is_some());
        assert_eq!(history.lost_of_flushed(&[0], Some(1), &[]), None);
        history.flushed(FlushPoint { sectors: 0..1, before: 5, values: Some(vec![2]), nodes: 0b10 });
        assert!(history.lost_of_flushed(&[1], Some(1), &[]).is_some());
    }

    /// P1: an acknowledged write is gone where an older one stands; zeros may be those of a discard under way.
    #[test]
    fn a_lost_write_is_noticed() {
        let history = history(&[(Access::Write(1), 0, 1, true), (Access::Write(2), 4, 5, true)]);
        assert!(history.lost(&[1], &[]).is_some() && history.lost(&[0], &[]).is_some());
        assert_eq!(history.lost(&[2], &[]), None);
        assert_eq!(history.lost(&[0], std::slice::from_ref(&(0..1))), None);
    }

    /// P3: nothing comes between the two halves of a read-modify-write, and only one follows a value.
    #[test]
    fn a_torn_read_modify_write_is_noticed() {
        use Access::{Read, Write};
        let mut twice = history(&[(Write(1), 0, 1, true), (Write(2), 2, 9, true), (Write(3), 2, 9, true)]);
        twice.add_swap(0, 1, 2);
        assert_eq!(twice.judge(), None);
        twice.add_swap(0, 1, 3);
        assert!(twice.judge().is_some());
        let mut between = history(&[
            (Write(1), 0, 1, true),
            (Write(3), 2, 20, true),
            (Read(1), 2, 20, true),
            (Write(2), 4, 5, true),
            (Read(2), 6, 7, true),
            (Read(1), 3, 4, true),
            (Read(3), 8, 9, true),
        ]);
        assert_eq!(between.judge(), None);
        between.add_swap(0, 1, 3);
        assert!(between.judge().is_some());
    }
}
