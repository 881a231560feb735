//! Deliberate faults in the cores, each of which the simulation has to find: `--features sabotage`. `SIM_FAULT=Name`
//! looks for one only.
#![cfg(feature = "sabotage")]

use std::collections::BTreeMap;

use replication::{Fault, plant};
use sim::{
    Class,
    Promise::{self, P1, P2, P3, P5, P6, P7, P8, P9, P12, P14},
    run,
};

/// Where a fault shows, and as what. A write that is lost is seen as such (P1), by a read before that (P3), or by a
/// replica that passes for good without it (P5), whichever comes first; a difference that nobody knows of (P6) may
/// also end as a resync that never does (P7).
fn expected(fault: Fault) -> (Class, &'static [Promise]) {
    match fault {
        Fault::EarlyFlush | Fault::FlushHereOnly | Fault::ForgetForce | Fault::FlushWithoutGeneration => {
            (Class::PowerCut, &[P2])
        }
        // What was hot is copied again, so the source has to be lost as well.
        Fault::FlushOneVolume | Fault::UnflushedResync => (Class::Volumes, &[P2]),
        Fault::IgnoreQuorum | Fault::LateAcknowledgement => (Class::Base, &[P9]),
        Fault::MergeSplitBrain | Fault::DiscardOther | Fault::KeepLoser => (Class::SplitBrain, &[P8]),
        Fault::ReadOnce => (Class::Disks, &[P12]),
        Fault::TornCompare => (Class::Volumes, &[P3]),
        Fault::ReadFromTarget | Fault::UnorderedRead => (Class::Base, &[P3]),
        Fault::TrustOutdated => (Class::Base, &[P3, P5]),
        Fault::TrustReturning => (Class::Base, &[P3, P5, P7]),
        Fault::ForgetInFlight
        | Fault::ForgetMissed
        | Fault::ClearWhenAsked
        | Fault::SyncOverWrite
        | Fault::UnorderedApply
        | Fault::ForgetTail
        | Fault::EvictEarly
        | Fault::ForgetBitmapPage
        | Fault::LogAfterWrite
        | Fault::ForgetThird => (Class::Base, &[P6]),
        Fault::ServeUncounted => (Class::Base, &[P3, P5, P6, P7]),
        Fault::ReplayFenced => (Class::Base, &[P14]),
        Fault::SecondPrimary => (Class::Base, &[P1, P3, P5, P14]),
        Fault::EarlyAcknowledgement => (Class::Base, &[P1, P3, P5]),
        Fault::NoNewGeneration | Fault::UntoldGeneration => (Class::Base, &[P1, P3, P5, P6, P7]),
        Fault::ForgetCrash => (Class::Base, &[P1, P3, P5, P6]),
        Fault::KeepGivenUp => (Class::Operators, &[P1, P3, P5, P6]),
        #[expect(unreachable_patterns, reason = "for a fault that is added elsewhere")]
        _ => (Class::Base, &[P1, P2, P3, P5, P6, P7, P9, P14]),
    }
}

/// The instrument works: a core with any of these faults breaks the promise that the fault is about, within a thousand
/// seeds.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    let wanted = std::env::var("SIM_FAULT").ok();
    for &fault in Fault::ALL {
        if wanted.as_ref().is_some_and(|name| *name != format!("{fault:?}")) {
            continue;
        }
        let (mut class, promises) = expected(fault);
        if let Ok(name) = std::env::var("SIM_CLASS") {
            class = *Class::ALL.iter().find(|class| class.name() == name).expect("a class");
        }
        // Since the activity log, a replica that crashed vouches for nothing, and this fault shows rarely.
        let first = if fault == Fault::FlushWithoutGeneration { SEEDS } else { 0 };
        let mut others = BTreeMap::new();
        plant(Some(fault));
        let found = (first..first + SEEDS).find_map(|seed| {
            let failure = run(class, seed).err()?;
            // It is the planted fault that shows: without it, nothing does.
            plant(None);
            let innocent = run(class, seed).is_ok();
            plant(Some(fault));
            let right = innocent && promises.contains(&failure.broken.promise);
            *others.entry(failure.broken.promise).or_insert(0) += u32::from(!right);
            right.then_some(failure)
        });
        plant(None);
        match found {
            Some(failure) => {
                let text = failure.broken.to_string().chars().take(200).collect::<String>();
                println!("{fault:?}: {} seed {} (before: {others:?}): {text}", class.name(), failure.seed);
            }
            None => missed.push((fault, others)),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds, or as another fault so often: {missed:?}");
}

const SEEDS: u64 = 1_000;
