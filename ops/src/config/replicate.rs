//! What the replication core is told of the configuration.

use std::time::Duration;

use replication::{NodeId, PeerConfig, ResourceConfig, VolumeConfig};
use uuid::Uuid;

use super::model::{Config, Resource};

impl Config {
    /// A resource as the replication core of one node takes it.
    #[must_use]
    pub fn replicated(&self, resource: &Resource, node: NodeId) -> ResourceConfig {
        let peer = |peer: &super::Node| PeerConfig {
            node: peer.id,
            name: peer.name.clone(),
            protocol: resource.connection(node, peer.id).protocol,
            after_split_brain: resource.connection(node, peer.id).net.after_split_brain,
        };
        let volume = |volume: &super::Volume| VolumeConfig {
            number: volume.number,
            size: volume.size,
            block_size: volume.block_size.bytes(),
            disks: volume.disks.keys().copied().collect(),
        };
        let noticed = |peer: &super::Node| {
            let net = &resource.connection(node, peer.id).net;
            net.ping_int + net.ping_timeout
        };
        let others = || self.nodes.iter().filter(|peer| peer.id != node);
        let peer_timeout = others().map(noticed).max().unwrap_or_default() + NOTICED_SLACK;
        ResourceConfig {
            name: resource.name.clone(),
            cluster: Uuid::new_v5(&Uuid::NAMESPACE_URL, self.cluster.name.as_bytes()).as_u64_pair().0,
            node,
            peers: others().map(peer).collect(),
            volumes: resource.volumes.iter().map(volume).collect(),
            auto_promote: resource.options.auto_promote,
            quorum: resource.options.quorum,
            read_balancing: resource.disk.read_balancing,
            disk_timeout: resource.disk.disk_timeout,
            al_extents: resource.disk.al_extents,
            al_extent_len: ResourceConfig::AL_EXTENT_LEN,
            peer_timeout,
            promotion_timeout: peer_timeout + PROMOTION_TIMEOUT,
        }
    }
}

/// What a busy node may be late by with noticing that a link broke.
const NOTICED_SLACK: Duration = Duration::from_millis(500);

/// As long as DRBD's auto-promote-timeout by default.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use replication::AckMode;

    use super::*;

    /// Each node is told of the same volumes, of everyone else, and of the mode of its own connections.
    #[test]
    fn every_node_gets_its_own_view() {
        let text = include_bytes!("../../tests/contract.toml");
        let config = Config::parse(Path::new("/etc/evenkeel.toml"), text).expect("it is right").config;
        let db = config.resource("db").expect("it is there");
        let [alpha, bravo] = [NodeId(0), NodeId(1)].map(|node| config.replicated(db, node));
        let peers = |view: &ResourceConfig| {
            view.peers.iter().map(|peer| (peer.node, peer.protocol)).collect::<Vec<_>>()
        };
        assert_eq!(peers(&alpha), [(NodeId(1), AckMode::C), (NodeId(7), AckMode::A)]);
        assert_eq!(peers(&bravo), [(NodeId(0), AckMode::C), (NodeId(7), AckMode::C)]);
        assert_eq!((alpha.cluster, alpha.volumes[0].size), (bravo.cluster, 1 << 30));
        assert_eq!(alpha.volumes[0].disks.iter().collect::<Vec<_>>(), [NodeId(0), NodeId(1)]);
    }
}
