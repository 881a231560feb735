//! What happens to a resource: the one way in.

use block::{Command, CommandId, Payload, Run, VolumeNumber};
use thiserror::Error;

use crate::{AckMode, Found, NodeId, Packet};

/// Names one operation on a local disk from [`crate::Effect::Disk`] to [`Input::Disk`], within one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskOp(pub u64);

/// Names one authenticated connection to a peer; never used again by the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Names an operator's request from [`Input::Operator`] to [`crate::Effect::Reply`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorRequest(pub u64);

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// An initiator asks. The answer is one [`crate::Effect::Complete`].
    Command {
        /// The volume.
        volume: VolumeNumber,
        /// The command's name.
        id: CommandId,
        /// What is asked.
        command: Command,
    },
    /// Nobody waits for a command any more. It is answered at once; a change that was sent keeps its place in the order,
    /// before every later one on the same bytes. A command that was answered already is left alone.
    Abort {
        /// The command's name.
        id: CommandId,
    },
    /// How many sessions use the resource now. With auto-promote, a Primary without sessions steps down.
    Sessions {
        /// How many.
        count: u32,
    },
    /// A disk operation ended.
    Disk {
        /// Its name.
        op: DiskOp,
        /// What came of it.
        result: Result<DiskAnswer, DiskError>,
    },
    /// A peer was met and has authenticated itself.
    PeerConnected {
        /// Who.
        peer: NodeId,
        /// By which connection.
        link: LinkId,
    },
    /// A peer's packet. One of a link that was lost is ignored.
    Packet {
        /// Who sent it.
        peer: NodeId,
        /// By which connection.
        link: LinkId,
        /// What it says.
        packet: Packet,
    },
    /// So many packets, counted from the start of the link, were handed to the socket.
    Sent {
        /// To whom.
        peer: NodeId,
        /// By which connection.
        link: LinkId,
        /// How many since the start of the link.
        packets: u64,
    },
    /// The connection is gone. Nothing more comes from it.
    PeerLost {
        /// To whom.
        peer: NodeId,
        /// Which.
        link: LinkId,
    },
    /// An operator asks. The answer is one [`crate::Effect::Reply`].
    Operator {
        /// The request's name.
        request: OperatorRequest,
        /// What is asked.
        verb: Verb,
    },
    /// What [`crate::Effect::Open`] found; [`Found::Unusable`] where the disk could not be opened.
    Opened {
        /// The volume.
        volume: VolumeNumber,
        /// What is on its disk.
        found: Found,
    },
    /// The moment that [`crate::Effect::WakeAt`] asked for has come.
    Tick,
    /// The node stops: finish what is in flight, take no more.
    Stop,
}

/// What an operator can ask of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Become Primary.
    Primary {
        /// Even if the data here may be old.
        force: bool,
    },
    /// Become Secondary.
    Secondary {
        /// Even if commands have to fail for it.
        force: bool,
    },
    /// Want a connection.
    Connect {
        /// To whom; everyone where `None`.
        peer: Option<NodeId>,
        /// Where the data diverged, give up what was written here.
        discard_my_data: bool,
    },
    /// Take a connection down and stay `StandAlone`.
    Disconnect {
        /// To whom; everyone where `None`.
        peer: Option<NodeId>,
    },
    /// Change the acknowledgement mode. Answered once it holds for every earlier write too.
    Protocol {
        /// Of whose connection; everyone's where `None`.
        peer: Option<NodeId>,
        /// To what.
        mode: AckMode,
    },
    /// Hold resyncs up, or let them go on. It lasts until the node stops, whatever becomes of the link.
    PauseSync {
        /// Of which volume; of all of them where `None`.
        volume: Option<VolumeNumber>,
        /// With whom; with everyone where `None`.
        peer: Option<NodeId>,
        /// Whether they are held up.
        paused: bool,
    },
    /// Go on without the local disk of a volume.
    Detach {
        /// The volume.
        volume: VolumeNumber,
        /// Even if it is in use and no other replica is good.
        force: bool,
    },
    /// Take the local disk of a volume back. Answered once it was opened.
    Attach {
        /// The volume.
        volume: VolumeNumber,
    },
    /// Give up what is here, and copy everything from a peer.
    Invalidate {
        /// The volume.
        volume: VolumeNumber,
    },
    /// Have a peer give up what it has, and copy everything from here.
    InvalidateRemote {
        /// The volume.
        volume: VolumeNumber,
        /// Whose replica.
        peer: NodeId,
    },
    /// Begin a new generation.
    NewGeneration {
        /// The volume.
        volume: VolumeNumber,
        /// Declare replicas that were just created to be equal, so that nothing is copied.
        clear_bitmap: bool,
    },
}

/// What a disk operation brought.
#[derive(Clone, Debug)]
pub enum DiskAnswer {
    /// Done.
    Done,
    /// The bytes read.
    Data(Payload),
    /// What occupies space.
    Allocation(Vec<Run>),
}

/// Why a disk operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum DiskError {
    /// The backing store is full.
    #[error("no space is left in the backing store")]
    NoSpace,
    /// The medium failed.
    #[error("the backing store failed with errno {errno}")]
    Io {
        /// The system's error number.
        errno: i32,
    },
}
