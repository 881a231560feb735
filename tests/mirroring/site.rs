//! A cluster whose two disks are served by processes of their own, so that they can lose their power or fail.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context as _, Result};
use harness::{
    cluster::{Cluster, IQN, Layout, NODES},
    disk::{Behaviour, Disk},
    host::Host,
    load::Random,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::cluster::{ALPHA, BRAVO, identical_to};

/// Alpha and bravo with such disks, and charlie without one.
pub(crate) struct Site {
    // Dropped first: the kernel ends no process that waits for a disk.
    pub(crate) disks: [Disk; 2],
    pub(crate) cluster: Cluster,
    /// How far a Secondary may be behind what is acknowledged.
    lag: Duration,
    _dir: TempDir,
}

impl Site {
    /// The size of its volume.
    pub(crate) const SIZE_BYTES: u64 = 16 << 20;

    pub(crate) fn start(protocol: &str, behaviour: Behaviour, cuttable: bool, options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let layout = Layout { size_bytes: Self::SIZE_BYTES, protocol, disks: 2, cuttable, options };
        let binary = Path::new(env!("CARGO_BIN_EXE_evenkeel"));
        let mut cluster = Cluster::start_as(binary, dir.path(), &layout)?;
        cluster.wait_up_to_date()?;
        let mut swap = |node| {
            cluster.stop_node(node)?;
            Disk::over(&cluster.image(node), behaviour)
        };
        let disks = [swap(ALPHA)?, swap(BRAVO)?];
        cluster.start_node(ALPHA)?;
        cluster.start_node(BRAVO)?;
        cluster.wait_up_to_date()?;
        let lag = Duration::from_secs(if protocol == "C" { 0 } else { 5 });
        Ok(Self { disks, cluster, lag, _dir: dir })
    }

    pub(crate) fn host(&self, paths: &[usize], seed: u64) -> Host {
        let portals = paths.iter().map(|&node| self.cluster.portal(node)).collect();
        Host::new(IQN, portals, BLOCKS, DEPTH, seed)
    }

    pub(crate) fn power_off(&mut self, nodes: &[usize]) -> Result<()> {
        for &node in nodes {
            self.cluster.server(node).context("it runs")?.signal(Signal::KILL)?;
        }
        for &node in nodes {
            if let Some(disk) = self.disks.get_mut(node) {
                disk.power_off()?;
            }
        }
        nodes.iter().try_for_each(|&node| self.cluster.kill_node(node))
    }

    /// In any order, with pauses.
    pub(crate) fn power_on(&mut self, nodes: &[usize], random: &mut Random) -> Result<()> {
        let mut nodes = nodes.to_vec();
        while !nodes.is_empty() {
            let node = nodes.swap_remove(usize::try_from(random.below(nodes.len() as u64))?);
            if let Some(disk) = self.disks.get_mut(node) {
                disk.power_on()?;
            }
            self.cluster.start_node(node)?;
            thread::sleep(Duration::from_millis(random.below(500)));
        }
        Ok(())
    }

    /// Both replicas are good again, hold the same bytes, and they are the right ones.
    pub(crate) fn agree(&mut self, host: &mut Host) -> Result<()> {
        self.cluster.wait_up_to_date()?;
        identical_to(&self.cluster, Self::SIZE_BYTES, self.lag)?;
        host.read_everything()?;
        self.cluster.alive()
    }

    pub(crate) fn status(&self) -> String {
        let status =
            |node| self.cluster.evenkeel(node, &["status"]).unwrap_or_else(|error| error.to_string());
        let logs = self.disks.iter().map(Disk::log);
        (0..NODES.len()).map(status).chain(logs).collect::<Vec<_>>().join("\n")
    }
}

const BLOCKS: usize = 256;
const DEPTH: usize = 32;
