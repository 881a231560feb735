//! Three nodes on loopback, each its own process: alpha and bravo with a disk, charlie without or with one. The ways
//! between them can be cut.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{port, process::Server, proxy::Proxy, target::secret};

/// The nodes in the order of their ids.
pub const NODES: [&str; 3] = ["alpha", "bravo", "charlie"];
/// The resource.
pub const RESOURCE: &str = "db";
/// Its iSCSI name.
pub const IQN: &str = "iqn.2026-11.io.evenkeel:db";

/// The three nodes and their files.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    binary: PathBuf,
    portals: [SocketAddr; 3],
    servers: [Option<Server>; 3],
    /// From each node to each other one, where the ways can be cut.
    ways: Vec<(usize, usize, Proxy)>,
}

/// What a cluster is made of.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// The size of the volume.
    pub size_bytes: u64,
    /// The acknowledgement mode.
    pub protocol: &'a str,
    /// How many of the nodes have a disk.
    pub disks: usize,
    /// Whether the ways between nodes can be cut.
    pub cuttable: bool,
    /// More lines for the resource.
    pub options: &'a str,
}

impl Cluster {
    /// Writes the configuration for a volume of `size_bytes` that is mirrored in `protocol`, and starts all nodes.
    ///
    /// # Errors
    /// When a node does not come up; the message holds its log.
    pub fn start(binary: &Path, dir: &Path, size_bytes: u64, protocol: &str) -> Result<Self> {
        let layout = Layout { size_bytes, protocol, disks: 2, cuttable: false, options: "" };
        Self::start_as(binary, dir, &layout)
    }

    /// Writes the configuration and starts all nodes.
    ///
    /// # Errors
    /// When a node does not come up; the message holds its log.
    pub fn start_as(binary: &Path, dir: &Path, layout: &Layout<'_>) -> Result<Self> {
        let [replication @ .., first, second, third] = port::free::<6>()?;
        let portals = [first, second, third];
        secret(&dir.join("cluster.secret"), "a secret that only this test knows")?;
        let mut ways = Vec::new();
        for node in 0..NODES.len() {
            // Each node has its own file, in which the others may stand behind a way that can be cut.
            let mut seen = replication;
            for (other, address) in seen.iter_mut().enumerate().filter(|&(other, _)| other != node) {
                if layout.cuttable {
                    let proxy = Proxy::start(*address)?;
                    *address = proxy.address;
                    ways.push((node, other, proxy));
                }
            }
            fs::write(configuration(dir, node), text(dir, layout, seen, portals)?)?;
        }
        let mut cluster = Self {
            dir: dir.to_owned(),
            binary: binary.to_owned(),
            portals,
            servers: [None, None, None],
            ways,
        };
        for node in 0..NODES.len() {
            cluster.start_node(node)?;
        }
        Ok(cluster)
    }

    /// Holds whatever `from` sends to `to`, in a cluster whose ways can be cut.
    pub fn cut(&self, from: usize, to: usize) {
        for (dialler, listener, way) in &self.ways {
            if (*dialler, *listener) == (from, to) {
                way.hold(Some(true), None);
            } else if (*dialler, *listener) == (to, from) {
                way.hold(None, Some(true));
            }
        }
    }

    /// Lets everything through again.
    pub fn heal(&self) {
        self.ways.iter().for_each(|(.., way)| way.hold(Some(false), Some(false)));
    }

    /// Makes all ways so long and so narrow, in a cluster whose ways can be cut; 0 bytes per second is no limit.
    pub fn shape(&self, delay: Duration, bytes_per_second: u64) {
        self.ways.iter().for_each(|(.., way)| way.shape(delay, bytes_per_second));
    }

    /// Cuts what goes over all ways into pieces of 1 to `longest` bytes, in a cluster whose ways can be cut.
    pub fn cut_into_pieces(&self, longest: usize) {
        self.ways.iter().for_each(|(.., way)| way.cut_into_pieces(longest));
    }

