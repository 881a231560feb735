//! `evenkeel demo`: three nodes on loopback, each its own process, and a check that kills one of them.

mod check;
mod nodes;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context as _, bail};
use ops::cli;
use tokio::signal::unix::{SignalKind, signal};

use crate::serve::how_to_attach;
use nodes::{NAMES, Nodes, RESOURCE};

/// Runs the demo until Ctrl-C, or the check until its verdict.
///
/// # Errors
/// When the nodes cannot be started, or the check found a fault.
pub fn run(arguments: &cli::Demo) -> anyhow::Result<()> {
    let directory = Directory::new(arguments.dir.as_deref())?;
    let mut nodes = Nodes::prepare(&directory.path)?;
    for node in 0..NAMES.len() {
        nodes.start(node)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        ready(&mut nodes).await?;
        if arguments.check { check::run(&mut nodes).await } else { keep_running(&mut nodes).await }
    });
    let stopped = nodes.stop();
    if outcome.is_err() {
        directory.keep(&nodes);
    }
    outcome.and(stopped)
}

/// Waits until every node answers and the replicas have met.
async fn ready(nodes: &mut Nodes) -> anyhow::Result<()> {
    for (node, name) in NAMES.iter().enumerate() {
        let deadline = tokio::time::Instant::now() + START_MAX;
        while let Err(error) = nodes.ask(node, &["wait", RESOURCE, "connected", "--timeout", "10s"]) {
            if let Some((ended, status)) = nodes.ended()? {
                let log = fs::read_to_string(nodes.log(ended)).unwrap_or_default();
                bail!("{} ended at its start ({status}):\n{log}", NAMES[ended]);
            }
            if tokio::time::Instant::now() > deadline {
                return Err(error.context(format!("{name} is not ready, see {}", nodes.log(node).display())));
            }
            tokio::time::sleep(POLL).await;
        }
        nodes.ask(node, &["wait", RESOURCE, "up-to-date", "--timeout", "10s"])?;
    }
    Ok(())
}

/// Says what can be done, and tells when a node ends.
async fn keep_running(nodes: &mut Nodes) -> anyhow::Result<()> {
    println!("{}", instructions(nodes));
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(POLL) => {}
        }
        if let Some((node, status)) = nodes.ended()? {
            println!("\n{} has ended ({status}). Start it again:\n  {} &", NAMES[node], nodes.command(node));
        }
    }
}

fn instructions(nodes: &Nodes) -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "Three nodes run on loopback: alpha and bravo mirror a volume of 1 GiB, charlie is diskless.\n\n",
    );
    for (node, name) in NAMES.iter().enumerate() {
        let ports = nodes.ports(node);
        let pid = nodes.pid(node).unwrap_or_default();
        writeln!(
            text,
            "  {name:8} iSCSI 127.0.0.1:{}   metrics http://127.0.0.1:{}/metrics   process {pid}",
            ports.iscsi, ports.metrics
        )
        .expect("writing to a string does not fail");
    }
    let portal = format!("127.0.0.1:{}", nodes.ports(0).iscsi);
    let program = nodes::program();
    write!(
        text,
        "\n{}\n\n\
         Look:\n  {program} status --admin {}\n  {program} events --admin {}\n\n\
         Break: kill -9 a process above; the other nodes go on, and this page says how to start it again.\n\
         Files and logs are in {}. Ctrl-C stops everything but nodes that you\n\
         started yourself: stop those first.",
        how_to_attach(&portal, nodes::IQN),
        nodes.admin(0).display(),
        nodes.admin(1).display(),
        nodes.dir().display()
    )
    .expect("writing to a string does not fail");
    text
}

/// Where the demo keeps its files. A temporary one goes when the demo ends well.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    temporary: bool,
}

impl Directory {
    fn new(wanted: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = wanted {
            return Ok(Self { path: path.to_owned(), temporary: false });
        }
        let path = std::env::temp_dir().join(format!("evenkeel-demo-{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self { path, temporary: true })
    }

    /// Leaves the files of a demo that failed, for whoever wants to know why.
    fn keep(mut self, nodes: &Nodes) {
        self.temporary = false;
        eprintln!("the nodes' files and logs are left in {}", nodes.dir().display());
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// How long a node may take until it answers and has met the others.
const START_MAX: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(100);
