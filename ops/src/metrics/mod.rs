//! `GET /metrics`: the Prometheus text format, version 0.0.4.
//!
//! What LINBIT's drbd-reactor exports keeps its names and labels, so that existing dashboards work; ours begin with
//! `evenkeel_`. Names follow the rules of `promtool check metrics`. Only this module knows the prometheus crate.

mod family;
mod latency;
mod reactor;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use replication::{AckMode, DiskState, ReplicationState, ResourceStatus};

use family::{Families, Kind, float};
pub use latency::{Histogram, Latencies, Leg, Operation};

use crate::status::Names;

/// The media type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// What happened to the node as a whole since it started. Any thread adds.
#[derive(Debug, Default)]
pub struct Counters {
    counts: [AtomicU64; COUNTED.len()],
}

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// An initiator logged in.
    LoginAccepted,
    /// A login was refused.
    LoginRefused,
    /// A connection of an initiator was closed because of what it sent.
    InitiatorError,
    /// A connection to a peer became the link.
    PeerAccepted,
    /// A peer was refused, or refused us: another cluster, version or secret; or a stranger called.
    PeerRefused,
    /// A connection of a peer was closed because of what it sent.
    PeerError,
}

/// What the system says of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Processor time used, in seconds.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// How many there may be.
    pub max_fds: u64,
    /// When the process started, in seconds since 1970.
    pub start_seconds: f64,
}

/// Everything that a scrape shows.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// What each resource says, and the transports of those who are logged in to it.
    pub resources: &'a [(ResourceStatus, Vec<&'static str>)],
    /// The nodes' names.
    pub names: &'a Names,
    /// The times of each resource.
    pub latencies: &'a [Arc<Latencies>],
    /// What happened to the node.
    pub counters: &'a Counters,
    /// What the system says of the process, where it does.
    pub process: Option<Process>,
}

impl Counters {
    /// One more of these.
    pub fn add(&self, counted: Counted) {
        self.counts[counted as usize].fetch_add(1, Relaxed);
    }
}

/// The text of a scrape.
#[must_use]
pub fn render(scrape: &Scrape<'_>) -> String {
    let mut families = Families::default();
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    families.add(Kind::Gauge, "evenkeel_build_info", "The version of this binary", &version, 1.0);
    reactor::add(&mut families, scrape);
    for (status, transports) in scrape.resources {
        resource(&mut families, status, transports, scrape.names);
    }
    for latencies in scrape.latencies {
        times(&mut families, latencies, scrape.names);
    }
    for (CountedSeries { name, help, label, value }, count) in COUNTED.iter().zip(&scrape.counters.counts) {
        let labels = [(*label, (*value).to_owned())];
        families.add(Kind::Counter, name, help, &labels, float(count.load(Relaxed)));
    }
    if let Some(of) = &scrape.process {
        process(&mut families, of);
    }
    families.encode()
}