    /// Starts one node and waits until its portal accepts.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_node(&mut self, node: usize) -> Result<()> {
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--config"]).arg(configuration(&self.dir, node)).args(["--node", NODES[node]]);
        command.current_dir(&self.dir);
        let mut server = Server::start(command, &self.dir.join(format!("{}.log", NODES[node])))?;
        port::wait_open(self.portals[node], START_PATIENCE, || server.alive())?;
        self.servers[node] = Some(server);
        Ok(())
    }

    /// Ends one node with SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_node(&mut self, node: usize) -> Result<()> {
        self.servers[node].take().with_context(|| format!("{} does not run", NODES[node]))?.kill()
    }

    /// Ends one node with SIGTERM, as an administrator does.
    ///
    /// # Errors
    /// When it does not end within 10 s or not with success.
    pub fn stop_node(&mut self, node: usize) -> Result<()> {
        let mut server =
            self.servers[node].take().with_context(|| format!("{} does not run", NODES[node]))?;
        let status = server.terminate(STOP_PATIENCE)?;
        ensure!(status.success(), "{} ended with {status}:\n{}", NODES[node], server.last_words());
        Ok(())
    }

    /// Fails when a node that should run has ended.
    ///
    /// # Errors
    /// The end of the log of the node that ended.
    pub fn alive(&mut self) -> Result<()> {
        self.servers.iter_mut().flatten().try_for_each(Server::alive)
    }

    /// The iSCSI portal of a node.
    #[must_use]
    pub fn portal(&self, node: usize) -> SocketAddr {
        self.portals[node]
    }

    /// The process of a node, when it runs.
    #[must_use]
    pub fn server(&self, node: usize) -> Option<&Server> {
        self.servers[node].as_ref()
    }

    /// The backing file of a node.
    #[must_use]
    pub fn image(&self, node: usize) -> PathBuf {
        self.dir.join(format!("{}.img", NODES[node]))
    }

    /// Runs `evenkeel ARGUMENTS` against a node and returns what it printed.
    ///
    /// # Errors
    /// When the command does not exit with 0.
    pub fn evenkeel(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let output = self.try_evenkeel(node, arguments)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "evenkeel {} on {}: {}\n{text}{}",
            arguments.join(" "),
            NODES[node],
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Runs `evenkeel ARGUMENTS` against a node, whatever it answers.
    ///
    /// # Errors
    /// When the binary cannot be started.
    pub fn try_evenkeel(&self, node: usize, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--admin").arg(socket(&self.dir, NODES[node]));
        command.output().context("cannot start evenkeel")
    }

    /// Waits until both replicas are up to date (`evenkeel wait`).
    ///
    /// # Errors
    /// When they are not within a minute; the message holds the status of all nodes.
    pub fn wait_up_to_date(&self) -> Result<()> {
        let waited = self.evenkeel(0, &["wait", RESOURCE, "up-to-date", "--timeout", "60s"]);
        waited.map(drop).with_context(|| {
            let status = |node| self.evenkeel(node, &["status"]).unwrap_or_else(|error| error.to_string());
            (0..NODES.len()).map(status).collect::<Vec<_>>().join("\n")
        })
    }

    /// Waits until every node has met every other one. A first generation begins without whoever was not there yet, and
    /// meets them again.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_connected(&self) -> Result<()> {
        (0..NODES.len()).try_for_each(|node| {
            self.evenkeel(node, &["wait", RESOURCE, "connected", "--timeout", "60s"]).map(drop)
        })
    }

    /// `evenkeel status --json` of a node.
    ///
    /// # Errors
    /// When the node does not answer or not in JSON.
    pub fn status(&self, node: usize) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.evenkeel(node, &["status", "--json"])?)?)
    }
}

fn text(
    dir: &Path,
    layout: &Layout<'_>,
    replication: [SocketAddr; 3],
    portals: [SocketAddr; 3],
) -> Result<String> {
    let mut text = String::from("[cluster]\nname = \"loopback\"\nsecret-file = \"cluster.secret\"\n");
    for (id, node) in NODES.iter().enumerate() {
        write!(
            text,
            "\n[[node]]\nname = \"{node}\"\nid = {id}\nreplication = \"{}\"\niscsi = [\"{}\"]\nadmin = \"{}\"\n",
            replication[id],
            portals[id],
            socket(dir, node).display()
        )?;
    }
    let disks = NODES[..layout.disks].iter().map(|node| format!("{node} = \"{node}.img\""));
    write!(
        text,
        "\n[[resource]]\nname = \"{RESOURCE}\"\nprotocol = \"{}\"\n{}\
         \n[[resource.volume]]\nnumber = 0\nsize = {}\nblock-size = 512\n\
         disks = {{ {} }}\n\
         \n[resource.export]\niqn = \"{IQN}\"\n",
        layout.protocol,
        layout.options,
        layout.size_bytes,
        disks.collect::<Vec<_>>().join(", "),
    )?;
    Ok(text)
}

fn configuration(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("{}.toml", NODES[node]))
}

fn socket(dir: &Path, node: &str) -> PathBuf {
    dir.join(format!("{node}.sock"))
}

const START_PATIENCE: Duration = Duration::from_secs(20);
const STOP_PATIENCE: Duration = Duration::from_secs(10);
