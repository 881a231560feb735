//! Clusters of every kind, seed by seed. `SIM_SEED=n` runs one, `SIM_SEEDS=a..b` a range, `SIM_TRACE=1` tells all.

use sim::run;

fn range() -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let seed = seed.parse().expect("SIM_SEED is a number");
        return seed..seed + 1;
    }
    let text = std::env::var("SIM_SEEDS").unwrap_or_else(|_| "0..300".to_owned());
    let (first, end) = text.split_once("..").expect("SIM_SEEDS is a..b");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// P1 to P5, P7, P9, P10, P14: whatever breaks, the history is that of one register per sector, and the replicas are
/// equal in the end.
#[test]
fn promises_hold() {
    let (mut acknowledged, mut reads, mut unknown, mut faults, mut time, mut failed) =
        (0, 0, 0, 0, 0, Vec::new());
    for seed in range() {
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
