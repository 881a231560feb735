//! What a finding follows from, as far as the node knows: one fact a line.

use replication::DiskState;

use super::{Connection, Device, PeerDevice, Reason, Resource, Written, text::kib};

/// How each peer stands.
pub(super) fn nodes(resource: &Resource) -> Vec<String> {
    let peer = |peer: &Connection| format!("{}: {}", peer.name, peer.connection_state);
    resource.connections.iter().map(peer).collect()
}

/// What decides about a local disk: what the peers have.
pub(super) fn disk(resource: &Resource, device: &Device) -> Vec<String> {
    if device.disk_state == DiskState::Diskless {
        return Vec::new();
    }
    let mut facts = vec![format!("generation here: {}", device.generation)];
    for peer in &resource.connections {
        let theirs = peer.peer_devices.iter().find(|theirs| theirs.volume == device.volume);
        let Some(theirs) = theirs.filter(|theirs| !theirs.peer_client) else { continue };
        let (connection, state) = (peer.connection_state, theirs.peer_disk_state);
        let dirty = kib(theirs.out_of_sync);
        facts.push(format!("{}: {connection}, disk {state}, {dirty} differ as far as known", peer.name));
    }
    facts
}

/// Why a connection is not there, and what both sides wrote where that is why.
pub(super) fn parting(resource: &Resource, peer: &Connection) -> Vec<String> {
    let Some(parting) = &peer.parting else { return Vec::new() };
    if parting.reason == Reason::SplitBrain && parting.volumes.is_empty() {
        return vec![format!("{} found it; `evenkeel why {}` there says more", peer.name, resource.name)];
    }
    let undecided = |policy: &String| format!("no policy decided: {policy}");
    let mut facts: Vec<_> =
        Some(&parting.policy).filter(|policy| !policy.is_empty()).map(undecided).into_iter().collect();
    for volume in &parting.volumes {
        let number = volume.volume;
        facts.push(format!("volume {number}, generation that both had: {}", since(&volume.here)));
        facts.push(format!("volume {number}, written here: {}", written(&volume.here)));
        facts.push(format!("volume {number}, written on {}: {}", peer.name, written(&volume.there)));
    }
    facts
}

/// How much a resync that is held up still has to copy, and who holds it up.
pub(super) fn resync(device: &PeerDevice) -> Vec<String> {
    let held = format!("held up by: {}", device.resync_suspended);
    vec![format!("still to copy: {}", kib(device.out_of_sync)), held]
}

/// How much of a peer's replica differs.
pub(super) fn peer_disk(device: &PeerDevice) -> Vec<String> {
    match device.out_of_sync {
        0 => Vec::new(),
        dirty => vec![format!("differs as far as known: {}", kib(dirty))],
    }
}

fn since(written: &Written) -> &str {
    if written.since.bytes().all(|digit| digit == b'0') { "not known" } else { &written.since }
}

fn written(written: &Written) -> String {
    let role = if written.primary { ", is Primary" } else { "" };
    format!("at most {} since then, generation {}{role}", kib(written.changed), written.generation)
}
