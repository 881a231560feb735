use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::bitmap::BLOCK;

/// The metadata area before the bitmaps, in bytes.
const AREA: usize = 256 * 4096;
const IDENTITY: u64 = 77;

fn job(number: usize) -> Granted {
    Granted::Job(number)
}

fn blocks(first: u64, count: u64) -> Extent {
    Extent::new(first * BLOCK, count * BLOCK)
}

/// Every extent that the log on a disk says was active.
fn on_disk(area: &[u8]) -> BTreeSet<u64> {
    let log = recover(area, IDENTITY).expect("no gap");
    let extents = log.iter().flat_map(|log| log.extents().collect::<Vec<_>>());
    extents.flat_map(|extent| extent.offset / BLOCK..extent.end() / BLOCK).collect()
}

fn write(area: &mut [u8], (offset, bytes): &(u64, Vec<u8>), sectors: usize) {
    let at = usize::try_from(*offset).unwrap();
    area[at..at + sectors * 512].copy_from_slice(&bytes[..sectors * 512]);
}

/// P10: a block of the log torn at any sector is not there, and everything before it still is; around the ring more
/// than twice, where one block shows the whole table and where it takes three.
#[test]
fn a_torn_block_leaves_what_was_before() {
    for (slots, rounds, step) in [(5_u32, 430_u64, 1), (2000, 430, 40)] {
        let size = 3_000 * BLOCK;
        let mut log = ActivityLog::new(slots, BLOCK, size, IDENTITY);
        let mut area = vec![0x5a; AREA];
        let mut before = BTreeSet::new();
        for round in 0..rounds {
            let changed: Vec<_> =
                (0..step).map(|part| blocks((round * step + part) * 7 % 3_000, 1)).collect();
            for (part, extent) in changed.iter().enumerate() {
                assert!(!log.hold(*extent, job(part), false), "it was cold");
            }
            log.begin(|_| panic!("nothing was hot")).expect("something is to be written");
            let block = log.block();
            let at = usize::try_from(block.0).unwrap();
            let old = area[at..at + 4096].to_vec();
            // The larger table takes longer.
            let torn = if step == 1 || round % 8 == 0 { 0..8 } else { 0..0 };
            for sectors in torn {
                write(&mut area, &block, sectors);
                assert_eq!(on_disk(&area), before, "round {round}, {sectors} sectors");
                area[at..at + 4096].copy_from_slice(&old);
            }
            write(&mut area, &block, 8);
            log.commit(|_| {});
            let after = on_disk(&area);
            assert!(changed.iter().all(|extent| after.contains(&(extent.offset / BLOCK))), "round {round}");
            let most = u64::from(slots).min((round + 1) * step);
            assert_eq!(after.len() as u64, most, "round {round}");
            before = after;
            for extent in changed {
                log.release(extent);
            }
        }
    }
}

/// P10: a log of which a needed block is lost tells nothing rather than too little; another log's blocks are not its
/// own.
#[test]
fn a_gap_is_noticed() {
    let mut log = ActivityLog::new(2_000, BLOCK, 3_000 * BLOCK, IDENTITY);
    let mut area = vec![0; AREA];
    for round in 0..250 {
        assert!(!log.hold(blocks(round, 1), job(0), false));
        log.begin(|_| {});
        write(&mut area, &log.block(), 8);
        log.commit(|_| {});
        log.release(blocks(round, 1));
    }
    let last = log.sequence;
    for age in 0..4 {
        let mut torn = area.clone();
        torn[usize::try_from(LogBlock::offset(last - age)).unwrap() + 9] ^= 1;
        let result = recover(&torn, IDENTITY);
        match age {
            0 => assert!(result.is_ok(), "a torn last block"),
            1 | 2 => assert!(result.is_err(), "block {age} before the last"),
            _ => assert_eq!(result, recover(&area, IDENTITY), "a block that is not needed"),
        }
    }
    assert_eq!(recover(&area, IDENTITY + 1), Ok(None));
}

/// A log of two extents, its disk, and who holds what.
struct Model {
    log: ActivityLog,
    /// What the last block says; one shows the whole table.
    hot: Vec<u32>,
    next: usize,
    waiting: BTreeMap<usize, u64>,
    holding: BTreeMap<usize, u64>,
    /// Extents changed since the last flush.
    unstable: BTreeSet<u64>,
    before: Option<Before>,
}

impl Model {
    fn new() -> Self {
        Self {
            log: ActivityLog::new(2, BLOCK, 3 * BLOCK, IDENTITY),
            hot: Vec::new(),
            next: 0,
            waiting: BTreeMap::new(),
            holding: BTreeMap::new(),
            unstable: BTreeSet::new(),
            before: None,
        }
    }

    fn granted(&mut self, granted: Vec<Granted>) {
        for holder in granted {
            let Granted::Job(holder) = holder else { panic!("no task asked") };
            let extent = self.waiting.remove(&holder).expect("it waited");
            self.holding.insert(holder, extent);
        }
    }

    /// Whether the step means anything now.
    fn step(&mut self, step: u32) -> bool {
        match step {
            0..=2 => {
                let extent = u64::from(step);
                self.next += 1;
                let hot = self.log.hold(blocks(extent, 1), job(self.next), false);
                (if hot { &mut self.holding } else { &mut self.waiting }).insert(self.next, extent);
            }
            3 | 4 => {
                let end = if step == 3 { self.holding.pop_first() } else { self.holding.pop_last() };
                let Some((_, extent)) = end else { return false };
                self.log.release(blocks(extent, 1));
                self.unstable.insert(extent);
            }
            5 => return self.advance(),
            _ => self.flush(),
        }
        true
    }

