//! libiscsi's conformance suite (`iscsi-test-cu`), test by test, each against a target that nobody has touched.
//!
//! What may fail or be skipped stands in `tests/initiators/libiscsi.expected`, with the reason.

mod expectation;
mod page;
mod suite;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};
use harness::target::Kind;

use self::{
    expectation::Expectation,
    suite::{Verdict, run_one},
};
use super::{Options, Tally};

/// What every test came to, by name.
type Verdicts = BTreeMap<String, Verdict>;

/// Runs the suite and compares it with what is expected.
pub(super) fn run(options: &Options) -> Result<Tally> {
    let mut names = suite::names()?;
    if let Some(part) = &options.only {
        names.retain(|name| name.contains(part.as_str()));
    }
    ensure!(!names.is_empty(), "no test of the suite is called so");
    let verdicts = run_all(&options.kind, &names)?;
    let whole = options.only.is_none();
    let evenkeel = matches!(options.kind, Kind::Evenkeel(_));
    print_counts(&verdicts);
    if !evenkeel {
        print_bad(&verdicts);
        return Ok(tally(&verdicts));
    }
    if options.write && whole {
        Expectation::read()?.updated(&verdicts).write()?;
        page::write(&verdicts)?;
    }
    let expectation = Expectation::read()?;
    let surprises = expectation.surprises(&verdicts, whole);
    if !surprises.is_empty() {
        bail!(
            "{}\n\n{} surprise(s). Repeat one with `cargo xtask test libiscsi --only NAME`. If what you see is \
             right, `cargo xtask test libiscsi --write` renews docs/libiscsi.md and the list of skips.",
            surprises.join("\n\n"),
            surprises.len()
        );
    }
    Ok(tally(&verdicts))
}

/// Runs `names` on two targets at a time.
fn run_all(kind: &Kind, names: &[String]) -> Result<Verdicts> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Verdicts::new());
    let work = || -> Result<()> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = run_one(kind, name).with_context(|| format!("at the test {name}"))?;
            println!("{:7} {name}", verdict.word());
            verdicts.lock().expect("nobody panics with the lock").insert(name.clone(), verdict);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(verdicts.into_inner().expect("the workers have ended"))
}

fn tally(verdicts: &Verdicts) -> Tally {
    Tally { passed: count(verdicts, "pass"), note: counts(verdicts), ..Tally::default() }
}

fn count(verdicts: &Verdicts, word: &str) -> usize {
    verdicts.values().filter(|verdict| verdict.word() == word).count()
}

fn counts(verdicts: &Verdicts) -> String {
    let part = |word| format!("{} {word}", count(verdicts, word));
    ["pass", "fail", "hang", "skip"].map(part).join(", ")
}

fn print_counts(verdicts: &Verdicts) {
    println!("\n{} of {}", counts(verdicts), verdicts.len());
}

fn print_bad(verdicts: &Verdicts) {
    for (name, verdict) in verdicts {
        if let Verdict::Skip(why) | Verdict::Fail(why) = verdict {
            println!("{:5} {name}: {}", verdict.word(), why.lines().next().unwrap_or_default());
        }
    }
}

/// Targets that run at once: one for each core of a small machine.
const AT_ONCE: usize = 2;
