//! `cargo xtask test`: the stages in order, each with a headline, its duration and what passed.

mod cargo;
mod demo;
mod fuzz;
mod kernel;
mod libiscsi;
mod packages;
mod qemu;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use harness::target::Kind;

/// What the command line asks of the stages.
#[derive(Debug)]
pub(crate) struct Options {
    /// Whom the initiators talk to.
    pub(crate) kind: Kind,
    /// Write docs/libiscsi.md.
    pub(crate) write: bool,
    /// Only the libiscsi tests whose name contains this.
    pub(crate) only: Option<String>,
}

/// What a stage counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Tests or steps that passed.
    pub(crate) passed: usize,
    /// A line for the summary, where a number does not say enough.
    pub(crate) note: String,
    /// Tests that this machine cannot run, and why.
    pub(crate) skipped: Vec<String>,
}

impl Tally {
    fn passed(passed: usize) -> Self {
        Self { passed, ..Self::default() }
    }
}

/// One stage of the test.
#[derive(Debug)]
pub(crate) struct Stage {
    name: &'static str,
    headline: &'static str,
    run: fn(&Options) -> Result<Tally>,
}

/// Every stage, in the order in which a mistake is found soonest.
pub(crate) const ALL: [Stage; 15] = [
    Stage { name: "packages", headline: "the system packages that the tests use", run: packages::run },
    Stage { name: "fmt", headline: "formatting", run: cargo::fmt },
    Stage { name: "clippy", headline: "lints, warnings are errors", run: cargo::clippy },
    Stage { name: "doc", headline: "documentation, warnings are errors", run: cargo::doc },
    Stage { name: "tests", headline: "unit tests and simulations", run: cargo::tests },
    Stage { name: "planted", headline: "faults planted in the core are found", run: cargo::planted },
    Stage { name: "doctests", headline: "examples in the documentation", run: cargo::doctests },
    Stage { name: "recipes", headline: "raw bytes that broke other targets", run: cargo::recipes },
    Stage { name: "mirroring", headline: "three nodes, real processes", run: cargo::mirroring },
    Stage { name: "release", headline: "the release build that the initiators meet", run: cargo::release },
    Stage { name: "fuzz", headline: "seeded mutations against the decoders", run: fuzz::run },
    Stage { name: "libiscsi", headline: "libiscsi's conformance suite, test by test", run: libiscsi::run },
    Stage { name: "qemu", headline: "QEMU's block driver, with and without CHAP", run: qemu::run },
    Stage { name: "kernel", headline: "the Linux initiator in a virtual machine", run: kernel::run },
    Stage { name: "demo", headline: "evenkeel demo --check", run: demo::run },
];

/// Prints the stages.
pub(crate) fn list() {
    for stage in &ALL {
        println!("{:10} {}", stage.name, stage.headline);
    }
}

/// Runs the stages called `names`, or all, and stops at the first that fails.
///
/// # Errors
/// When a name is unknown or a stage fails.
pub(crate) fn run(names: &[String], options: &Options) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| ALL.iter().all(|stage| stage.name != **name)) {
        let known = ALL.each_ref().map(|stage| stage.name).join(", ");
        bail!("there is no stage {unknown}; the stages are {known}");
    }
    let chosen = ALL.iter().filter(|stage| names.is_empty() || names.iter().any(|name| name == stage.name));
    let (began, mut done) = (Instant::now(), Vec::new());
    for stage in chosen {
        println!("\n=== {}: {} ===", stage.name, stage.headline);
        let stage_began = Instant::now();
        let tally = (stage.run)(options).with_context(|| advice(stage.name))?;
        println!("--- {}: passed in {}", stage.name, seconds(stage_began.elapsed()));
        done.push((stage.name, stage_began.elapsed(), tally));
    }
    summarise(&done, began.elapsed());
    Ok(())
}

fn advice(name: &str) -> String {
    format!("stage {name} failed; run `cargo xtask test {name}` to repeat it alone. The cause")
}

fn summarise(done: &[(&str, Duration, Tally)], total: Duration) {
    println!("\n=== summary ===");
    for (name, duration, tally) in done {
        println!("{name:10} {:>8}  {:>5} passed  {}", seconds(*duration), tally.passed, tally.note);
        tally.skipped.iter().for_each(|skipped| println!("{name:10} SKIPPED {skipped}"));
    }
    let passed: usize = done.iter().map(|(_, _, tally)| tally.passed).sum();
    let skipped: usize = done.iter().map(|(_, _, tally)| tally.skipped.len()).sum();
    let run = passed - skipped;
    // The form of nextest's closing line, which CI looks for.
    println!("Summary [{:>8.3}s] {run} tests run: {run} passed, {skipped} skipped", total.as_secs_f64());
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
