//! What peers tell each other about one resource, once they have authenticated each other. `wire` spells it.

use block::{Extent, Payload, Run, VolumeNumber};

use crate::{AfterSplitBrain, DiskState, NodeId, NodeSet, Role};

/// The place of a change, flush or generation in the one order of a resource, as its Primary gave it. It grows
/// on every link, with gaps; a new Primary goes on above everything that any node it met has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// Names one lineage of data: random, never used twice. Zero where there is none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// When a peer counts as having a write: DRBD's protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AckMode {
    /// Once the write was handed to the socket.
    A,
    /// Once the peer has it in memory.
    B,
    /// Once the peer's disk completed it.
    C,
}

/// One message between two nodes about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// What a node is: the first packet of each end on a link, and again whenever something of it changes.
    State(Box<NodeState>),
    /// The end of the link is near, and why: the sender does not come back by itself where it is
    /// [`Farewell::Diverged`] or [`Farewell::Unrelated`].
    Goodbye {
        /// Why.
        farewell: Farewell,
    },
    /// A write to apply, in the order of `sequence`.
    Write {
        /// The volume.
        volume: VolumeNumber,
        /// Its place in the order.
        sequence: Sequence,
        /// Where.
        extent: Extent,
        /// The bytes.
        data: Payload,
        /// Stable before it is acknowledged as such.
        fua: bool,
        /// The acknowledgement that the Primary waits for.
        mode: AckMode,
        /// The diskful nodes that do not get it.
        missing: NodeSet,
    },
    /// The bytes become zeros, or are discarded where `unmap`.
    WriteZeroes {
        /// The volume.
        volume: VolumeNumber,
        /// Its place in the order.
        sequence: Sequence,
        /// Which bytes.
        extent: Extent,
        /// Whether their space is given back.
        unmap: bool,
        /// Stable before it is acknowledged as such.
        fua: bool,
        /// The acknowledgement that the Primary waits for.
        mode: AckMode,
        /// The diskful nodes that do not get it.
        missing: NodeSet,
    },
    /// Everything with a smaller sequence becomes stable before the acknowledgement, on every volume.
    Flush {
        /// Its place in the order.
        sequence: Sequence,
    },
    /// The data begins a new generation here, persistent before the acknowledgement.
    NewGeneration {
        /// The volume.
        volume: VolumeNumber,
        /// Its place in the order.
        sequence: Sequence,
        /// The generation that begins; the one before it becomes the base towards each of `missing`.
        current: Generation,
        /// The diskful nodes that do not take part in it.
        missing: NodeSet,
    },
    /// The change is in memory.
    Received {
        /// Whose.
        sequence: Sequence,
    },
    /// The disk completed the change, the flush or the generation.
    Written {
        /// Whose.
        sequence: Sequence,
    },
    /// The disk failed the change, the flush or the generation.
    WriteFailed {
        /// Whose.
        sequence: Sequence,
    },
    /// Every change up to here is on every node that the Primary is connected to.
    Everywhere {
        /// The last such change.
        sequence: Sequence,
    },
    /// Asks for bytes, ordered behind every overlapping change that was sent before.
    Read {
        /// The volume.
        volume: VolumeNumber,
        /// Names the read on this link.
        read: u64,
        /// Which bytes.
        extent: Extent,
    },
    /// The bytes that were asked for.
    ReadData {
        /// The read's name.
        read: u64,
        /// The bytes.
        data: Payload,
    },
    /// What was asked for could not be read here.
    ReadFailed {
        /// The read's name.
        read: u64,
    },
    /// Asks what occupies space, ordered like a read; its name is a read's.
    Allocation {
        /// The volume.
        volume: VolumeNumber,
        /// Names the request on this link.
        read: u64,
        /// Where to look.
        extent: Extent,
    },
    /// What occupies space.
    AllocationRuns {
        /// The request's name.
        read: u64,
        /// The runs, in order.
        runs: Vec<Run>,
    },
    /// A piece of the sender's bitmap about the receiver. Both ends of a resync send theirs, and both take the union.
    Bitmap {
        /// The volume.
        volume: VolumeNumber,
        /// The first word of the piece.
        first: u64,
        /// The words: bit `n` of word `w` is the 4 KiB block `64 * w + n`. At most [`Packet::BITMAP_WORDS_MAX`].
        words: Vec<u64>,
        /// Whether this is the last piece.
        last: bool,
    },
    /// The SyncTarget asks for bytes, as they are once the source has seen the Primary's order as far as `after`.
    SyncRequest {
        /// The volume.
        volume: VolumeNumber,
        /// Which bytes.
        extent: Extent,
        /// How far the target has seen the order.
        after: Sequence,
    },
    /// Bytes for the SyncTarget.
    SyncData {
        /// The volume.
        volume: VolumeNumber,
        /// Which bytes.
        extent: Extent,
        /// The bytes.
        data: Payload,
        /// How far the source had seen the order when it read them.
        sequence: Sequence,
    },
    /// Bytes for the SyncTarget that are all zeros.
    SyncZeroes {
        /// The volume.
        volume: VolumeNumber,
        /// Which bytes.
        extent: Extent,
        /// How far the source had seen the order when it read them.
        sequence: Sequence,
    },
    /// The source could not read them.
    SyncFailed {
        /// The volume.
        volume: VolumeNumber,
        /// Which bytes.
        extent: Extent,
    },
    /// The SyncTarget has them on its disk: the blocks are equal.
    SyncDone {
        /// The volume.
        volume: VolumeNumber,
        /// Which bytes.
        extent: Extent,
    },
    /// Asks to become Primary. Whoever consents knows of no other Primary and consents to nobody else until a
    /// [`Packet::State`] of the sender says how it ended.
    Promote {
        /// Names the request on this link.
        request: u64,
        /// Even against the rules about data.
        force: bool,
    },
    /// The answer.
    PromoteAnswer {
        /// The request's name.
        request: u64,
        /// Whether the sender consents.
        granted: bool,
        /// The highest place in the order that the sender has seen.
        sequence: Sequence,
    },
    /// Changes are acknowledged by this mode from here on. The Primary loosens the mode of its changes only
    /// after the answer.
    Protocol {
        /// The mode.
        mode: AckMode,
    },
    /// The answer: the receiver knows.
    ProtocolKnown {
        /// The mode.
        mode: AckMode,
    },
    /// The sender's operator wants the receiver's replica to follow the sender's.
    Invalidate {
        /// The volume.
        volume: VolumeNumber,
        /// Names the request on this link.
        request: u64,
    },
    /// The sender's operator gives its replica up: may it follow the receiver's?
    Lead {
        /// The volume.
        volume: VolumeNumber,
        /// Names the request on this link.
        request: u64,
    },
    /// The sender's operator declares replicas that were just created to be equal, in this generation.
    Declare {
        /// The volume.
        volume: VolumeNumber,
        /// Names the request on this link.
        request: u64,
        /// The generation.
        current: Generation,
    },
    /// The answer to any of these.
    Answer {
        /// The request's name.
        request: u64,
        /// Whether it is done.
        granted: bool,
    },
}