    fn flush(&mut self) {
        let epoch = self.log.flush_begins();
        self.unstable.clear();
        self.log.flush_ended(epoch);
    }

    /// Begins a transaction, or ends the one under way.
    fn advance(&mut self) -> bool {
        let mut granted = Vec::new();
        let Some(before) = self.before.take() else {
            self.before = self.log.begin(|holder| granted.push(holder));
            let any = self.before.is_some() || !granted.is_empty();
            self.granted(granted);
            return any;
        };
        if before.flush {
            self.flush();
        }
        for span in before.left {
            let extent = u64::from(span.first);
            assert!(!self.holding.values().any(|&held| held == extent), "{extent} leaves and is held");
            assert!(!self.unstable.contains(&extent), "{extent} leaves and is not stable");
        }
        self.hot = LogBlock::decode(&self.log.block().1).expect("it is whole").slice;
        self.log.commit(|holder| granted.push(holder));
        self.granted(granted);
        true
    }

    /// Whatever may differ after a crash is on the disk.
    fn check(&self, steps: &[u32]) {
        for extent in self.holding.values().chain(&self.unstable) {
            let hot = self.hot.iter().any(|&hot| u64::from(hot) == *extent);
            assert!(hot, "{extent} is held or not stable, and the disk says {:?}: {steps:?}", self.hot);
        }
    }
}

/// P6: over every sequence of seven changes, ends, transactions and flushes on two slots and three extents, what is held
/// or could be lost by a power cut is hot on the disk; and everyone is served in the end.
#[test]
fn nothing_leaves_that_may_differ() {
    const STEPS: u32 = 7;
    const DEPTH: u32 = 7;
    for code in 0..STEPS.pow(DEPTH) {
        let steps: Vec<u32> = (0..DEPTH).map(|place| code / STEPS.pow(place) % STEPS).collect();
        let mut model = Model::new();
        if !steps.iter().all(|&step| model.step(step)) {
            continue;
        }
        model.check(&steps);
        for _ in 0..30 {
            model.step(3);
            model.advance();
        }
        model.check(&steps);
        assert!(model.waiting.is_empty(), "someone waits for ever: {steps:?}");
    }
}

/// P11: who waits for slots that others hold is not overtaken for ever, and a resync that others wait for is not held
/// up.
#[test]
fn nobody_starves() {
    let mut log = ActivityLog::new(2, BLOCK, 9 * BLOCK, IDENTITY);
    let mut granted = Vec::new();
    assert!(!log.hold(blocks(0, 1), job(0), false) && !log.hold(blocks(1, 1), job(1), false));
    assert!(log.begin(|_| {}).is_some());
    log.commit(|holder| granted.push(holder));
    assert_eq!(granted, [job(0), job(1)]);
    assert!(log.hold(blocks(0, 1), job(2), false), "it is hot");
    assert!(!log.hold(blocks(5, 1), job(3), false) && log.begin(|_| {}).is_none());
    assert!(!log.hold(blocks(0, 1), job(4), false), "someone is before it");
    assert!(log.hold(blocks(0, 1), job(5), true), "a resync goes first");
    log.release(blocks(1, 1));
    let before = log.begin(|holder| granted.push(holder)).expect("a slot is free");
    assert_eq!(before, Before { left: vec![Span { first: 1, last: 1 }], flush: true });
    log.commit(|holder| granted.push(holder));
    assert_eq!(granted[2..], [job(4), job(3)], "the hot one needs no transaction");
}

/// P6: a change of more extents than there are slots is hot as a whole, and leaves with the next transaction.
#[test]
fn a_large_change_is_one_range() {
    let mut log = ActivityLog::new(4, BLOCK, 100 * BLOCK, IDENTITY);
    let mut area = vec![0; AREA];
    let mut turn = |log: &mut ActivityLog| {
        let before = log.begin(|_| {});
        write(&mut area, &log.block(), 8);
        log.commit(|_| {});
        (before, on_disk(&area))
    };
    assert!(!log.hold(blocks(10, 50), job(0), false));
    let (_, hot) = turn(&mut log);
    assert_eq!(hot, (10..60).collect());
    assert!(log.hold(blocks(10, 50), job(1), false), "the same range is hot");
    log.release(blocks(10, 50));
    assert!(!log.hold(blocks(2, 1), job(2), false));
    let (before, hot) = turn(&mut log);
    assert!(before.is_some_and(|before| before.left.is_empty()) && hot.len() == 51, "it is held");
    log.release(blocks(10, 50));
    assert!(!log.hold(blocks(3, 1), job(3), false));
    let (before, hot) = turn(&mut log);
    assert_eq!(before, Some(Before { left: vec![Span { first: 10, last: 59 }], flush: true }));
    assert_eq!(hot, [2, 3].into());
}

/// Whoever gave up waiting holds nothing.
#[test]
fn who_is_cancelled_holds_nothing() {
    let mut log = ActivityLog::new(1, BLOCK, 9 * BLOCK, IDENTITY);
    assert!(!log.hold(blocks(0, 1), job(0), false) && !log.hold(blocks(1, 1), job(1), false));
    assert!(log.begin(|_| {}).is_some());
    log.cancel(job(0));
    log.cancel(job(1));
    log.commit(|_| panic!("nobody waits"));
    assert!(!log.is_waited_for() && !log.hold(blocks(2, 1), job(2), false));
    assert!(log.begin(|_| {}).is_some(), "the slot is free");
}
