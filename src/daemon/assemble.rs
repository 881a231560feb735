//! From a checked configuration to what runs: each resource's core, disks, peers and target.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, bail};
use block::VolumeNumber;
use ops::{
    config::{self, Config, Identity},
    metrics::{Counters, Latencies},
};
use replication::{Effect, Found, Instant, NodeId, VolumeConfig, authenticate};
use target_proto::scsi::{
    PortGroup, RelativePort, Target, TargetIdentity, TargetPort, UnitConfig, VolumeIdentity,
};
use tracing::warn;

use crate::{
    daemon::portal_group,
    disk::{self, Backing, DiskConfig, Metadata},
    peer::{self, Setup},
    volume::{Core, SLOTS_AT, SLOTS_LEN, Start, Stored},
};

/// What all resources of a node share.
#[derive(Debug)]
pub(super) struct Common<'a> {
    /// The whole configuration.
    pub(super) config: &'a Config,
    /// This node.
    pub(super) node: &'a config::Node,
    /// What identifiers derive from.
    pub(super) identity: Identity,
    /// How this node proves itself to its peers.
    pub(super) proof: Arc<authenticate::Identity>,
    /// What happens to the node as a whole.
    pub(super) counters: Arc<Counters>,
}

impl Common<'_> {
    /// Opens the disks of a resource and makes everything that its task needs. Blocks.
    ///
    /// # Errors
    /// When a disk is not ours or cannot be opened, or a peer's address cannot be resolved.
    pub(super) fn start(&self, place: usize, resource: &config::Resource) -> anyhow::Result<Start> {
        let config = self.config.replicated(resource, self.node.id);
        let mut found = Vec::new();
        let mut disks = Vec::new();
        let mut reservations = Vec::new();
        let mut target = self.target(resource);
        for (volume, core) in resource.volumes.iter().zip(&config.volumes) {
            if let Some(disk) = disk_config(volume, self.node.id) {
                let (backing, state) = open(&disk, core)?;
                found.push((volume.number, state));
                let stored = reserved(&backing, &disk)?;
                restore(&mut target, volume.number, &stored);
                reservations.push((volume.number, stored));
                disks.push((volume.number, backing));
            }
        }
        let latencies = Arc::new(Latencies::new(&resource.name, self.others().map(|node| node.id)));
        let peers = self.peers(resource, &latencies)?;
        let entropy = getrandom::u64().context("the system gives no random bytes")?;
        let mut effects: Vec<Effect> = Vec::new();
        let core = replication::Resource::new(config, found, entropy, Instant::default(), &mut effects)
            .with_context(|| format!("resource {:?} cannot start", resource.name))?;
        let core = Core { core, effects };
        let name = resource.name.clone();
        Ok(Start { place, name, core, latencies, disks, reservations, peers, target })
    }

    fn peers(&self, resource: &config::Resource, latencies: &Arc<Latencies>) -> anyhow::Result<Vec<Setup>> {
        self.others().map(|node| self.peer(resource, node, latencies)).collect()
    }

    fn peer(
        &self,
        resource: &config::Resource,
        node: &config::Node,
        latencies: &Arc<Latencies>,
    ) -> anyhow::Result<Setup> {
        let Some(address) = &node.replication else {
            bail!("node {:?} has no `replication` address", node.name);
        };
        let net = &resource.connection(self.node.id, node.id).net;
        Ok(Setup {
            identity: Arc::clone(&self.proof),
            resource: resource.name.clone(),
            peer: node.id,
            peer_name: node.name.clone(),
            address: resolve(address)?,
            options: peer::Options::from(net),
            latencies: Arc::clone(latencies),
            counters: Arc::clone(&self.counters),
        })
    }

    fn target(&self, resource: &config::Resource) -> Target {
        let unit = |volume: &config::Volume| UnitConfig {
            volume: volume.number,
            size: volume.size,
            block_size: volume.block_size,
            physical_block_size: volume.physical_block_size,
            identity: VolumeIdentity(self.identity.volume(&resource.name, volume.number).as_u128()),
            thin: true,
            read_only: volume.read_only,
        };
        let identity = TargetIdentity {
            iqn: resource.export.iqn.clone(),
            port: port(self.node.id),
            peers: self.others().map(|node| port(node.id)).collect(),
        };
        Target::new(identity, resource.volumes.iter().map(unit).collect())
    }

    fn others(&self) -> impl Iterator<Item = &config::Node> {
        self.config.nodes.iter().filter(|node| node.id != self.node.id)
    }
}

fn port(node: NodeId) -> TargetPort {
    let portal_group = portal_group(node);
    TargetPort { group: PortGroup(portal_group), relative: RelativePort(portal_group), portal_group }
}

/// What a node has for a volume; `None` where it is diskless.
#[must_use]
pub fn disk_config(volume: &config::Volume, node: NodeId) -> Option<DiskConfig> {
    let path = volume.disks.get(&node)?.clone();
    let metadata = volume.metadata.get(&node);
    Some(DiskConfig {
        path,
        size: volume.size,
        metadata: metadata.map_or(Metadata::Internal, |path| Metadata::External(path.clone())),
        block_size: volume.block_size,
    })
}

/// The first address that a configured one stands for.
///
/// # Errors
/// When a host name cannot be resolved.
pub fn resolve(address: &config::Address) -> anyhow::Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    match address {
        config::Address::Ip(address) => Ok(*address),
        config::Address::Name { host, port } => (host.as_str(), *port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {address}"))?
            .next()
            .with_context(|| format!("{host} has no address")),
    }
}

/// Opens a disk, and the metadata that the core wrote on it.
fn open(disk: &DiskConfig, volume: &VolumeConfig) -> anyhow::Result<(Backing, Found)> {
    let (backing, found) = Backing::open(disk)?;
    let found = match found {
        disk::Found::Fresh => Found::Fresh,
        // `metadata create` made it ours; what its data is worth, only an operator knows.
        disk::Found::Data => Found::Adopted,
        disk::Found::Superblocks(_) => {
            let len =
                usize::try_from(replication::metadata_len(volume)).context("the volume is too large")?;
            let mut area = vec![0; len];
            backing
                .read_metadata(0, &mut area)
                .with_context(|| format!("{}: cannot read the metadata", disk.path.display()))?;
            Found::Metadata(area.into())
        }
    };
    Ok((backing, found))
}

/// The persistent reservations on a disk.
fn reserved(backing: &Backing, disk: &DiskConfig) -> anyhow::Result<Stored> {
    let mut area = vec![0; SLOTS_LEN];
    backing
        .read_metadata(SLOTS_AT, &mut area)
        .with_context(|| format!("{}: cannot read the persistent reservations", disk.path.display()))?;
    Ok(Stored::find(&area.into()))
}

/// Gives a volume the newest reservations that are whole.
fn restore(target: &mut Target, volume: VolumeNumber, stored: &Stored) {
    for registry in &stored.registries {
        match target.restore(volume, registry) {
            Ok(()) => return,
            Err(error) => warn!(%volume, %error, "cannot use stored persistent reservations"),
        }
    }
}
