//! Configurations that nobody wrote: of `serve --disk` and of the demo.

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use block::{BlockSize, VolumeNumber};
use replication::{NodeId, Quorum};
use thiserror::Error;
use uuid::Uuid;

use super::{
    model::{
        Address, Advertise, Allow, Cluster, Config, Connection, DiskOptions, Export, Node, Resource,
        ResourceOptions, Volume,
    },
    names,
};
use crate::quantity;

/// Why a file cannot be served without a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SingleError {
    /// Its size is not usable.
    #[error("{size} bytes are not a positive multiple of 4096: give --size, e.g. --size 1GiB")]
    Size {
        /// In bytes.
        size: u64,
    },
}

/// The ports of the demo's three nodes on 127.0.0.1, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoPorts {
    /// For peers.
    pub replication: [u16; 3],
    /// For iSCSI initiators.
    pub iscsi: [u16; 3],
    /// For `/metrics`.
    pub metrics: [u16; 3],
}

impl Config {
    /// One node with one volume, on loopback: what `serve --disk` runs.
    ///
    /// `machine` tells this machine from others with the same host name (the content of `/etc/machine-id`), so that
    /// no two machines export a volume with the same identity. `disk` is an absolute path and `size` in bytes.
    ///
    /// # Errors
    /// The size is not a positive multiple of 4096.
    pub fn single(machine: &str, disk: &Path, size: u64, admin: PathBuf) -> Result<Self, SingleError> {
        if size == 0 || !size.is_multiple_of(4096) {
            return Err(SingleError::Size { size });
        }
        let node = NodeId(0);
        let name = resource_name(disk);
        let qualified = names::as_qualified(&name);
        let identity = format!("{machine}\n{}", disk.display());
        Ok(Self {
            cluster: Cluster {
                name: "single".to_owned(),
                secret_file: None,
                id: Some(Uuid::new_v5(&Uuid::NAMESPACE_URL, identity.as_bytes())),
                tls: None,
            },
            nodes: vec![Node {
                name: "localhost".to_owned(),
                id: node,
                replication: None,
                iscsi: vec![loopback(3260)],
                nvme_tcp: Vec::new(),
                advertise: Advertise::default(),
                metrics: Some(loopback(9942)),
                admin,
            }],
            resources: vec![Resource {
                volumes: vec![Volume {
                    number: VolumeNumber(0),
                    size,
                    block_size: BlockSize::B512,
                    physical_block_size: BlockSize::B512,
                    read_only: false,
                    disks: BTreeMap::from([(node, disk.to_owned())]),
                    metadata: BTreeMap::new(),
                }],
                connection: Connection::default(),
                connections: BTreeMap::new(),
                disk: DiskOptions::default(),
                options: ResourceOptions { quorum: Quorum::Off, auto_promote: true },
                export: Export {
                    iqn: format!("iqn.2026-11.io.evenkeel:{qualified}"),
                    nqn: format!("nqn.2026-11.io.evenkeel:{qualified}"),
                    chap: None,
                    chap_mutual: None,
                    allow: Allow::Anyone,
                },
                name,
            }],
        })
    }

    /// The text of the demo's file: alpha and bravo with a replica each, charlie without. Its paths are relative, so
    /// disks, sockets and the secret's file (`cluster.secret`) lie beside it. `size` is in bytes.
    #[must_use]
    pub fn demo(ports: &DemoPorts, size: u64) -> String {
        let mut text = String::from(DEMO_HEAD);
        for (id, name) in ["alpha", "bravo", "charlie"].into_iter().enumerate() {
            let (replication, iscsi, metrics) = (ports.replication[id], ports.iscsi[id], ports.metrics[id]);
            let _ = write!(
                text,
                "[[node]]\nname = \"{name}\"\nid = {id}\nreplication = \"127.0.0.1:{replication}\"\n\
                 iscsi = [\"127.0.0.1:{iscsi}\"]\nmetrics = \"127.0.0.1:{metrics}\"\nadmin = \"{name}.sock\"\n\n",
            );
        }
        let size = quantity::show_size(size);
        let _ = write!(text, "{DEMO_RESOURCE}size = \"{size}\"\n{DEMO_DISKS}");
        text
    }
}

fn loopback(port: u16) -> Address {
    Address::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

/// The name of a file without its extension, with hyphens for what a name may not have.
fn resource_name(disk: &Path) -> String {
    let stem = disk.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let usable = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    let name: String = stem.chars().map(usable).take(64).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "disk".to_owned() } else { name.to_owned() }
}

const DEMO_HEAD: &str =
    "# Three nodes on one machine, written by `evenkeel demo`. Every key: docs/configuration.md

[cluster]
name = \"demo\"
secret-file = \"cluster.secret\"

";

const DEMO_RESOURCE: &str = "[[resource]]
name = \"db\"
protocol = \"C\"

[[resource.volume]]
number = 0
";

const DEMO_DISKS: &str =
    "disks = { alpha = \"alpha-db0.img\", bravo = \"bravo-db0.img\" }  # charlie is diskless
";

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo runs by a file that `check` has nothing to say about.
    #[test]
    fn the_demo_passes_its_own_check() {
        let ports = DemoPorts {
            replication: [7789, 7790, 7791],
            iscsi: [3260, 3261, 3262],
            metrics: [9942, 9943, 9944],
        };
        let text = Config::demo(&ports, 1 << 30);
        let checked =
            Config::parse(Path::new("/tmp/demo/evenkeel.toml"), text.as_bytes()).expect("it is right");
        assert_eq!(checked.warnings.to_string(), "");
        let config = checked.config;
        let nodes: Vec<&str> = config.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(nodes, ["alpha", "bravo", "charlie"]);
        let db = config.resource("db").expect("it is there");
        let volume = db.volume(VolumeNumber(0)).expect("it is there");
        assert_eq!(volume.size, 1 << 30);
        assert_eq!(volume.disks.get(&NodeId(1)), Some(&PathBuf::from("/tmp/demo/bravo-db0.img")));
        assert_eq!(volume.disks.get(&NodeId(2)), None);
        assert_eq!(db.options.quorum, Quorum::Majority);
    }

    /// `serve --disk`: one resource named after the file, on loopback.
    #[test]
    fn a_single_disk_needs_no_file() {
        let config =
            Config::single("m1", Path::new("/data/My disk.img"), 8192, "/tmp/a.sock".into()).expect("good");
        assert_eq!(config.resources[0].name, "My-disk");
        assert_eq!(config.resources[0].export.iqn, "iqn.2026-11.io.evenkeel:my-disk");
        assert!(config.nodes[0].iscsi.iter().all(Address::is_loopback));
        let other =
            Config::single("m2", Path::new("/data/My disk.img"), 8192, "/tmp/a.sock".into()).expect("good");
        assert_ne!(config.identity(None), other.identity(None));
        for size in [0, 4095, 4097] {
            let refused = Config::single("m1", Path::new("/d"), size, "/tmp/a.sock".into());
            assert_eq!(refused, Err(SingleError::Size { size }));
        }
    }

    #[test]
    fn any_file_names_a_resource() {
        for (path, name) in [
            ("/a/disk.img", "disk"),
            ("/dev/sdb", "sdb"),
            ("/a/.hidden", "hidden"),
            ("/a/äö", "disk"),
            ("/", "disk"),
        ] {
            assert_eq!(resource_name(Path::new(path)), name, "{path}");
            assert!(names::plain(&resource_name(Path::new(path))).is_ok());
        }
    }
}