impl Packet {
    /// The longest piece of a bitmap, in words of 64 bits: 32 KiB.
    pub const BITMAP_WORDS_MAX: usize = 4096;
}

/// Why an end takes a link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Farewell {
    /// An operator disconnected, or the node stops.
    Leaving,
    /// Split brain: both ends hold data that the other does not have.
    Diverged,
    /// The ends hold volumes that have nothing in common, or differ in size.
    Unrelated,
    /// The state changed while it was being exchanged, or an end lost a contest: try again.
    Retry,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its role.
    pub role: Role,
    /// The Primary that it knows of, itself included.
    pub primary: Option<NodeId>,
    /// The highest place in the order that it has seen.
    pub sequence: Sequence,
    /// The nodes it is connected to.
    pub connected: NodeSet,
    /// Whether its operator gives up what was written here, where the data diverged.
    pub discard_my_data: bool,
    /// What it does by itself where the data diverged.
    pub after_split_brain: AfterSplitBrain,
    /// How it acknowledges changes that it sends to the receiver.
    pub protocol: AckMode,
    /// Its volumes, in the order of their numbers.
    pub volumes: Vec<VolumeState>,
}

/// What a node has of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is told by itself")]
pub struct VolumeState {
    /// The volume.
    pub volume: VolumeNumber,
    /// Its size, in bytes.
    pub size: u64,
    /// The disk; [`DiskState::Diskless`] where there is none.
    pub disk: DiskState,
    /// The lineage of its data.
    pub lineage: Lineage,
    /// Whether nothing was ever written to it.
    pub fresh: bool,
    /// Whether the node, when it last stopped, did not stop cleanly while changes could be under way.
    pub crashed: bool,
    /// Whether it was Primary when it last stopped or is now.
    pub was_primary: bool,
    /// Whether changes may have been acknowledged by the last Primary that it did not receive (mode A).
    pub lags: bool,
    /// Whether its data is of one moment: false for an interrupted SyncTarget.
    pub consistent: bool,
    /// How many 4 KiB blocks it knows to differ from the receiver's.
    pub dirty_blocks: u64,
    /// Whether its operator holds up resyncs between it and the receiver.
    pub paused: bool,
}

/// Where data comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The generation that the data belongs to.
    pub current: Generation,
    /// The generation that was current when the receiver was last in step; zero where it is in step.
    pub base: Generation,
    /// The generations before, newest first; at most [`Lineage::HISTORY_MAX`].
    pub history: Vec<Generation>,
}

impl Lineage {
    /// How many earlier generations are remembered.
    pub const HISTORY_MAX: usize = 32;
}
