//! Each acknowledgement mode leaves the same bytes on both replicas.

use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::load::{Load, Until};

use crate::cluster::{ALPHA, DEPTH, SPAN_BLOCKS, flush, identical, session, start};

/// P4: overlapping writes in flight, 64 at a time, have one order on both replicas, in each mode.
#[test]
fn overlapping_writes_keep_their_order() -> Result<()> {
    for (seed, protocol) in [(1, "A"), (2, "B"), (3, "C")] {
        let (mut cluster, _dir) = start(protocol)?;
        let mut session = session(&cluster, ALPHA)?;
        let mut load = Load::new(seed, SPAN_BLOCKS, DEPTH);
        load.run(&mut session, Until::Writes(4000)).with_context(|| format!("mode {protocol}"))?;
        flush(&mut session)?;
        // Only mode C promises the peer's disk at this moment.
        let patience = if protocol == "C" { Duration::ZERO } else { Duration::from_secs(10) };
        identical(&cluster, patience).with_context(|| format!("mode {protocol}, seed {seed}"))?;
        cluster.alive()?;
    }
    Ok(())
}

/// A mode is changed while writes are under way, again and again; nothing is lost on the way.
#[test]
fn the_mode_changes_under_load() -> Result<()> {
    let (mut cluster, _dir) = start("C")?;
    let mut session = session(&cluster, ALPHA)?;
    let mut load = Load::new(4, SPAN_BLOCKS, DEPTH);
    for protocol in ["A", "C", "B", "A", "B", "C"] {
        load.run(&mut session, Until::Writes(300))?;
        std::thread::scope(|scope| {
            let set =
                scope.spawn(|| cluster.evenkeel(ALPHA, &["set", "db", &format!("protocol={protocol}")]));
            load.run(&mut session, Until::Writes(300))?;
            set.join().expect("set does not panic").map(drop)
        })?;
    }
    flush(&mut session)?;
    identical(&cluster, Duration::ZERO).context("the last mode is C")?;
    cluster.alive()
}
