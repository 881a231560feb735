//! The newcomer's first command must work: `evenkeel demo --check`.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Options, Tally};
use crate::command;

/// Runs the release build's demonstration and expects its verdict.
pub(super) fn run(_options: &Options) -> Result<Tally> {
    let dir = tempfile::tempdir()?;
    let mut demo = Command::new(command::binary());
    demo.args(["demo", "--check", "--dir"]).arg(dir.path());
    let output = command::run_within(&mut demo, PATIENCE)?;
    let output = output.with_context(|| format!("no verdict within {} s", PATIENCE.as_secs()))?;
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the demonstration ended with {}", output.status);
    Ok(Tally::passed(1))
}

/// The promise is two minutes.
const PATIENCE: Duration = Duration::from_mins(2);
