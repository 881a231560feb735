//! The demo's nodes: a configuration with free ports, sparse disks, and one process for each node.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    net::TcpListener,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use ops::config::{Config, DemoPorts};
use rustix::process::{Pid, Signal, kill_process};

/// The nodes' names. The first two have disks, the third is diskless.
pub(super) const NAMES: [&str; 3] = ["alpha", "bravo", "charlie"];

/// The resource that the demo exports.
pub(super) const RESOURCE: &str = "db";

/// Its iSCSI name.
pub(super) const IQN: &str = "iqn.2026-11.io.evenkeel:db";

/// The size of its volume, in bytes.
pub(super) const SIZE: u64 = 1 << 30;

/// A cluster of three nodes on loopback.
#[derive(Debug)]
pub(super) struct Nodes {
    dir: PathBuf,
    ports: Vec<Ports>,
    running: Vec<Option<Child>>,
}

/// The ports of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) replication: u16,
    pub(super) iscsi: u16,
    pub(super) metrics: u16,
}

impl Nodes {
    /// Writes what three nodes need into `dir`, unless it is there already. Nothing runs yet.
    pub(super) fn prepare(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let socket_len = dir.join("charlie.sock").as_os_str().len();
        if socket_len > SOCKET_PATH_MAX {
            bail!(
                "{} is too long for Unix sockets ({socket_len} of {SOCKET_PATH_MAX} bytes): choose a shorter --dir",
                dir.display()
            );
        }
        let ports = (0..).zip(NAMES).map(|(node, _)| Ports::free(node)).collect::<io::Result<Vec<_>>>()?;
        let secret = dir.join("cluster.secret");
        if !secret.exists() {
            private(&secret)?.write_all(random_secret()?.as_bytes())?;
        }
        let ports_of = |port: fn(&Ports) -> u16| std::array::from_fn(|node| port(&ports[node]));
        let listed = DemoPorts {
            replication: ports_of(|ports| ports.replication),
            iscsi: ports_of(|ports| ports.iscsi),
            metrics: ports_of(|ports| ports.metrics),
        };
        fs::write(dir.join("evenkeel.toml"), Config::demo(&listed, SIZE))?;
        Ok(Self { dir, ports, running: NAMES.map(|_| None).into() })
    }

    /// The configuration file.
    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("evenkeel.toml")
    }

    /// The directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The ports of a node.
    pub(super) fn ports(&self, node: usize) -> Ports {
        self.ports[node]
    }

    /// The admin socket of a node.
    pub(super) fn admin(&self, node: usize) -> PathBuf {
        self.dir.join(format!("{}.sock", NAMES[node]))
    }

    /// The backing file of a diskful node.
    pub(super) fn image(&self, node: usize) -> PathBuf {
        self.dir.join(format!("{}-db0.img", NAMES[node]))
    }

    /// The command that runs a node, as a user would type it.
    pub(super) fn command(&self, node: usize) -> String {
        format!("{} serve --config {} --node {}", program(), self.config().display(), NAMES[node])
    }

    /// Starts a node, whose log goes to a file beside its disk.
    pub(super) fn start(&mut self, node: usize) -> anyhow::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(node))?;
        let child = Command::new(std::env::current_exe().context("cannot find this program's file")?)
            .args(["serve", "--config"])
            .arg(self.config())
            .args(["--node", NAMES[node], "--with-parent"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", NAMES[node]))?;
        self.running[node] = Some(child);
        Ok(())
    }

    /// Asks a node with this program's own command line, and gives what it printed.
    pub(super) fn ask(&self, node: usize, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(std::env::current_exe().context("cannot find this program's file")?)
            .args(arguments)
            .arg("--admin")
            .arg(self.admin(node))
            .stdin(Stdio::null())
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        bail!("{}: {}", NAMES[node], String::from_utf8_lossy(&output.stderr).trim())
    }

    /// The log of a node.
    pub(super) fn log(&self, node: usize) -> PathBuf {
        self.dir.join(format!("{}.log", NAMES[node]))
    }

    /// The process of a node.
    pub(super) fn pid(&self, node: usize) -> Option<u32> {
        self.running[node].as_ref().map(Child::id)
    }

    /// Kills a node with SIGKILL: what it has not written is lost, as it would be in a crash of the process.
    pub(super) fn kill(&mut self, node: usize) -> io::Result<()> {
        if let Some(mut child) = self.running[node].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The next node that ended by itself, and how.
    pub(super) fn ended(&mut self) -> io::Result<Option<(usize, ExitStatus)>> {
        for (node, running) in self.running.iter_mut().enumerate() {
            let Some(child) = running else { continue };
            if let Some(status) = child.try_wait()? {
                *running = None;
                return Ok(Some((node, status)));
            }
        }
        Ok(None)
    }

    /// Stops every node with SIGTERM and waits for them.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        for child in self.running.iter().flatten() {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // A node that has just ended by itself needs no signal.
            let _ = kill_process(pid.expect("a child has a process id"), Signal::TERM);
        }
        let deadline = Instant::now() + STOP_MAX;
        for (node, running) in self.running.iter_mut().enumerate() {
            let Some(mut child) = running.take() else { continue };
            while child.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    child.kill()?;
                    child.wait()?;
                    bail!("{} did not stop within {} s and was killed", NAMES[node], STOP_MAX.as_secs());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// This program as a user types it: the demo is mostly run where it is not installed.
pub(super) fn program() -> String {
    std::env::current_exe().map_or_else(|_| "evenkeel".to_owned(), |path| path.display().to_string())
}

/// Nothing of a demo outlives it.
impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            // It may have ended already, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ports {
    /// The usual ports, shifted by the node's number; free ones where somebody has those.
    fn free(node: u16) -> io::Result<Self> {
        let free = |usual: u16| {
            TcpListener::bind(("127.0.0.1", usual))
                .or_else(|_| TcpListener::bind(("127.0.0.1", 0)))
                .and_then(|listener| listener.local_addr())
                .map(|address| address.port())
        };
        Ok(Self {
            replication: free(REPLICATION_PORT + node)?,
            iscsi: free(ISCSI_PORT + node)?,
            metrics: free(METRICS_PORT + node)?,
        })
    }
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn random_secret() -> anyhow::Result<String> {
    let mut bytes = [[0; 16]; 2];
    getrandom::fill(bytes.as_flattened_mut()).context("the system gives no random bytes")?;
    Ok(format!("{:032x}{:032x}", u128::from_be_bytes(bytes[0]), u128::from_be_bytes(bytes[1])))
}

/// How long a node may take to stop.
const STOP_MAX: Duration = Duration::from_secs(10);

/// What fits into the address of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

const REPLICATION_PORT: u16 = 7789;
const ISCSI_PORT: u16 = 3260;
const METRICS_PORT: u16 = 9942;
