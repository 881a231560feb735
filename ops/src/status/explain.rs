//! What a state that is not normal means, and what to do about it.
//!
//! A table: the first row of a thing's rules that applies explains it. `status` prints the rows, `why` what they follow from
//! as well.

use replication::{ConnectionState, DiskState, ReplicationState, Role};
use serde::{Deserialize, Serialize};

use super::{Connection, Device, PeerDevice, Reason, Resource, why};

/// A state that is not normal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about and how it stands: `bravo: connection:Connecting`.
    pub what: String,
    /// Why it is so, where this node knows.
    pub cause: Option<String>,
    /// What that means.
    pub meaning: String,
    /// What shows it: which nodes are missing, what was written where.
    pub evidence: Vec<String>,
    /// What to do about it: a command where there is one.
    pub remedy: String,
}

/// Everything of a resource that is not normal, in the order of `status`.
#[must_use]
pub fn findings(resource: &Resource) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note =
        |what: String, cause: Option<&String>, rule: Option<&Rule>, peer: &str, evidence: Vec<String>| {
            findings.extend(rule.map(|rule| Finding {
                what,
                cause: cause.cloned(),
                meaning: rule.meaning.to_owned(),
                evidence,
                remedy: rule.remedy.replace("RESOURCE", &resource.name).replace("PEER", peer),
            }));
        };
    if resource.suspended {
        note("suspended".to_owned(), None, Some(&SUSPENDED), "", why::nodes(resource));
    }
    for device in &resource.devices {
        let what = |state: &str| format!("volume {}: {state}", device.volume);
        let (state, cause) = (format!("disk:{}", device.disk_state), device.trouble.as_ref());
        note(what(&state), cause, disk(resource, device), "", why::disk(resource, device));
        note(what("quorum:no"), None, (!device.quorum).then_some(&QUORUM), "", why::nodes(resource));
    }
    for peer in &resource.connections {
        let what = format!("{}: connection:{}", peer.name, peer.connection_state);
        note(what, peer.trouble.as_ref(), connection(peer), &peer.name, why::parting(resource, peer));
        for device in &peer.peer_devices {
            let what = |state: String| format!("{}, volume {}: {state}", peer.name, device.volume);
            let states = format!("replication:{}", device.replication_state);
            note(what(states), None, replication(device), &peer.name, why::resync(device));
            let state = format!("peer-disk:{}", device.peer_disk_state);
            note(what(state), None, peer_disk(peer, device), &peer.name, why::peer_disk(device));
        }
    }
    findings
}

struct Rule {
    meaning: &'static str,
    /// `RESOURCE` and `PEER` stand for the names.
    remedy: &'static str,
}

fn disk(resource: &Resource, device: &Device) -> Option<&'static Rule> {
    let mut here = resource.connections.iter().flat_map(|peer| &peer.peer_devices);
    let syncing = here.clone().any(|peer| peer.volume == device.volume && peer.is_syncing());
    let waits = |peer: &PeerDevice| {
        peer.volume == device.volume && peer.replication_state == ReplicationState::PausedSyncT
    };
    match device.disk_state {
        DiskState::UpToDate if device.trouble.is_some() => Some(&SLOW_DISK),
        DiskState::UpToDate => None,
        DiskState::Diskless if device.client => None,
        DiskState::Diskless => Some(&LOST_DISK),
        DiskState::Failed => Some(&FAILED_DISK),
        DiskState::Attaching | DiskState::Negotiating => Some(&STARTING_DISK),
        DiskState::Inconsistent | DiskState::Outdated if syncing && here.any(waits) => Some(&HELD_UP),
        DiskState::Inconsistent | DiskState::Outdated if syncing => Some(&CATCHING_UP),
        DiskState::Inconsistent if device.fresh => Some(&FRESH),
        DiskState::Inconsistent => Some(&INCONSISTENT),
        DiskState::Outdated => Some(&OUTDATED),
        DiskState::Consistent | DiskState::DUnknown => Some(&CONSISTENT),
    }
}

