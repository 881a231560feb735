//! One test of `iscsi-test-cu`: started, watched, its output read.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};
use harness::target::{Kind, Spec, Target};

use crate::command;

/// What a test came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passed.
    Pass,
    /// It failed, with what the suite printed.
    Fail(String),
    /// It did not end in time.
    Hang,
    /// It was not applicable, with the suite's reason.
    Skip(String),
}

impl Verdict {
    /// One word for tables.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
            Self::Hang => "hang",
            Self::Skip(_) => "skip",
        }
    }

    /// Reads the output of one test.
    fn read(succeeded: bool, output: &str) -> Self {
        let skipped = output.lines().find_map(|line| line.trim().strip_prefix("[SKIPPED]"));
        let ran = output.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.len() == 6 && fields[..4] == ["tests", "1", "1", "1"] && fields[4] == "0"
        });
        match skipped {
            Some(reason) if succeeded && ran => Self::Skip(reason.trim().to_owned()),
            None if succeeded && ran => Self::Pass,
            _ => Self::Fail(essence(output)),
        }
    }
}

/// The lines that tell why, without the suite's banner.
fn essence(output: &str) -> String {
    let noise = |line: &&str| {
        let line = line.trim();
        line.is_empty() || line.contains("CUnit") || line.starts_with("http") || line.starts_with("Elapsed")
    };
    output.lines().filter(|line| !noise(line)).collect::<Vec<_>>().join("\n")
}

/// The names of all tests, `Suite.Test`.
pub(super) fn names() -> Result<Vec<String>> {
    let list = command::output(Command::new("iscsi-test-cu").arg("--list"))?;
    let tests = list.lines().filter_map(|line| line.strip_prefix("ALL."));
    Ok(tests.filter(|name| name.contains('.')).map(str::to_owned).collect())
}

/// Runs the test `name` against a fresh target. A test that wants another kind of volume gets it.
pub(super) fn run_one(kind: &Kind, name: &str) -> Result<Verdict> {
    let verdict = run_on(kind, name, "")?;
    let wants = |word: &str| matches!(&verdict, Verdict::Skip(reason) if reason.contains(word));
    match kind {
        Kind::Evenkeel(_) if wants("LBPPB") => run_on(kind, name, "physical-block-size = 4096"),
        Kind::Evenkeel(_) if wants("write-protected") => run_on(kind, name, "read-only = true"),
        _ => Ok(verdict),
    }
}

fn run_on(kind: &Kind, name: &str, volume_lines: &'static str) -> Result<Verdict> {
    let dir = tempfile::tempdir()?;
    let mut target = Target::start(kind, &Spec { volume_lines, ..Spec::new(dir.path(), SIZE_BYTES) })?;
    let url = target.url();
    let mut suite = Command::new("iscsi-test-cu");
    suite.args(["--dataloss", "--allow-sanitize", "--normal", "--fail", "--test"]);
    suite.arg(format!("ALL.{name}")).arg(&url).current_dir(dir.path());
    if name.starts_with("Multipath") {
        // A second path: one more session to the same unit.
        suite.arg(&url);
    }
    let Some(output) = command::run_within(&mut suite, PATIENCE)? else {
        return Ok(Verdict::Hang);
    };
    target.server().alive().context("the target died under the test")?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(Verdict::read(output.status.success(), &text))
}

/// Small enough for READ(6) to meet the end of the medium, large enough for every test.
const SIZE_BYTES: u64 = 256 << 20;
/// The slowest test takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(45);

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str =
        "suites 1 1 n/a 0 0\n tests      1      1      1      0        0\nasserts 5 5 5 0 n/a";

    /// Pass, skip and failure are told apart, and a suite that did not run is a failure.
    #[test]
    fn verdicts() {
        assert_eq!(Verdict::read(true, SUMMARY), Verdict::Pass);
        let skipped = format!("    [SKIPPED] SANITIZE is not implemented.\n{SUMMARY}");
        assert_eq!(Verdict::read(true, &skipped), Verdict::Skip("SANITIZE is not implemented.".into()));
        assert!(matches!(Verdict::read(false, SUMMARY), Verdict::Fail(_)));
        assert!(matches!(Verdict::read(true, "tests 1 0 0 0 0"), Verdict::Fail(_)));
    }
}
