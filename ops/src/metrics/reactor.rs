//! The series of LINBIT's drbd-reactor, with its names and labels (its plugin `prometheus`, with `enums`).
//!
//! Its label `minor` is missing, because there is no kernel device; so are the promotion score, whose formula is
//! DRBD's own, and `alsuspended`, which never is. `drbd_peerdevice_{sent,received}_bytes` count, and would be called
//! `_total`; they are gauges here, since `promtool` allows no counter without that, and twins of ours are counters.

use replication::{ConnectionState, ConnectionStatus, DeviceStatus, DiskState, ResourceStatus, Role};

use super::{
    Scrape,
    family::{Families, Kind, Labels, float},
};

pub(super) fn add(families: &mut Families, scrape: &Scrape<'_>) {
    families.truth(
        "drbdreactor_up",
        "Always 1: the dashboard of drbd-reactor finds its instances by it",
        &[],
        true,
    );
    let count = float(scrape.resources.len() as u64);
    families.add(Kind::Gauge, "drbd_resource_resources", "Number of resources", &[], count);
    for (status, transports) in scrape.resources {
        let name = ("name", status.name.clone());
        for &role in Role::ALL {
            let labels = [name.clone(), ("drbd_resource_role", role.name().to_owned())];
            families.truth(
                "drbd_resource_role",
                "The role of the resource on this node",
                &labels,
                status.role == role,
            );
        }
        for (metric, help, truth) in [
            ("drbd_resource_suspended", "Whether commands are held", status.suspended),
            ("drbd_resource_maypromote", "Whether this node may become Primary", may_promote(status)),
            ("drbd_resource_forceiofailures", "Whether commands are made to fail", false),
        ] {
            families.truth(metric, help, std::slice::from_ref(&name), truth);
        }
        for device in &status.devices {
            let labels = [name.clone(), ("volume", device.volume.to_string())];
            self::device(families, device, &labels, !transports.is_empty());
        }
        for peer in &status.connections {
            let id = ("peer_node_id", peer.peer.0.to_string());
            let labels = [name.clone(), ("conn_name", scrape.names.node(peer.peer)), id];
            connection(families, peer, &labels);
        }
    }
}

/// Good data is in reach, and nobody else serves it.
fn may_promote(status: &ResourceStatus) -> bool {
    let nobody_else = status.connections.iter().all(|peer| peer.peer_role != Role::Primary);
    let good = |device: &DeviceStatus| {
        let mut peers = status.connections.iter().flat_map(|peer| &peer.peer_devices);
        device.disk_state == DiskState::UpToDate
            || peers.any(|peer| peer.volume == device.volume && peer.peer_disk_state == DiskState::UpToDate)
    };
    let reachable = status.devices.iter().all(|device| device.quorum && good(device));
    status.role == Role::Secondary && nobody_else && reachable
}

fn device(families: &mut Families, device: &DeviceStatus, labels: &Labels<'_>, open: bool) {
    for &state in DiskState::ALL {
        let labels = with(labels, "drbd_device_state", state.name());
        families.truth("drbd_device_state", "The local disk", &labels, device.disk_state == state);
    }
    let lost = !device.client && device.disk_state == DiskState::Diskless;
    for (metric, help, truth) in [
        ("drbd_device_client", "Whether this node is diskless by intent", device.client),
        ("drbd_device_unintentionaldiskless", "Whether this node lost its disk", lost),
        ("drbd_device_quorum", "Whether this node has quorum", device.quorum),
        ("drbd_device_open", "Whether anyone is logged in to the resource", open),
    ] {
        families.truth(metric, help, labels, truth);
    }
    let gauge = Kind::Gauge;
    let counter = Kind::Counter;
    for (kind, metric, help, value) in [
        (gauge, "drbd_device_size_bytes", "The size of the volume", device.size),
        (counter, "drbd_device_read_bytes_total", "Bytes read from the local disk", device.read),
        (counter, "drbd_device_written_bytes_total", "Bytes written to the local disk", device.written),
        (counter, "drbd_device_alwrites_total", "Transactions of the activity log", device.al_writes),
        (counter, "drbd_device_bmwrites_total", "Writes of the bitmap", device.bm_writes),
        (gauge, "drbd_device_upperpending", "Commands that are not answered yet", device.upper_pending),
        (gauge, "drbd_device_lowerpending", "Operations of the local disk in flight", device.lower_pending),
    ] {
        families.add(kind, metric, help, labels, float(value));
    }
}

fn connection(families: &mut Families, peer: &ConnectionStatus, labels: &Labels<'_>) {
    for &state in ConnectionState::ALL {
        let labels = with(labels, "drbd_connection_state", state.name());
        families.truth("drbd_connection_state", "The connection to the peer", &labels, peer.state == state);
    }
    families.truth(
        "drbd_connection_congested",
        "Whether its queue is over its bound",
        labels,
        peer.congested,
    );
    for (metric, help, bytes) in [
        ("drbd_connection_apinflight_bytes", "Writes sent and not acknowledged", peer.ap_in_flight),
        ("drbd_connection_rsinflight_bytes", "Resync sent and not acknowledged", peer.rs_in_flight),
    ] {
        families.add(Kind::Gauge, metric, help, labels, float(bytes));
    }
    for device in &peer.peer_devices {
        let labels = with(labels, "volume", &device.volume.to_string());
        for (metric, help, bytes) in [
            ("drbd_peerdevice_outofsync_bytes", "Bytes that differ, as far as known", device.out_of_sync),
            ("drbd_peerdevice_sent_bytes", "Bytes sent to the peer so far", device.sent),
            ("drbd_peerdevice_received_bytes", "Bytes received from the peer so far", device.received),
        ] {
            families.add(Kind::Gauge, metric, help, &labels, float(bytes));
        }
    }
}

fn with<'l>(labels: &Labels<'l>, name: &'l str, value: &str) -> Vec<(&'l str, String)> {
    labels.iter().cloned().chain([(name, value.to_owned())]).collect()
}
