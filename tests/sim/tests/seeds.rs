//! Clusters of every kind, seed by seed. `SIM_SEED=n` runs one, `SIM_SEEDS=a..b` a range, `SIM_TRACE=1` tells all.

use sim::{run, run_adopted};

/// Seeds that once failed: replicas differed (3162), stale data came back (3898), three replicas each waited for
/// another (2815), a source never answered (1106), a split brain was none (1698), a Primary whose own replica was
/// old passed for the best (5817, 5798), an earlier Primary passed for the last one (4341).
const ONCE_FAILED: [u64; 8] = [3162, 3898, 2815, 1106, 1698, 5817, 5798, 4341];

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        return vec![seed.parse().expect("SIM_SEED is a number")];
    }
    let Ok(text) = std::env::var("SIM_SEEDS") else { return (0..300).chain(ONCE_FAILED).collect() };
    let (first, end) = text.split_once("..").expect("SIM_SEEDS is a..b");
    (first.parse().expect("a number")..end.parse().expect("a number")).collect()
}

/// P1 to P5, P7, P9, P10, P14: whatever breaks, the history is that of one register per sector, and the replicas are
/// equal in the end.
#[test]
fn promises_hold() {
    let (mut acknowledged, mut reads, mut unknown, mut faults, mut time, mut failed) =
        (0, 0, 0, 0, 0, Vec::new());
    for seed in seeds() {
        match run(seed) {
            Ok(report) => {
                acknowledged += report.acknowledged;
                reads += report.reads;
                unknown += report.unknown;
                faults += report.faults;
                time += report.time;
            }
            Err(fault) => failed.push(fault),
        }
    }
    println!(
        "{acknowledged} acknowledged writes, {reads} reads, {unknown} unknown outcomes, {faults} faults, {} s",
        time / 1_000_000
    );
    assert!(failed.is_empty(), "{} seeds failed, the first: {}", failed.len(), failed.join("\n\n"));
}

/// A seed means the same each time.
#[test]
fn a_seed_replays_exactly() {
    for seed in 0..5 {
        assert_eq!(format!("{:?}", run(seed)), format!("{:?}", run(seed)), "seed {seed}");
    }
}

/// P5: data of unknown origin is nobody's until an operator says so; then it is everyone's, on fresh replicas too.
#[test]
fn adopted_data_waits_for_a_human_and_reaches_everyone() {
    let (mut runs, mut failed) = (0, Vec::new());
    for seed in 0..40 {
        match run_adopted(seed) {
            Ok(report) => runs += u32::from(report.is_some_and(|report| report.reads > 0)),
            Err(fault) => failed.push(fault),
        }
    }
    assert!(failed.is_empty(), "{} seeds failed, the first: {}", failed.len(), failed[0]);
    assert!(runs > 20, "only {runs} seeds showed anything");
}
