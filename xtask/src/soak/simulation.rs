//! The simulation on all processors: new seeds of every class, one after the other, and what they showed.

use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use anyhow::{Result, bail};
use sim::{Class, Sum};

/// What the runs so far showed.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Seeds below this one were run, in each class.
    next: u64,
    of_class: BTreeMap<&'static str, Sum>,
    total: Sum,
}

impl Shown {
    /// Nothing yet; `first` is the first seed.
    pub(super) fn from(first: u64) -> Self {
        Self { next: first, ..Self::default() }
    }

    /// Runs seeds from `next` on until `deadline`.
    ///
    /// # Errors
    /// When a promise is broken; the message names the class and the seed.
    pub(super) fn more(&mut self, deadline: Instant) -> Result<()> {
        let (next, failed) = (AtomicU64::new(self.next), AtomicBool::new(false));
        let (results, reports) = mpsc::channel();
        let broken = thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                let (results, next, failed) = (results.clone(), &next, &failed);
                scope.spawn(move || {
                    while Instant::now() < deadline && !failed.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        for &class in Class::ALL {
                            let outcome = sim::run(class, seed);
                            failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                            // Whoever counts is there until the last of these threads has ended.
                            let _ = results.send((class, seed, outcome));
                        }
                    }
                });
            }
            drop(results);
            let mut broken = Vec::new();
            for (class, seed, outcome) in reports {
                self.next = self.next.max(seed + 1);
                match outcome {
                    Ok(report) => {
                        self.of_class.entry(class.name()).or_default().add(&report);
                        self.total.add(&report);
                    }
                    Err(failure) => broken.push(format!("class {}, {failure}", class.name())),
                }
            }
            broken
        });
        if !broken.is_empty() {
            bail!("{}", broken.join("\n"));
        }
        self.print();
        Ok(())
    }

    fn print(&self) {
        for (class, sum) in &self.of_class {
            println!("{class}: {sum}");
        }
        println!("all classes, seeds below {}: {}", self.next, self.total);
    }
}
