//! What a crash costs: no more is copied than the activity log and the bitmaps tell.

use sim::{Crash, run_crash};

/// P7: after a crash, with or without a loss of power, a node copies at most what was hot or dirty, and that is a part
/// of the volume.
#[test]
fn a_crash_copies_what_the_books_tell() {
    let (mut sum, mut failed) = (Crash::default(), Vec::new());
    for seed in 0..300 {
        match run_crash(seed) {
            Ok(crash) if crash.copied > crash.told => failed.push(format!("seed {seed}: {crash:?}")),
            Ok(crash) => {
                sum.told += crash.told;
                sum.copied += crash.copied;
                sum.whole += crash.whole;
            }
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    println!("{sum:?}");
    assert!(failed.is_empty(), "{} seeds failed: {}", failed.len(), failed.join("\n"));
    assert!(sum.copied > 0 && sum.told * 2 < sum.whole, "this shows nothing: {sum:?}");
}
