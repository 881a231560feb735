//! From a checked configuration to what runs: each resource's core, disks, peers and target.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, bail};
use block::VolumeNumber;
use ops::{
    config::{self, Config, Identity},
    metrics::{Counters, Latencies},
};
use replication::{Found, Instant, NodeId, ResourceConfig, SetupError, VolumeConfig, authenticate};
use target_proto::scsi::{
    PortGroup, RelativePort, Target, TargetIdentity, TargetPort, UnitConfig, VolumeIdentity,
};
use tracing::{error, warn};

use crate::{
    daemon::portal_group,
    disk::{self, Backing, DiskConfig, Metadata},
    peer::{self, Setup},
    volume::{Core, Opened, Opener, SLOTS_AT, SLOTS_LEN, Start, Stored},
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
    /// Opens the disks of a resource and makes everything that its task needs. Blocks. A disk that cannot be used is left
    /// alone, and the volume without one here: peers may serve it.
    ///
    /// # Errors
    /// When a peer's address is not configured, or the system gives no random bytes.
    pub(super) fn start(&self, place: usize, resource: &config::Resource) -> anyhow::Result<Start> {
        let config = self.config.replicated(resource, self.node.id);
        let mut disks: Vec<_> = resource
            .volumes
            .iter()
            .zip(&config.volumes)
            .filter_map(|(volume, core)| {
                let disk = disk_config(volume, self.node.id)?;
                let opened = open(&disk, core).map_err(|error| format!("{error:#}"));
                Some((volume.number, opened))
            })
            .collect();
        let entropy = getrandom::u64().context("the system gives no random bytes")?;
        let core = core(&config, &mut disks, entropy);
        let volumes = &config.volumes;
        let target = self.target(resource);
        let mut start = Start {
            place,
            name: resource.name.clone(),
            core,
            latencies: Arc::new(Latencies::new(&resource.name, self.others().map(|node| node.id))),
            disks: Vec::new(),
            openers: self.openers(resource, volumes),
            reservations: Vec::new(),
            peers: Vec::new(),
            unserved: Vec::new(),
            target,
        };
        for (volume, disk) in disks {
            match disk {
                Ok(Opened { backing, stored, .. }) => {
                    restore(&mut start.target, volume, &stored);
                    start.reservations.push((volume, stored));
                    start.disks.push((volume, backing));
                }
                Err(reason) => {
                    error!(resource = start.name, %volume, reason, "the disk cannot be used; it is left as it is");
                    let here = |core: &&VolumeConfig| core.number == volume && core.disks.len() == 1;
                    start.unserved.extend(volumes.iter().find(here).map(|_| reason));
                }
            }
        }
        start.peers = self.peers(resource, &start.latencies)?;
        Ok(start)
    }

    fn openers(&self, resource: &config::Resource, volumes: &[VolumeConfig]) -> Vec<(VolumeNumber, Opener)> {
        let opener = |(volume, core): (&config::Volume, &VolumeConfig)| {
            let (disk, core) = (disk_config(volume, self.node.id)?, core.clone());
            let open = move || open(&disk, &core).map_err(|error| format!("{error:#}"));
            Some((volume.number, Opener(Arc::new(open))))
        };
        resource.volumes.iter().zip(volumes).filter_map(opener).collect()
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
            address: address.clone(),
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

/// Makes the core. A disk whose metadata it refuses becomes one that cannot be used.
fn core(config: &ResourceConfig, disks: &mut [(VolumeNumber, Result<Opened, String>)], entropy: u64) -> Core {
    loop {
        let found = |(volume, disk): &(VolumeNumber, Result<Opened, String>)| match disk {
            Ok(opened) => (*volume, opened.found.clone()),
            Err(reason) => (*volume, Found::Unusable(reason.clone())),
        };
        let found = disks.iter().map(found).collect();
        let mut effects = Vec::new();
        let made =
            replication::Resource::new(config.clone(), found, entropy, Instant::default(), &mut effects);
        match made {
            Ok(core) => return Core { core, effects },
            // One fewer that it can refuse.
            Err(SetupError { volume, error }) => {
                let refused = disks.iter_mut().find(|(number, _)| *number == volume);
                refused.expect("only metadata that was found is refused").1 =
                    Err(format!("its metadata is of no use: {error}"));
            }
        }
    }
}

/// Opens a disk, and reads what the core and the SCSI side stored on it.
fn open(disk: &DiskConfig, volume: &VolumeConfig) -> anyhow::Result<Opened> {
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
    let stored = reserved(&backing, disk)?;
    Ok(Opened { backing, found, stored })
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
