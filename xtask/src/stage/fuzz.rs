//! Hostile bytes: ten million seeded mutations of iSCSI PDUs, and as many of everything else as time allows.

use anyhow::{Context as _, Result};

use super::{Options, Tally};
use crate::command;

/// Runs each subject of `fuzz/`.
pub(super) fn run(_options: &Options) -> Result<Tally> {
    for (subject, count, seconds) in SUBJECTS {
        let mut fuzz =
            command::cargo(["run", "--release", "--quiet", "-p", "fuzz", "--", subject, "--count", count]);
        if let Some(seconds) = seconds {
            fuzz.args(["--seconds", seconds]);
        }
        print!("{subject}: ");
        command::run(&mut fuzz, "The seed to repeat it stands above.").with_context(|| subject)?;
    }
    Ok(Tally::passed(SUBJECTS.len()))
}

/// A subject, how many cases, and after how many seconds to stop sooner.
const SUBJECTS: [(&str, &str, Option<&str>); 4] = [
    ("pdu", "10000000", None),
    ("session", "10000000", Some("20")),
    ("scsi", "10000000", Some("15")),
    ("peer", "10000000", Some("10")),
];
