//! `evenkeel serve`: one node in the foreground, from its configuration to a signal.

use std::{
    fs,
    io::{self, IsTerminal, Write as _},
    path::{Path, PathBuf, absolute},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ops::{
    cli::{self, Source},
    config::{Config, Resource},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::{scrape, socket::AdminSocket},
    configuration,
    daemon::{Daemon, resolve},
    front::{catalog::Catalog, listener::Listener},
};

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// When the node cannot start, or does not stop cleanly.
pub fn run(arguments: &cli::Serve) -> anyhow::Result<()> {
    if arguments.with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    log_to_stderr();
    let (config, node) = configuration(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Without a configuration, nobody has chosen where the node is reached.
    let guide = matches!(arguments.source(), Source::Disk(_)).then(|| guide(&config));
    let served = runtime.block_on(serve(config, &node, guide));
    // Nothing of it waits for a thread that a disk holds up.
    runtime.shutdown_background();
    served
}

async fn serve(config: Config, name: &str, guide: Option<String>) -> anyhow::Result<()> {
    // Before anything else, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut daemon = Daemon::start(config, name).await?;
    let stop = CancellationToken::new();
    let served = listen(&mut daemon, &stop).await;
    if served.is_ok() {
        if let Some(guide) = guide {
            // Nobody may be reading.
            let _ = writeln!(io::stdout(), "{guide}");
        }
        loop {
            tokio::select! {
                _ = terminate.recv() => info!("SIGTERM: stopping"),
                _ = interrupt.recv() => info!("SIGINT: stopping"),
                // Its default would end the node without a word to peers and initiators.
                Some(()) = hang_up.recv() => {
                    warn!("SIGHUP: a running node does not read its configuration again; restart it for that");
                    continue;
                }
            }
            break;
        }
    }
    stop.cancel();
    if tokio::time::timeout(STOP_MAX, daemon.stop()).await.is_err() {
        error!("a disk or a peer holds the stop up: leaving as in a crash");
        std::process::exit(1);
    }
    served
}

/// Lets peers, initiators and operators in, in this order.
async fn listen(daemon: &mut Daemon, stop: &CancellationToken) -> anyhow::Result<()> {
    daemon.listen_to_peers().await?;
    let node = daemon.node().clone();
    let own = node.config.node(&node.name).context("the node is in its own configuration")?;
    let catalog = Arc::new(Catalog::new(&node.config, own)?);
    let listener = Listener::new(node.clone(), catalog, daemon.counters());
    for portal in &own.iscsi {
        let socket = TcpListener::bind(resolve(portal)?)
            .await
            .with_context(|| format!("cannot listen for iSCSI initiators on {portal}"))?;
        info!(%portal, "iSCSI");
        daemon.open(listener.clone().run(socket));
    }
    let view = Arc::new(daemon.view());
    let admin = AdminSocket::bind(&own.admin)
        .with_context(|| format!("cannot listen for operators at {}", own.admin.display()))?;
    daemon.open(admin.serve(Arc::clone(&view), stop.clone()));
    if let Some(address) = &own.metrics {
        let socket = TcpListener::bind(resolve(address)?)
            .await
            .with_context(|| format!("cannot serve metrics on {address}"))?;
        daemon.open(scrape::serve(socket, view, stop.clone()));
    }
    info!(node = node.name, "ready");
    Ok(())
}

/// What a user pastes to reach what a configuration serves.
fn guide(config: &Config) -> String {
    let portals = config.nodes.iter().flat_map(|node| &node.iscsi);
    let targets = portals.flat_map(|portal| {
        let iqn = |resource: &Resource| how_to_attach(&portal.to_string(), &resource.export.iqn);
        config.resources.iter().map(iqn)
    });
    let looks = config
        .nodes
        .iter()
        .map(|node| format!("\nLook:\n  evenkeel status --admin {}", node.admin.display()));
    targets.chain(looks).collect::<Vec<_>>().join("\n")
}

/// What a user pastes to attach a target.
pub(crate) fn how_to_attach(portal: &str, iqn: &str) -> String {
    format!(
        "Attach:\n  iscsiadm -m discovery -t sendtargets -p {portal}\n  iscsiadm -m node -T {iqn} -p {portal} --login\n  \
         qemu-img info iscsi://{portal}/{iqn}/0\n  iscsi-inq iscsi://{portal}/{iqn}/0"
    )
}

fn configuration(arguments: &cli::Serve) -> anyhow::Result<(Config, String)> {
    match arguments.source() {
        Source::Config(file) => Ok(configuration::load(file, arguments.node.as_deref())?),
        Source::Disk(disk) => {
            let config = single(disk, arguments.size)?;
            let node = config.nodes.first().context("the configuration has its one node")?.name.clone();
            Ok((config, node))
        }
    }
}

/// One file or device on loopback.
fn single(disk: &Path, size: Option<u64>) -> anyhow::Result<Config> {
    let path = absolute(disk)?;
    let size = match size {
        Some(size) => size,
        None => crate::disk::labelled_size(&path)?
            .with_context(|| format!("{} does not exist: give --size, e.g. --size 10GiB", disk.display()))?,
    };
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    Ok(Config::single(machine.trim(), &path, size, single_admin(&path)?)?)
}

/// The admin socket of a node without configuration: beside its disk, unless that is a device.
fn single_admin(disk: &Path) -> anyhow::Result<PathBuf> {
    let is_device = disk.starts_with("/dev");
    let name = disk.file_name().context("the disk's path has no file name")?.to_string_lossy();
    let directory = if is_device { Path::new("/run") } else { disk.parent().unwrap_or(Path::new("/")) };
    Ok(directory.join(format!("{name}.sock")))
}

/// How long a stop may take (P11): a disk that never answers does not hold it up.
const STOP_MAX: Duration = Duration::from_secs(9);

fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("EVENKEEL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who serves one file is told all that it takes to use it.
    #[test]
    fn the_guide_has_what_a_user_pastes() {
        let config =
            Config::single("machine", Path::new("/srv/my-disk.img"), 1 << 20, "/srv/my-disk.img.sock".into())
                .unwrap();
        let text = guide(&config);
        let (portal, iqn) = (&config.nodes[0].iscsi[0], &config.resources[0].export.iqn);
        for line in [
            format!("  iscsiadm -m discovery -t sendtargets -p {portal}"),
            format!("  iscsiadm -m node -T {iqn} -p {portal} --login"),
            "  evenkeel status --admin /srv/my-disk.img.sock".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
