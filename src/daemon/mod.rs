//! The daemon: starts shards, resources, peers and listeners in order, and stops them in reverse.

mod assemble;
mod node;
pub mod secrets;

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use ops::{
    config::{self, Config, Identity},
    metrics::{Counters, Latencies},
};
use replication::{Event, authenticate};
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
    time::timeout,
};
use tracing::{info, warn};

pub use assemble::{disk_config, resolve};
pub use node::{Node, Resource, portal_group};

use crate::{
    admin::View,
    disk::Ring,
    peer::{self, Directory},
    shard::Shard,
    volume::Start,
};
use assemble::Common;

/// A node with its threads, from its start to its stop.
#[derive(Debug)]
pub struct Daemon {
    node: Node,
    threads: Vec<JoinHandle<()>>,
    doors: JoinSet<()>,
    directory: Directory,
    proof: Arc<authenticate::Identity>,
    identity: Identity,
    counters: Arc<Counters>,
    latencies: Vec<Arc<Latencies>>,
}

impl Daemon {
    /// Opens the disks and starts the resources. Nobody can reach them before a listener is given to [`Self::open`].
    ///
    /// # Errors
    /// When a secret or an address of the configuration is of no use, or no volume can be served for want of a disk.
    pub async fn start(config: Config, name: &str) -> anyhow::Result<Self> {
        let config = Arc::new(config);
        let own = config.node(name).with_context(|| format!("the configuration has no node {name:?}"))?;
        let secret = secrets::cluster(&config.cluster)?;
        let bytes = secret.as_ref().map_or(&[][..], config::Secret::bytes).to_vec();
        let proof = peer::identity(&config.cluster.name, own.id, authenticate::Secret::new(bytes))
            .context("the system gives no random bytes")?;
        let directory = Directory::default();
        let identity = config.identity(secret.as_ref());
        let counters = Arc::<Counters>::default();
        let common = Common {
            config: &config,
            node: own,
            identity,
            proof: Arc::clone(&proof),
            counters: Arc::clone(&counters),
        };
        let starts = (0..)
            .zip(&config.resources)
            .map(|(place, resource)| common.start(place, resource))
            .collect::<anyhow::Result<Vec<Start>>>()?;
        something_is_served(&config, &starts)?;
        let latencies: Vec<_> = starts.iter().map(|start| Arc::clone(&start.latencies)).collect();
        let (shards, threads) = start_shards(starts.len())?;
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let mut resources = Vec::with_capacity(starts.len());
        for (start, shard) in starts.into_iter().zip(shards.iter().cycle()) {
            resources.push(run(start, shard, &directory, &events).await);
        }
        let node = Node { config: Arc::clone(&config), name: name.to_owned(), resources, events };
        let doors = JoinSet::new();
        Ok(Self { node, threads, doors, directory, proof, identity, counters, latencies })
    }

    /// What happened to the node as a whole.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// What operators see of the node.
    #[must_use]
    pub fn view(&self) -> View {
        View::new(self.node.clone(), self.identity, self.counters(), self.latencies.clone())
    }

    /// The running node.
    #[must_use]
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// Runs a listener until the node stops.
    pub fn open(&mut self, door: impl Future<Output = ()> + Send + 'static) {
        self.doors.spawn(door);
    }

    /// Takes calls of peers, if the configuration says where.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn listen_to_peers(&mut self) -> anyhow::Result<()> {
        let Some(own) = self.node.config.node(&self.node.name) else { return Ok(()) };
        let Some(address) = &own.replication else { return Ok(()) };
        let listener = peer::Listener::bind(
            resolve(address)?,
            Arc::clone(&self.proof),
            self.directory.clone(),
            self.counters(),
        )
        .await
        .with_context(|| format!("cannot listen for peers on {address}"))?;
        self.open(listener.run());
        Ok(())
    }

    /// Finishes what is in flight, closes the disks and ends the threads. A thread with a disk that does not answer is left
    /// behind, to end with the process.
    pub async fn stop(self) {
        let Self { node, threads, mut doors, .. } = self;
        doors.shutdown().await;
        // All at once: each has its own initiators, peers and disks to wait for.
        let stop = async |resource: &Resource| {
            resource.stop().await;
            info!(resource = resource.name, "stopped");
        };
        join_all(node.resources.iter().map(stop)).await;
        for resource in &node.resources {
            resource.shard.end().await;
        }
        let joined =
            tokio::task::spawn_blocking(|| threads.into_iter().map(JoinHandle::join).all(|end| end.is_ok()));
        match timeout(THREADS_MAX, joined).await {
            Ok(Ok(true)) => {}
            Ok(_) => warn!("a shard's thread ended with a panic"),
            // The resources have stopped: what is left is with a disk, or with a lookup of a host name.
            Err(_) => warn!("a shard's thread waits for a disk that does not answer; leaving without it"),
        }
    }
}

async fn run(
    start: Start,
    shard: &Shard,
    directory: &Directory,
    events: &broadcast::Sender<(usize, Event)>,
) -> Resource {
    let (control, requests) = mpsc::channel(REQUESTS_MAX);
    let (name, place) = (start.name.clone(), start.place);
    let accepted = start.peers.iter().map(|peer| directory.admit(&name, peer.peer)).collect();
    let events = events.clone();
    shard.run(move |local| local.add(place, start.run(accepted, requests, events))).await;
    Resource { name, place, shard: shard.clone(), control }
}

/// A node without anything to serve does not start; a part that cannot be served keeps back nothing else.
fn something_is_served(config: &Config, starts: &[Start]) -> anyhow::Result<()> {
    let volumes: usize = config.resources.iter().map(|resource| resource.volumes.len()).sum();
    let unserved: Vec<_> = starts.iter().flat_map(|start| &start.unserved).map(String::as_str).collect();
    if volumes > 0 && unserved.len() == volumes {
        bail!("there is nothing to serve: {}", unserved.join("; "));
    }
    Ok(())
}

/// One shard per core, but no more than there are resources.
fn start_shards(resources: usize) -> anyhow::Result<(Vec<Shard>, Vec<JoinHandle<()>>)> {
    let ring = Ring::probe()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let started = (0..cores.min(resources.max(1)))
        .map(|number| Shard::start(number, ring.clone()).context("cannot start a shard's thread"))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(started.into_iter().unzip())
}

/// How long threads may take to end when their resources have stopped.
const THREADS_MAX: Duration = Duration::from_secs(1);

/// Events that a slow listener may be behind.
const EVENTS_MAX: usize = 1024;

/// Requests of operators that may wait for a resource.
const REQUESTS_MAX: usize = 64;
