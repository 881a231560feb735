//! The project's own commands: `cargo xtask test`, `soak` and `bench`.
//!
//! `cargo xtask test` is what CI runs and what a newcomer runs on a bare machine; its stages stand in
//! [`stage::ALL`], in order.

mod bench;
mod command;
mod soak;
mod stage;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use harness::target::Kind;

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run everything that CI runs, or only some stages, and stop at the first that fails.
    Test {
        /// The stages to run, by name; all without.
        stages: Vec<String>,
        /// Only list the stages.
        #[arg(long)]
        list: bool,
        /// Write what the libiscsi stage found into docs/libiscsi.md and its expectation file.
        #[arg(long)]
        write: bool,
        /// Only the libiscsi tests whose name contains this text.
        #[arg(long)]
        only: Option<String>,
        /// Whom the initiators talk to.
        #[arg(long, value_enum, default_value_t = Against::Evenkeel)]
        target: Against,
    },
    /// Run the simulation, the initiators and the mirroring over and over with new seeds.
    Soak {
        /// How long, in hours.
        #[arg(long, default_value_t = 1.0)]
        hours: f64,
        /// Only the simulation of the replication core.
        #[arg(long)]
        simulation: bool,
        /// The first seed of the simulation. Those below are what `cargo xtask test` runs.
        #[arg(long, default_value_t = 10_000)]
        first: u64,
    },
    /// Measure in interleaved runs, and write the tables into benches/README.md.
    Bench {
        /// What to measure; everything without.
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
        /// Pairs of runs per row of the table.
        #[arg(long, default_value_t = 5)]
        pairs: usize,
        /// Seconds per run.
        #[arg(long, default_value_t = 4)]
        seconds: u32,
        /// Print only, leave benches/ as it is.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which target a stage with initiators starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The product, built for release.
    Evenkeel,
    /// Debian's tgt: shows what the tests themselves do.
    Tgt,
}

impl Against {
    fn kind(self) -> Kind {
        match self {
            Self::Evenkeel => Kind::Evenkeel(command::binary()),
            Self::Tgt => Kind::Tgt,
        }
    }
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Test { list: true, .. } => {
            stage::list();
            Ok(())
        }
        Verb::Test { stages, write, only, target, list: false } => {
            stage::run(&stages, &stage::Options { kind: target.kind(), write, only })
        }
        Verb::Soak { hours, simulation, first } => soak::run(hours, simulation, first),
        Verb::Bench { parts, pairs, seconds, dry_run } => {
            bench::run(&bench::Plan { parts, pairs, seconds }, dry_run)
        }
    };
    report(outcome)
}

fn report(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
