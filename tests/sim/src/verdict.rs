//! What a run has shown, or which promise of the design it broke.

use std::fmt;

use crate::scenario::{Class, Scenario};

/// The promises that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// An acknowledged write is there.
    P1,
    /// An acknowledged flush is on stable storage.
    P2,
    /// A read returns what was acknowledged before, and never the old one behind the new.
    P3,
    /// A replica that may lack an acknowledged write is not promoted and serves no read.
    P5,
    /// Where two replicas differ, one of them knows.
    P6,
    /// Replicas become equal, and commands are served again.
    P7,
    /// Split brain is found at both ends and never merged silently.
    P8,
    /// Without quorum nothing is acknowledged.
    P9,
    /// A node starts again after a crash.
    P10,
    /// A failure stops nobody for longer than it must.
    P11,
    /// A disk's error does not reach the initiator while another good replica is there.
    P12,
    /// An abandoned write never lands behind a newer one.
    P14,
}

/// A promise that was broken, and the evidence.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which one.
    pub promise: Promise,
    /// What was seen.
    pub what: String,
}

impl Broken {
    pub(crate) fn new(promise: Promise, what: impl Into<String>) -> Self {
        Self { promise, what: what.into() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken: {}", self.promise, self.what)
    }
}

/// A seed that breaks a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The cluster that it makes.
    pub scenario: Box<Scenario>,
    /// What it breaks.
    pub broken: Broken,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} ({:?}): {}", self.seed, self.scenario, self.broken)
    }
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario of the seed.
    pub scenario: Scenario,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Flushes whose word was held against a disk that had lost its power.
    pub flushes: u64,
    /// What the scenario is about happened so often: cuts of all power, splits resolved, disks broken and so on.
    pub turns: u64,
    /// Virtual time, in microseconds.
    pub time: u64,
}

/// What many runs have shown together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Runs.
    pub runs: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Flushes whose word was held against a disk that had lost its power.
    pub flushes: u64,
    /// What the scenario is about happened so often.
    pub turns: u64,
    /// Virtual time, in microseconds.
    pub time: u64,
}

impl Sum {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.acknowledged += report.acknowledged;
        self.reads += report.reads;
        self.unknown += report.unknown;
        self.faults += report.faults;
        self.flushes += report.flushes;
        self.turns += report.turns;
        self.time += report.time;
    }

    /// Whether such runs prove anything: so much of everything for each run, on the average.
    #[must_use]
    pub fn proves(&self, class: Class) -> bool {
        let unknown = class == Class::SplitBrain || self.unknown >= self.runs;
        let flushes = class != Class::PowerCut || self.flushes >= 10 * self.runs;
        let turns = class == Class::Base || self.turns >= self.runs;
        let busy = self.acknowledged >= 50 * self.runs && self.reads >= 20 * self.runs;
        self.runs > 0 && busy && self.faults >= self.runs && unknown && flushes && turns
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs, {} acknowledged writes, {} reads, {} unknown outcomes, {} faults, {} turns, {} flushes \
             held against disks without power, {} s",
            self.runs,
            self.acknowledged,
            self.reads,
            self.unknown,
            self.faults,
            self.turns,
            self.flushes,
            self.time / 1_000_000
        )
    }
}