fn resource(families: &mut Families, status: &ResourceStatus, transports: &[&'static str], names: &Names) {
    let name = || ("name", status.name.clone());
    for transport in TRANSPORTS {
        let sessions = transports.iter().filter(|of| **of == transport).count();
        let labels = [name(), ("transport", transport.to_owned())];
        let help = "Sessions of initiators and controllers of hosts";
        families.add(Kind::Gauge, "evenkeel_sessions", help, &labels, float(sessions as u64));
    }
    for peer in &status.connections {
        let conn_name = || ("conn_name", names.node(peer.peer));
        for mode in [AckMode::A, AckMode::B, AckMode::C] {
            let labels = [name(), conn_name(), ("protocol", format!("{mode:?}"))];
            let help = "The acknowledgement mode of writes to the peer";
            families.truth("evenkeel_connection_protocol", help, &labels, peer.protocol == mode);
        }
        for device in &peer.peer_devices {
            let labels = [name(), conn_name(), ("volume", device.volume.to_string())];
            for (metric, help, bytes) in [
                ("evenkeel_peer_sent_bytes_total", "Bytes of the volume sent to the peer", device.sent),
                (
                    "evenkeel_peer_received_bytes_total",
                    "Bytes of the volume received from the peer",
                    device.received,
                ),
            ] {
                families.add(Kind::Counter, metric, help, &labels, float(bytes));
            }
            for &state in ReplicationState::ALL {
                let help = "What happens between the replica here and that of the peer";
                let truth = device.replication_state == state;
                families.state("evenkeel_peer_replication_state", help, &labels, state.name(), truth);
            }
            for &state in DiskState::ALL {
                let help = "The disk of the peer";
                let truth = device.peer_disk_state == state;
                families.state("evenkeel_peer_disk_state", help, &labels, state.name(), truth);
            }
            if let Some(seconds) = device.estimated_seconds_to_finish {
                let help = "How long the running resync still takes";
                families.add(Kind::Gauge, "evenkeel_resync_remaining_seconds", help, &labels, float(seconds));
            }
        }
    }
}

fn times(families: &mut Families, latencies: &Latencies, names: &Names) {
    let name = || ("name", latencies.resource.clone());
    for (metric, help, leg) in [
        (
            "evenkeel_initiator_latency_seconds",
            "From the arrival of a command of an initiator to its answer",
            &latencies.initiator,
        ),
        ("evenkeel_disk_latency_seconds", "How long operations of the local disk take", &latencies.disk),
    ] {
        for (operation, histogram) in leg.operations() {
            let labels = [name(), ("operation", operation.to_owned())];
            families.histogram(metric, help, &labels, histogram);
        }
    }
    for (peer, leg) in latencies.peers() {
        // What is read from a peer is not timed.
        for (operation, histogram) in leg.operations().filter(|(operation, _)| *operation != "read") {
            let labels = [name(), ("conn_name", names.node(peer)), ("operation", operation.to_owned())];
            let help = "From sending a change or a flush to a peer until its disk has completed it";
            families.histogram("evenkeel_peer_latency_seconds", help, &labels, histogram);
        }
    }
}

fn process(families: &mut Families, process: &Process) {
    for (kind, name, help, value) in [
        (Kind::Counter, "process_cpu_seconds_total", "Processor time used", process.cpu_seconds),
        (Kind::Gauge, "process_resident_memory_bytes", "Memory in use", float(process.resident_bytes)),
        (Kind::Gauge, "process_open_fds", "Open file descriptors", float(process.open_fds)),
        (Kind::Gauge, "process_max_fds", "How many file descriptors may be open", float(process.max_fds)),
        (Kind::Gauge, "process_start_time_seconds", "When the process started", process.start_seconds),
    ] {
        families.add(kind, name, help, &[], value);
    }
}

const TRANSPORTS: [&str; 2] = ["iscsi", "nvme-tcp"];

/// The series of something that is counted.
struct CountedSeries {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    value: &'static str,
}

const fn counted(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    value: &'static str,
) -> CountedSeries {
    CountedSeries { name, help, label, value }
}

/// In the order of [`Counted`].
const COUNTED: [CountedSeries; 6] = [
    counted("evenkeel_logins_total", LOGINS, "result", "accepted"),
    counted("evenkeel_logins_total", LOGINS, "result", "refused"),
    counted("evenkeel_connection_errors_total", ERRORS, "from", "initiator"),
    counted("evenkeel_peer_handshakes_total", HANDSHAKES, "result", "accepted"),
    counted("evenkeel_peer_handshakes_total", HANDSHAKES, "result", "refused"),
    counted("evenkeel_connection_errors_total", ERRORS, "from", "peer"),
];

const LOGINS: &str = "Logins of initiators and hosts";
const ERRORS: &str = "Connections that were closed because of what was sent on them";
const HANDSHAKES: &str = "Meetings with peers";

#[cfg(test)]
mod tests;
