//! A cluster for one test, and sessions to its nodes.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use harness::{
    cluster::{Cluster, IQN},
    image,
    raw::{Login, Session, Task, cdb},
};
use tempfile::TempDir;

/// Nodes by their ids.
pub(crate) const ALPHA: usize = 0;
/// The second node with a disk.
pub(crate) const BRAVO: usize = 1;
/// The node without a disk.
pub(crate) const CHARLIE: usize = 2;
/// The size of the volume.
pub(crate) const SIZE_BYTES: u64 = 32 << 20;
/// Writes stay within the first MiB, so that at depth 64 most of them overlap others in flight.
pub(crate) const SPAN_BLOCKS: u64 = 2048;
/// Writes in flight.
pub(crate) const DEPTH: usize = 64;

/// Starts a cluster in `protocol` whose replicas are up to date.
pub(crate) fn start(protocol: &str) -> Result<(Cluster, TempDir)> {
    let dir = tempfile::tempdir()?;
    let cluster =
        Cluster::start(Path::new(env!("CARGO_BIN_EXE_evenkeel")), dir.path(), SIZE_BYTES, protocol)?;
    cluster.wait_up_to_date()?;
    cluster.wait_connected()?;
    Ok((cluster, dir))
}

/// A session to the volume through `node`, with no unit attention left.
pub(crate) fn session(cluster: &Cluster, node: usize) -> Result<Session> {
    let isid = u8::try_from(node)? + 1;
    let mut session =
        Session::login(cluster.portal(node), &Login::normal(IQN).from_initiator("load", isid), 0)?;
    session.settle()?;
    Ok(session)
}

/// SYNCHRONIZE CACHE of the whole volume.
pub(crate) fn flush(session: &mut Session) -> Result<()> {
    session.settle()?;
    let outcome = session.run(&Task::new(cdb::ten(0x35, 0, 0)))?;
    ensure!(outcome.status == 0, "flush: {outcome:?}");
    Ok(())
}

/// Waits until the backing files of alpha and bravo are identical.
///
/// # Errors
/// The first byte that differs when the patience is over.
pub(crate) fn identical(cluster: &Cluster, patience: Duration) -> Result<()> {
    identical_to(cluster, SIZE_BYTES, patience)
}

/// The same for a volume of `size_bytes`.
pub(crate) fn identical_to(cluster: &Cluster, size_bytes: u64, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let compared = image::compare(&cluster.image(ALPHA), &cluster.image(BRAVO), size_bytes);
        if compared.is_ok() || Instant::now() > deadline {
            return compared;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
