//! The stages that cargo does: formatting, lints, documentation, tests.

use std::{fs, process::Command};

use anyhow::Result;
use harness::disk::SKIPPED;

use super::{Options, Tally};
use crate::command;

pub(super) fn fmt(_options: &Options) -> Result<Tally> {
    command::run(&mut command::cargo(["fmt", "--all", "--check"]), "Run `cargo fmt --all`.")?;
    Ok(Tally::passed(1))
}

pub(super) fn clippy(_options: &Options) -> Result<Tally> {
    let mut clippy = command::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    command::run(&mut clippy, "Each warning above says what to write instead.")?;
    Ok(Tally::passed(1))
}

pub(super) fn doc(_options: &Options) -> Result<Tally> {
    let mut doc = command::cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    command::run(&mut doc, "A link or a tag in a doc comment is wrong.")?;
    Ok(Tally::passed(1))
}

/// Unit tests and simulations: everything but the tests with a stage of their own.
pub(super) fn tests(_options: &Options) -> Result<Tally> {
    let others = format!("not ({})", SEPARATE.map(|name| format!("binary(={name})")).join(" or "));
    if has_nextest() {
        nextest(&["--workspace", "-E", &others])
    } else {
        test(&["--workspace", "--lib", "--bins"])
    }
}

/// Faults planted in the replication core, which the simulation has to find.
pub(super) fn planted(_options: &Options) -> Result<Tally> {
    let mut test = command::cargo([
        "test",
        "-p",
        "sim",
        "--features",
        "sabotage",
        "--test",
        "faults",
        "--",
        "--nocapture",
    ]);
    let lines = command::run_and_keep(&mut test, "The faults that were missed stand above.", |line| {
        line.contains(": ") && line.contains(" seed ") && line.contains("(before:")
    })?;
    let note = "faults found, each for its own reason".to_owned();
    Ok(Tally { passed: lines.len(), note, ..Tally::default() })
}

pub(super) fn doctests(_options: &Options) -> Result<Tally> {
    test(&["--workspace", "--doc"])
}

pub(super) fn recipes(_options: &Options) -> Result<Tally> {
    separate("initiators")
}

pub(super) fn mirroring(_options: &Options) -> Result<Tally> {
    separate("mirroring")
}

pub(super) fn release(_options: &Options) -> Result<Tally> {
    command::run(&mut command::cargo(["build", "--release", "--bins"]), "The release build must pass.")?;
    Ok(Tally::passed(1))
}

/// One integration test of the daemon's package.
fn separate(name: &str) -> Result<Tally> {
    if has_nextest() {
        nextest(&["-p", "evenkeel", "--test", name])
    } else {
        test(&["-p", "evenkeel", "--test", name])
    }
}

fn has_nextest() -> bool {
    command::find("cargo-nextest").is_some()
}

fn nextest(arguments: &[&str]) -> Result<Tally> {
    let mut nextest = command::cargo(["nextest", "run", "--no-fail-fast"]);
    nextest.args(arguments);
    let (mut tally, lines) = tests_of(&mut nextest, |line| line.trim_start().starts_with("Summary ["))?;
    tally.note = lines.last().map(|line| line.trim().to_owned()).unwrap_or_default();
    Ok(tally)
}

/// Without nextest, cargo's own runner.
fn test(arguments: &[&str]) -> Result<Tally> {
    let mut test = command::cargo(["test", "--no-fail-fast"]);
    test.args(arguments);
    Ok(tests_of(&mut test, |line| line.starts_with("test result:"))?.0)
}

/// Runs tests, counts by the closing lines, which are returned too, and takes down what this machine could not run.
fn tests_of(runner: &mut Command, closing: fn(&str) -> bool) -> Result<(Tally, Vec<String>)> {
    let told = tempfile::NamedTempFile::new()?;
    runner.env(SKIPPED, told.path());
    let lines = command::run_and_keep(runner, "The failures stand above.", closing)?;
    let passed = lines.iter().map(|line| count_before(line, " passed")).sum();
    let skipped = fs::read_to_string(told.path())?.lines().map(str::to_owned).collect();
    Ok((Tally { passed, skipped, ..Tally::default() }, lines))
}

/// The number that stands before `word` in `line`.
fn count_before(line: &str, word: &str) -> usize {
    let before = line.split_once(word).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Integration tests that have a stage of their own.
const SEPARATE: [&str; 2] = ["initiators", "mirroring"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The closing lines of both runners are understood.
    #[test]
    fn closing_lines_are_counted() {
        assert_eq!(count_before("Summary [   0.017s] 41 tests run: 40 passed, 1 skipped", " passed"), 40);
        assert_eq!(count_before("test result: ok. 3 passed; 0 failed; 0 ignored;", " passed"), 3);
        assert_eq!(count_before("nothing of the kind", " passed"), 0);
    }
}
