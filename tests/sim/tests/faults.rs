//! Deliberate faults in the cores, each of which the simulation has to find: `--features sabotage`.
#![cfg(feature = "sabotage")]

use replication::{Fault, plant};
use sim::run;

/// The instrument works: a core with any of these faults breaks a promise within four thousand seeds.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for &fault in Fault::ALL {
        plant(Some(fault));
        let found = (0..SEEDS).find_map(|seed| run(seed).err().map(|message| (seed, message)));
        plant(None);
        match found {
            Some((seed, message)) => {
                println!("{fault:?}: seed {seed}: {}", message.chars().take(300).collect::<String>());
            }
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

const SEEDS: u64 = 4_000;
