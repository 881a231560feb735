//! Nodes that do not come together: `status` says why, at both ends.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::{ALPHA, BRAVO, start};

/// The contract, `status` and `why`: a wrong secret is named as such, and not as a peer that does not answer.
#[test]
fn another_secret_is_named() -> Result<()> {
    let (mut cluster, dir) = start("C")?;
    cluster.stop_node(BRAVO)?;
    // In place: the file keeps its mode.
    fs::write(dir.path().join("cluster.secret"), "a secret that nobody else knows")?;
    cluster.start_node(BRAVO)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    for node in [ALPHA, BRAVO] {
        loop {
            let text = cluster.evenkeel(node, &["status", "db"])?;
            if text.contains(
                "cause: the other end closed the connection during authentication; the secrets may differ",
            ) {
                ensure!(text.contains("compare the configuration file, the secret"), "{text}");
                break;
            }
            ensure!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = cluster.server(node).context("it runs")?.log();
        ensure!(log.contains("does not know the secret of the cluster") && log.contains("claims="), "{log}");
        ensure!(!log.contains("that nobody else knows") && !log.contains("only this test knows"), "{log}");
    }
    Ok(())
}
