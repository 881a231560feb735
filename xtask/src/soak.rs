//! `cargo xtask soak`: the simulations, the fuzz subjects and the initiators, round after round, with new seeds.

mod simulation;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use harness::target::Kind;

use crate::{command, stage};

/// Goes on for `hours`, and stops at the first failure. The simulation has half of the time, or all of it where only
/// it is asked for; its seeds begin at `first`.
///
/// # Errors
/// When a round fails; the message holds the seed or the test.
pub(crate) fn run(hours: f64, only_simulation: bool, first: u64) -> Result<()> {
    let (began, length) = (Instant::now(), Duration::try_from_secs_f64(hours * 3600.0)?);
    let mut shown = simulation::Shown::from(first);
    if only_simulation {
        return shown.more(began + length);
    }
    stage::run(&["release".into()], &options())?;
    for round in 0_u32.. {
        if began.elapsed() > length {
            break;
        }
        println!("\n##### round {round}, {:.1} h of {hours} h #####", began.elapsed().as_secs_f64() / 3600.0);
        let in_round = || format!("round {round}");
        shown.more(Instant::now() + SIMULATION).with_context(in_round)?;
        for subject in ["pdu", "session", "scsi", "peer"] {
            // Every round has seeds of its own.
            let first = (u64::from(round) + 1) << 32;
            let mut fuzz = command::cargo(["run", "--release", "--quiet", "-p", "fuzz", "--", subject]);
            fuzz.args(["--count", "4000000000", "--seconds", "60", "--first", &first.to_string()]);
            command::run(&mut fuzz, "The seed to repeat it stands above.").with_context(in_round)?;
        }
        let stages = ["mirroring", "recipes", "libiscsi", "qemu", "kernel"].map(str::to_owned);
        stage::run(&stages, &options()).with_context(in_round)?;
    }
    Ok(())
}

fn options() -> stage::Options {
    stage::Options { kind: Kind::Evenkeel(command::binary()), write: false, only: None }
}

/// How long the simulation runs in each round: about as long as the rest of it.
const SIMULATION: Duration = Duration::from_mins(10);
