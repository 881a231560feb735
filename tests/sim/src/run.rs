//! Runs of a seed, by what they are about.

use replication::{DiskState, Verb};

use crate::{
    scenario::Class,
    verdict::{Broken, Failure, Promise, Report},
    world::World,
};

/// Runs a seed of a class to its end.
///
/// # Errors
/// When a promise is broken.
pub fn run(class: Class, seed: u64) -> Result<Report, Failure> {
    let mut world = World::new(class, seed);
    let scenario = Box::new(world.scenario.clone());
    match world.run() {
        Ok(()) => Ok(world.report()),
        Err(broken) => Err(Failure { seed, scenario, broken }),
    }
}

/// Runs a seed without faults, but with data of unknown origin on the first node's disk: it serves nobody until the
/// operator forces it, then every other replica takes everything from it. `None` where the seed's only Primary is
/// another node.
///
/// # Errors
/// When a promise is broken.
pub fn run_adopted(seed: u64) -> Result<Option<Report>, Failure> {
    let mut world = World::new(Class::Base, seed);
    let scenario = Box::new(world.scenario.clone());
    if world.scenario.pinned().is_some_and(|node| node != 0) {
        return Ok(None);
    }
    match world.run_adopted() {
        Ok(()) => Ok(Some(world.report())),
        Err(broken) => Err(Failure { seed, scenario, broken }),
    }
}

impl World {
    fn run(&mut self) -> Result<(), Broken> {
        match self.scenario.class {
            Class::SplitBrain => return self.split_brain(),
            Class::PowerCut => self.power_cuts()?,
            _ => self.play(RUN_TIME),
        }
        self.sound()?;
        self.heal();
        self.converge()?;
        self.judge()?;
        self.books_are_right();
        self.sound()?;
        if self.scenario.blackout { self.black_out() } else { Ok(()) }
    }

    fn run_adopted(&mut self) -> Result<(), Broken> {
        self.quiet = true;
        self.adopt(0);
        self.play(150_000);
        let good = |node: usize| self.devices(node).contains(&DiskState::UpToDate);
        if self.history.acknowledged + self.history.reads > 0 || (0..self.nodes.len()).any(good) {
            let what = format!("something is good before a human said so: {:#?}", self.statuses());
            return Err(Broken::new(Promise::P5, what));
        }
        self.ask(0, Verb::Primary { force: true });
        self.converge()?;
        self.judge()
    }

    /// Time passes; each time that all power has to fail, it does, and what was flushed is looked for (P2). What was
    /// not flushed may be gone, so the history begins anew.
    fn power_cuts(&mut self) -> Result<(), Broken> {
        let end = self.now + RUN_TIME;
        while self.now < end {
            self.play(end - self.now);
            self.sound()?;
            if !std::mem::take(&mut self.cut_due) {
                break;
            }
            self.turns += 1;
            self.faults += 1;
            self.note(|| "all power fails".to_owned());
            self.quiet = true;
            self.draining = true;
            self.blocked.clear();
            for client in 0..self.clients.len() {
                if let Some(id) = self.clients[client].busy.as_ref().map(|busy| busy.id) {
                    self.give_up(client, id);
                }
            }
            self.black_out()?;
            self.judge_before_the_cut()?;
            self.go_on_from_here();
        }
        Ok(())
    }

    /// Everything up to the cut happened to one register for each sector.
    fn judge_before_the_cut(&self) -> Result<(), Broken> {
        self.history.judge().map_or(Ok(()), |fault| {
            let promise = if fault.abandoned { Promise::P14 } else { Promise::P3 };
            Err(Broken::new(promise, fault.what))
        })
    }

    /// Initiators begin anew, with what the disks hold now.
    pub(crate) fn go_on_from_here(&mut self) {
        let image = self.image(0);
        self.history.rebase(&image, self.now);
        (self.draining, self.dark, self.quiet, self.recovering) = (false, false, false, false);
        for client in 0..self.clients.len() {
            self.resume(client);
        }
        self.resume_nemesis();
    }
}

/// How long faults go on, in microseconds.
const RUN_TIME: u64 = 2_500_000;