fn connection(peer: &Connection) -> Option<&'static Rule> {
    match peer.connection_state {
        ConnectionState::Connected if peer.congested => Some(&CONGESTED),
        ConnectionState::Connected => None,
        ConnectionState::StandAlone => match &peer.parting {
            None => Some(&STAND_ALONE),
            Some(parting) => match parting.reason {
                Reason::Disconnected => Some(&DISCONNECTED),
                Reason::SplitBrain => Some(&SPLIT_BRAIN),
                Reason::Unrelated => Some(&UNRELATED),
            },
        },
        ConnectionState::Disconnecting => Some(&DISCONNECTING),
        ConnectionState::ProtocolError => Some(&PROTOCOL_ERROR),
        ConnectionState::Connecting | ConnectionState::Unconnected if peer.trouble.is_some() => {
            Some(&NOT_MET)
        }
        ConnectionState::Connecting | ConnectionState::Unconnected => Some(&CONNECTING),
        ConnectionState::Timeout
        | ConnectionState::BrokenPipe
        | ConnectionState::NetworkFailure
        | ConnectionState::TearDown => Some(&BROKEN),
    }
}

fn replication(device: &PeerDevice) -> Option<&'static Rule> {
    match device.replication_state {
        ReplicationState::PausedSyncS | ReplicationState::PausedSyncT => {
            Some(if device.resync_suspended == "dependency" { &PAUSED } else { &PAUSED_BY_OPERATOR })
        }
        ReplicationState::Off
        | ReplicationState::Established
        | ReplicationState::StartingSyncS
        | ReplicationState::StartingSyncT
        | ReplicationState::WFBitMapS
        | ReplicationState::WFBitMapT
        | ReplicationState::SyncSource
        | ReplicationState::SyncTarget
        | ReplicationState::VerifyS
        | ReplicationState::VerifyT => None,
    }
}

fn peer_disk(peer: &Connection, device: &PeerDevice) -> Option<&'static Rule> {
    // What is known of a peer that is not connected is old: the connection is what has to be mended.
    if peer.connection_state != ConnectionState::Connected || peer.peer_role == Role::Unknown {
        return None;
    }
    match device.peer_disk_state {
        DiskState::UpToDate | DiskState::Attaching | DiskState::Negotiating => None,
        DiskState::Diskless if device.peer_client => None,
        DiskState::Inconsistent | DiskState::Outdated if device.is_syncing() => None,
        DiskState::Diskless | DiskState::Failed => Some(&PEER_LOST_DISK),
        DiskState::Inconsistent | DiskState::Outdated | DiskState::Consistent | DiskState::DUnknown => {
            Some(&PEER_OLD)
        }
    }
}

const SUSPENDED: Rule = Rule {
    meaning: "commands wait, because this node may not answer them now",
    remedy: "bring the nodes that are missing below back; the commands go on by themselves",
};

const QUORUM: Rule = Rule {
    meaning: "this node does not see enough of the others to know that nobody else writes",
    remedy: "bring the nodes that are missing below back, or the network to them",
};

const LOST_DISK: Rule = Rule {
    meaning: "this node has no usable copy of the volume; peers serve it",
    remedy: "make room, or mend or replace the disk, then `evenkeel attach RESOURCE/VOLUME`; one that carries no label needs `evenkeel \
             metadata create RESOURCE/VOLUME` first, with the node stopped",
};

const FAILED_DISK: Rule = Rule {
    meaning: "the disk failed and is being given up; peers serve the volume",
    remedy: "replace the disk, and start the node again",
};

const SLOW_DISK: Rule = Rule {
    meaning: "the disk does not answer, and there is no other good copy to go on with: what needs it waits",
    remedy: "mend the disk, or connect a peer with good data; this node goes on by itself then",
};

const STARTING_DISK: Rule = Rule { meaning: "the disk is being taken into use", remedy: "wait a moment" };

const CATCHING_UP: Rule = Rule {
    meaning: "what the disk lacks is being copied from a peer; reads are served by peers meanwhile",
    remedy: "evenkeel wait RESOURCE up-to-date",
};

