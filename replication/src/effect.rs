//! What a resource wants done: the one way out.

use block::{CommandId, Extent, Payload, Status, VolumeNumber};
use bytes::Bytes;
use thiserror::Error;

use crate::{
    ConnectionState, DiskOp, DiskState, Instant, LinkId, NodeId, OperatorRequest, Packet, ReplicationState,
    Role,
};

/// Something to do, in the order given.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Do something with the local disk of a volume and answer with [`crate::Input::Disk`]. Operations that are
    /// out at the same time may be done in any order.
    Disk {
        /// The volume.
        volume: VolumeNumber,
        /// The operation's name.
        op: DiskOp,
        /// What to do.
        request: DiskRequest,
    },
    /// Send a packet. Packets of one link arrive in order or the link is lost.
    Send {
        /// To whom.
        peer: NodeId,
        /// By which connection.
        link: LinkId,
        /// What.
        packet: Packet,
    },
    /// Close a connection, and answer with [`crate::Input::PeerLost`].
    Disconnect {
        /// To whom.
        peer: NodeId,
        /// Which.
        link: LinkId,
        /// Why, in words for a log.
        reason: String,
    },
    /// Whether a connection to the peer is wanted from now on: the shell dials, or stops dialling.
    Want {
        /// Whose.
        peer: NodeId,
        /// Whether it is.
        wanted: bool,
    },
    /// A command is finished.
    Complete {
        /// The command's name.
        id: CommandId,
        /// What became of it.
        status: Status,
    },
    /// An operator's request is finished.
    Reply {
        /// The request's name.
        request: OperatorRequest,
        /// What became of it.
        result: Result<(), Refusal>,
    },
    /// Something changed that operators and front ends want to know.
    Event(Event),
    /// Send [`crate::Input::Tick`] at this moment; replaces an earlier wish.
    WakeAt(Instant),
    /// Open the local disk of a volume again, after what was open of it was closed, and answer with
    /// [`crate::Input::Opened`]. Nothing that was asked of the old one is without its answer.
    Open {
        /// The volume.
        volume: VolumeNumber,
    },
    /// Everything in flight at [`crate::Input::Stop`] is finished.
    Stopped,
}

/// What to do with a local disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskRequest {
    /// Read the bytes.
    Read {
        /// Which.
        extent: Extent,
    },
    /// Write the bytes, and make them stable where `fua`.
    Write {
        /// Where.
        extent: Extent,
        /// The bytes.
        data: Payload,
        /// Stable before it ends.
        fua: bool,
    },
    /// Make the bytes zeros, giving their space back where `unmap`, and make that stable where `fua`.
    WriteZeroes {
        /// Which.
        extent: Extent,
        /// Whether the space is given back.
        unmap: bool,
        /// Stable before it ends.
        fua: bool,
    },
    /// Make everything that ended before stable.
    Flush,
    /// Tell what occupies space.
    Allocation {
        /// Where to look.
        extent: Extent,
    },
    /// Write bytes of the metadata area and make them stable.
    WriteMetadata {
        /// Where, counted from the start of the area, in bytes; a multiple of 4096.
        offset: u64,
        /// What; a multiple of 4096 bytes.
        data: Bytes,
    },
}

/// Why an operator's request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}; {remedy}")]
pub struct Refusal {
    /// What stands in the way.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// A change that operators and front ends want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This node's role.
    Role(Role),
    /// The state of a disk of this node.
    Disk {
        /// The volume.
        volume: VolumeNumber,
        /// Its state.
        state: DiskState,
    },
    /// The connection to a peer.
    Connection {
        /// The peer.
        peer: NodeId,
        /// Its state.
        state: ConnectionState,
    },
    /// The role of a peer.
    PeerRole {
        /// The peer.
        peer: NodeId,
        /// Its role.
        role: Role,
    },
    /// A replica of a peer.
    PeerDisk {
        /// The peer.
        peer: NodeId,
        /// The volume.
        volume: VolumeNumber,
        /// Its disk's state.
        disk: DiskState,
        /// What happens between it and ours.
        replication: ReplicationState,
    },
    /// The data of two nodes had diverged, and a policy decided whose goes.
    SplitBrainSettled {
        /// The peer.
        peer: NodeId,
        /// Whose data goes: the peer's, or this node's.
        gives_up: NodeId,
        /// The policy, in words.
        policy: String,
    },
    /// A disk of this node has not answered for `disk_timeout`.
    SlowDisk {
        /// The volume.
        volume: VolumeNumber,
        /// Whether it was given up: good peers serve the volume. Where there is none, the disk is waited for.
        given_up: bool,
    },
    /// Whether this node may serve the resource's volumes to initiators now, or could after a promotion.
    /// Front ends report their paths' states from it.
    Serves {
        /// Whether it does or could.
        able: bool,
    },
}
