//! Runs of a seed, and what they are held to.

use replication::{DiskState, Verb};

use crate::{
    converge::CONVERGE_ROUNDS,
    history::{Access, Operation},
    scenario::Scenario,
    world::{Event, World},
};

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario of the seed.
    pub scenario: Scenario,
    /// Writes that were acknowledged, reads that were answered, writes whose outcome is unknown.
    pub acknowledged: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes whose outcome is unknown.
    pub unknown: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Virtual time, in microseconds.
    pub time: u64,
}

/// Runs a seed to its end.
///
/// # Errors
/// When a promise is broken, or the run shows nothing.
pub fn run(seed: u64) -> Result<Report, String> {
    let mut world = World::new(seed);
    let scenario = world.scenario.clone();
    let fail = |fault: String| format!("seed {seed} ({scenario:?}): {fault}");
    world.play(RUN_TIME);
    world.heal();
    world.converge().map_err(fail)?;
    world.judge().map_err(fail)?;
    if world.scenario.blackout {
        world.black_out().map_err(fail)?;
    }
    let report = world.report();
    if report.acknowledged == 0 || report.reads == 0 || report.faults == 0 {
        return Err(fail(format!("nothing was shown: {report:?}")));
    }
    Ok(report)
}

/// Runs a seed without faults, but with data of unknown origin on the first node's disk: it serves nobody until the
/// operator forces it, then every other replica takes everything from it. `None` where the seed's only Primary is
/// another node.
///
/// # Errors
/// When a promise is broken.
pub fn run_adopted(seed: u64) -> Result<Option<Report>, String> {
    let mut world = World::new(seed);
    if world.scenario.pinned().is_some_and(|node| node != 0) {
        return Ok(None);
    }
    let fail = |fault: String| format!("seed {seed}: {fault}");
    world.quiet = true;
    world.adopt(0);
    world.play(150_000);
    let good = |node: usize| world.device(node) == Some(DiskState::UpToDate);
    if world.history.acknowledged + world.history.reads > 0 || (0..world.nodes.len()).any(good) {
        return Err(fail(format!("something is good before a human said so: {:#?}", world.statuses())));
    }
    world.ask(0, Verb::Primary { force: true });
    world.converge().map_err(fail)?;
    world.judge().map_err(fail)?;
    Ok(Some(world.report()))
}

impl World {
    pub(crate) fn report(self) -> Report {
        Report {
            acknowledged: self.history.acknowledged,
            reads: self.history.reads,
            unknown: self.history.unknown,
            faults: self.faults,
            time: self.now,
            scenario: self.scenario,
        }
    }

    /// Holds the history and the disks to the promises.
    pub(crate) fn judge(&mut self) -> Result<(), String> {
        let images: Vec<Vec<u64>> = self
            .nodes
            .iter()
            .filter_map(|node| node.disk.as_ref())
            .map(|disk| disk.values().collect())
            .collect();
        for image in &images {
            if let Some(sector) = image.iter().zip(&images[0]).position(|(one, other)| one != other) {
                return Err(format!(
                    "sector {sector} differs: {:?}",
                    images.iter().map(|image| image[sector]).collect::<Vec<_>>()
                ));
            }
        }
        let mut history = self.history.clone();
        for (sector, &value) in images[0].iter().enumerate() {
            let access = Access::Read(value);
            history.add(sector, Operation { access, start: self.now, end: self.now, done: true });
        }
        history.judge().map_or(Ok(()), Err)
    }

    /// All power fails at once: what was flushed is still there (P2).
    pub(crate) fn black_out(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.take_down(node, true);
        }
        for node in 0..self.nodes.len() {
            let at = self.random.below(50_000);
            self.after(at, Event::Start(node));
        }
        for _ in 0..CONVERGE_ROUNDS {
            self.play(50_000);
            if self.is_whole() {
                let disk = self.nodes.iter().find_map(|node| node.disk.as_ref());
                let values: Vec<u64> = disk.map(|disk| disk.values().collect()).unwrap_or_default();
                return self.history.judge_flushes(values.into_iter()).map_or(Ok(()), Err);
            }
        }
        Err(format!("no convergence after a blackout: {:#?}", self.statuses()))
    }
}

/// How long faults go on, in microseconds.
const RUN_TIME: u64 = 2_500_000;