const HELD_UP: Rule = Rule {
    meaning: "what the disk lacks waits to be copied from a peer; reads are served by peers meanwhile",
    remedy: "see below what holds it up",
};

const FRESH: Rule = Rule {
    meaning: "nothing was ever written here; it becomes good once every node with a disk for the volume has met",
    remedy: "connect the others; if they are lost for good, and an empty volume is what you want: \
             evenkeel primary RESOURCE --force",
};

const INCONSISTENT: Rule = Rule {
    meaning: "the data here is incomplete, and no peer with good data is connected",
    remedy: "connect a peer with good data; if there is none any more: evenkeel primary RESOURCE --force",
};

const OUTDATED: Rule = Rule {
    meaning: "a peer has newer data",
    remedy: "connect it; if it is lost for good: evenkeel primary RESOURCE --force",
};

const CONSISTENT: Rule = Rule {
    meaning: "the data is complete, but whether a peer has newer data is not known",
    remedy: "connect the peers; if they are lost for good: evenkeel primary RESOURCE --force",
};

const CONGESTED: Rule = Rule {
    meaning: "more is written than the network or the peer takes",
    remedy: "look at the load of the network and of the disks of PEER",
};

const STAND_ALONE: Rule = Rule {
    meaning: "no connection is wanted: after `disconnect`, or because both sides were written while apart",
    remedy: "evenkeel connect RESOURCE --peer PEER; after a split brain, on the node whose writes go: \
             evenkeel connect RESOURCE --discard-my-data",
};

const DISCONNECTED: Rule = Rule {
    meaning: "an operator disconnected; the peer misses what is written now",
    remedy: "evenkeel connect RESOURCE --peer PEER",
};

const SPLIT_BRAIN: Rule = Rule {
    meaning: "both sides were written while they were apart; nothing is copied until you say whose writes go",
    remedy: "on the node whose writes go: evenkeel secondary RESOURCE && \
             evenkeel connect RESOURCE --discard-my-data; on the other: evenkeel connect RESOURCE",
};

const UNRELATED: Rule = Rule {
    meaning: "the two hold volumes that have nothing in common, or that differ in size",
    remedy: "compare `size` and `disks` of both configuration files; the data here is kept until you replace the disk",
};

const DISCONNECTING: Rule = Rule { meaning: "the connection is being taken down", remedy: "wait a moment" };

const PROTOCOL_ERROR: Rule = Rule {
    meaning: "the peer was refused, or refused this node",
    remedy: "compare the version, the configuration file and the secret of PEER with this node's; the log has the reason",
};

const CONNECTING: Rule = Rule {
    meaning: "the peer does not answer; it misses what is written now, and gets it when it is back",
    remedy: "see that evenkeel runs on PEER, and that its replication address can be reached from here",
};

const NOT_MET: Rule = Rule {
    meaning: "the peer is there, but it and this node do not come together; it misses what is written now",
    remedy: "mend the cause: compare the configuration file, the secret and the version of PEER with this node's; \
             they connect by themselves then",
};

const BROKEN: Rule = Rule {
    meaning: "the connection broke and is made again",
    remedy: "wait a moment; if it does not come back, see that evenkeel runs on PEER",
};

const PAUSED: Rule =
    Rule { meaning: "the resync is held up", remedy: "it goes on by itself once what it waits for is done" };

const PAUSED_BY_OPERATOR: Rule = Rule {
    meaning: "an operator holds the resync up; what was not copied yet stays as it is",
    remedy: "on the node where it was paused (user: here, peer: there): evenkeel resume-sync RESOURCE",
};

const PEER_LOST_DISK: Rule = Rule {
    meaning: "the peer has no usable copy of the volume",
    remedy: "read why in the log of PEER, mend or replace its disk, and start it again",
};

const PEER_OLD: Rule = Rule {
    meaning: "the peer's copy is not good, and nothing is being copied to it from here",
    remedy: "wait until a node with good data is connected to PEER",
};
