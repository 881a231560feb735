//! What peers tell each other about one resource, once they have authenticated each other. `wire` spells it.

use block::{Extent, Payload, VolumeNumber};

/// The place of a write, flush or discard in the one order of a resource's changes, as its Primary gave it.
/// It starts anew with every link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

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
    },
    /// Everything with a smaller sequence becomes stable before the acknowledgement.
    Flush {
        /// Its place in the order.
        sequence: Sequence,
    },
    /// The change is in memory.
    Received {
        /// Whose.
        sequence: Sequence,
    },
    /// The disk completed the change or the flush.
    Written {
        /// Whose.
        sequence: Sequence,
    },
    /// The disk failed the change or the flush.
    WriteFailed {
        /// Whose.
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
    /// The bytes that were asked for could not be read here.
    ReadFailed {
        /// The read's name.
        read: u64,
    },
}
