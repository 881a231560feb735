//! `tests/initiators/libiscsi.expected`: what may fail or be skipped, and how many tests pass at least.
//!
//! One line for each test that does not pass: `NAME fail REASON` (a client's fault, written by hand) or
//! `NAME skip REASON` (renewed by `--write`). `pass-min NUMBER` is raised by hand when more pass.

use std::{fmt::Write as _, fs};

use anyhow::{Context as _, Result};

use super::{Verdict, Verdicts};
use crate::command;

/// The file, read.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    pass_min: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    name: String,
    word: String,
    reason: String,
}

impl Expectation {
    /// Reads the file of the repository.
    pub(super) fn read() -> Result<Self> {
        let path = command::repository().join(PATH);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut expectation = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut fields = line.splitn(3, ' ');
            match (fields.next(), fields.next(), fields.next()) {
                (Some("pass-min"), Some(number), None) => expectation.pass_min = number.parse()?,
                (Some(name), Some(word @ ("fail" | "skip")), Some(reason)) => expectation.rows.push(Row {
                    name: name.to_owned(),
                    word: word.to_owned(),
                    reason: reason.to_owned(),
                }),
                _ => {
                    anyhow::bail!("{PATH}: `{line}` is neither `pass-min NUMBER` nor `NAME fail|skip REASON`")
                }
            }
        }
        Ok(expectation)
    }

    /// Everything in `verdicts` that this file does not foresee, one paragraph each.
    pub(super) fn surprises(&self, verdicts: &Verdicts, whole: bool) -> Vec<String> {
        let mut surprises: Vec<_> =
            verdicts.iter().filter_map(|(name, verdict)| self.surprise(name, verdict)).collect();
        let passed = super::count(verdicts, "pass");
        if whole && passed < self.pass_min {
            surprises.push(format!("only {passed} tests pass, expected at least {}", self.pass_min));
        }
        surprises
    }

    fn surprise(&self, name: &str, verdict: &Verdict) -> Option<String> {
        let expected = self.rows.iter().any(|row| row.name == name && row.word == verdict.word());
        match verdict {
            _ if expected => None,
            Verdict::Pass => None,
            Verdict::Hang => Some(format!("{name} hangs")),
            Verdict::Skip(reason) => Some(format!("{name} is skipped: {reason}")),
            Verdict::Fail(output) => Some(format!("{name} fails:\n{output}")),
        }
    }

    /// The same expectation with the skips that `verdicts` hold.
    pub(super) fn updated(mut self, verdicts: &Verdicts) -> Self {
        self.rows.retain(|row| row.word == "fail");
        let skips = verdicts.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Skip(reason) => {
                Some(Row { name: name.clone(), word: "skip".into(), reason: reason.clone() })
            }
            _ => None,
        });
        self.rows.extend(skips);
        self
    }

    /// Writes the file of the repository.
    pub(super) fn write(&self) -> Result<()> {
        let mut text = String::from(HEADING);
        writeln!(text, "pass-min {}", self.pass_min)?;
        for Row { name, word, reason } in &self.rows {
            writeln!(text, "{name} {word} {reason}")?;
        }
        fs::write(command::repository().join(PATH), text)?;
        Ok(())
    }
}

const PATH: &str = "tests/initiators/libiscsi.expected";
const HEADING: &str = "\
# What libiscsi's suite may come to (read by `cargo xtask test libiscsi`): tests that need not pass, and why.
# `fail` lines and `pass-min` are written by hand; `cargo xtask test libiscsi --write` renews the `skip` lines.
";

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not foreseen is told: failures, hangs, new skips, too few passes.
    #[test]
    fn surprises_are_told() {
        let expectation = Expectation::parse(
            "# a comment\npass-min 2\nA.One fail the client's fault\nB.Two skip no medium\n",
        )
        .unwrap();
        let verdicts: Verdicts = [
            ("A.One", Verdict::Fail("x".into())),
            ("B.Two", Verdict::Skip("no medium".into())),
            ("C.Three", Verdict::Pass),
            ("C.Four", Verdict::Hang),
        ]
        .map(|(name, verdict)| (name.to_owned(), verdict))
        .into();
        let surprises = expectation.surprises(&verdicts, true);
        assert_eq!(surprises, ["C.Four hangs", "only 1 tests pass, expected at least 2"]);
        assert_eq!(expectation.surprises(&verdicts, false), ["C.Four hangs"]);
    }

    /// The repository's file is well-formed.
    #[test]
    fn the_file_is_read() {
        let expectation = Expectation::read().unwrap();
        assert!(expectation.pass_min >= 180, "no other target passes more");
    }
}
