//! What a frame says: its kinds, and which field of the header holds what.

use block::{Extent, Payload, VolumeNumber};
use bytes::Bytes;
use thiserror::Error;

use super::{DecodeError, body, header::Header};
use crate::{AckMode, Farewell, Generation, NodeSet, Packet, Sequence};

/// What one frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Something for the resource.
    Packet(Packet),
    /// The node with the higher id could use this connection as the link between the two.
    Ready,
    /// This connection is the link between the two nodes from here on. The node with the lower id says it, once.
    Open,
    /// Asks for a pong of the same number.
    Ping(u64),
    /// Answers a ping.
    Pong(u64),
    /// The connection ends here.
    Close(CloseReason),
}

/// Why a node closes a connection to a peer that has authenticated itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The resource wants no connection to this peer now.
    #[error("it wants no connection now (StandAlone)")]
    Unwanted,
    /// Another connection between the two nodes is alive.
    #[error("another connection to it is alive")]
    Duplicate,
    /// A newer connection takes its place.
    #[error("a newer connection takes its place")]
    Replaced,
    /// The resource took the connection down, or the node stops.
    #[error("it took the connection down")]
    Disconnected,
}

impl CloseReason {
    /// Every reason, in the order of their codes.
    pub(super) const ALL: [Self; 4] = [Self::Unwanted, Self::Duplicate, Self::Replaced, Self::Disconnected];
}

impl Frame {
    /// The header, but for the length and the check of the payload, and the payload.
    pub(super) fn into_parts(self) -> (Header, Payload) {
        let (kind, name) = match self {
            Self::Packet(packet) => return packet_parts(packet),
            Self::Ready => (READY, 0),
            Self::Open => (OPEN, 0),
            Self::Ping(number) => (PING, number),
            Self::Pong(number) => (PONG, number),
            Self::Close(reason) => (CLOSE, reason as u64),
        };
        (Header { kind, name, ..Header::default() }, Payload::new())
    }

    /// What a header and its payload say.
    pub(super) fn read(header: &Header, payload: Bytes) -> Result<Self, DecodeError> {
        if !matches!(header.kind, STATE | WRITE | READ_DATA | ALLOCATION_RUNS | BITMAP | SYNC_DATA) {
            header.expect_payload(payload.len(), 0)?;
        }
        Ok(match header.kind {
            READY => Self::Ready,
            OPEN => Self::Open,
            PING => Self::Ping(header.name),
            PONG => Self::Pong(header.name),
            CLOSE => Self::Close(header.coded("reason", &CloseReason::ALL)?),
            _ => Self::Packet(read_packet(header, payload)?),
        })
    }
}

fn packet_parts(packet: Packet) -> (Header, Payload) {
    use Packet as P;
    let empty = Header::default();
    let plain = |header: Header| (header, Payload::new());
    let flagged = |kind, flag: u8, set: bool, name| {
        let flags = if set { flag } else { 0 };
        Header { kind, flags, name, ..empty }
    };
    let asked = |kind, volume: VolumeNumber, name, offset| {
        plain(Header { kind, volume: volume.0, name, offset, ..empty })
    };
    let named = |kind, name| plain(Header { kind, name, ..empty });
    let ranged = |kind, volume: VolumeNumber, name, extent: Extent| {
        let (offset, len) = (extent.offset, extent.len);
        plain(Header { kind, volume: volume.0, name, offset, len, ..empty })
    };
    match packet {
        P::State(state) => (Header { kind: STATE, ..empty }, body::state(&state)),
        P::Goodbye { farewell } => named(GOODBYE, farewell_code(farewell)),
        P::Write { volume, sequence, extent, data, fua, mode, missing } => {
            let (header, _) = ranged(WRITE, volume, sequence.0, extent);
            (Header { flags: change_flags(fua, false, mode), nodes: missing.0, ..header }, data)
        }
        P::WriteZeroes { volume, sequence, extent, unmap, fua, mode, missing } => {
            let (header, none) = ranged(WRITE_ZEROES, volume, sequence.0, extent);
            (Header { flags: change_flags(fua, unmap, mode), nodes: missing.0, ..header }, none)
        }
        P::Flush { sequence } => named(FLUSH, sequence.0),
        P::NewGeneration { volume, sequence, current, missing } => plain(Header {
            kind: NEW_GENERATION,
            volume: volume.0,
            name: sequence.0,
            offset: current.0,
            nodes: missing.0,
            ..empty
        }),
        P::Received { sequence } => named(RECEIVED, sequence.0),
        P::Written { sequence } => named(WRITTEN, sequence.0),
        P::WriteFailed { sequence } => named(WRITE_FAILED, sequence.0),
        P::Everywhere { sequence } => named(EVERYWHERE, sequence.0),
        P::Read { volume, read, extent } => ranged(READ, volume, read, extent),
        P::ReadData { read, data } => (Header { kind: READ_DATA, name: read, ..empty }, data),
        P::ReadFailed { read } => named(READ_FAILED, read),
        P::Allocation { volume, read, extent } => ranged(ALLOCATION, volume, read, extent),
        P::AllocationRuns { read, runs } => {
            (Header { kind: ALLOCATION_RUNS, name: read, ..empty }, body::runs(&runs))
        }
        P::Bitmap { volume, first, words, last } => {
            let flags = if last { FLAG_LAST } else { 0 };
            let header = Header { kind: BITMAP, flags, volume: volume.0, offset: first, ..empty };
            (header, body::words(&words))
        }
        P::SyncRequest { volume, extent, after } => ranged(SYNC_REQUEST, volume, after.0, extent),
        P::SyncData { volume, extent, data, sequence } => {
            (ranged(SYNC_DATA, volume, sequence.0, extent).0, data)
        }
        P::SyncZeroes { volume, extent, sequence } => ranged(SYNC_ZEROES, volume, sequence.0, extent),
        P::SyncFailed { volume, extent } => ranged(SYNC_FAILED, volume, 0, extent),
        P::SyncDone { volume, extent } => ranged(SYNC_DONE, volume, 0, extent),
        P::Promote { request, force } => plain(flagged(PROMOTE, FLAG_FORCE, force, request)),
        P::PromoteAnswer { request, granted, sequence } => {
            let header = flagged(PROMOTE_ANSWER, FLAG_GRANTED, granted, request);
            plain(Header { offset: sequence.0, ..header })
        }
        P::Protocol { mode } => plain(Header { kind: PROTOCOL, flags: mode_flags(mode), ..empty }),
        P::ProtocolKnown { mode } => plain(Header { kind: PROTOCOL_KNOWN, flags: mode_flags(mode), ..empty }),
        P::Invalidate { volume, request } => asked(INVALIDATE, volume, request, 0),
        P::Lead { volume, request } => asked(LEAD, volume, request, 0),
        P::Declare { volume, request, current } => asked(DECLARE, volume, request, current.0),
        P::Answer { request, granted } => plain(flagged(ANSWER, FLAG_GRANTED, granted, request)),
    }
}

fn read_packet(header: &Header, payload: Bytes) -> Result<Packet, DecodeError> {
    use Packet as P;
    let (volume, sequence, read) = (VolumeNumber(header.volume), Sequence(header.name), header.name);
    let (fua, unmap) = (header.flags & FLAG_FUA != 0, header.flags & FLAG_UNMAP != 0);
    let missing = NodeSet(header.nodes);
    Ok(match header.kind {
        STATE => P::State(Box::new(body::read_state(header, &payload)?)),
        GOODBYE => P::Goodbye { farewell: header.coded("farewell", &FAREWELLS)? },
        WRITE => {
            let (extent, mode) = (header.extent()?, header.mode()?);
            header.expect_payload(payload.len(), extent.len)?;
            P::Write { volume, sequence, extent, data: payload.into(), fua, mode, missing }
        }
        WRITE_ZEROES => {
            let (extent, mode) = (header.extent()?, header.mode()?);
            P::WriteZeroes { volume, sequence, extent, unmap, fua, mode, missing }
        }
        FLUSH => P::Flush { sequence },
        NEW_GENERATION => P::NewGeneration { volume, sequence, current: Generation(header.offset), missing },
        RECEIVED => P::Received { sequence },
        WRITTEN => P::Written { sequence },
        WRITE_FAILED => P::WriteFailed { sequence },
        EVERYWHERE => P::Everywhere { sequence },
        READ => P::Read { volume, read, extent: header.extent()? },
        READ_DATA => P::ReadData { read, data: payload.into() },
        READ_FAILED => P::ReadFailed { read },
        ALLOCATION => P::Allocation { volume, read, extent: header.extent()? },
        ALLOCATION_RUNS => P::AllocationRuns { read, runs: body::read_runs(header, &payload)? },
        BITMAP => P::Bitmap {
            volume,
            first: header.offset,
            words: body::read_words(header, &payload)?,
            last: header.flags & FLAG_LAST != 0,
        },
        SYNC_REQUEST => P::SyncRequest { volume, extent: header.extent()?, after: sequence },
        SYNC_DATA => {
            let extent = header.extent()?;
            header.expect_payload(payload.len(), extent.len)?;
            P::SyncData { volume, extent, data: payload.into(), sequence }
        }
        SYNC_ZEROES => P::SyncZeroes { volume, extent: header.extent()?, sequence },
        SYNC_FAILED => P::SyncFailed { volume, extent: header.extent()? },
        SYNC_DONE => P::SyncDone { volume, extent: header.extent()? },
        PROMOTE => P::Promote { request: header.name, force: header.flags & FLAG_FORCE != 0 },
        PROMOTE_ANSWER => P::PromoteAnswer {
            request: header.name,
            granted: header.flags & FLAG_GRANTED != 0,
            sequence: Sequence(header.offset),
        },
        PROTOCOL => P::Protocol { mode: header.mode()? },
        PROTOCOL_KNOWN => P::ProtocolKnown { mode: header.mode()? },
        INVALIDATE => P::Invalidate { volume, request: header.name },
        LEAD => P::Lead { volume, request: header.name },
        DECLARE => P::Declare { volume, request: header.name, current: Generation(header.offset) },
        ANSWER => P::Answer { request: header.name, granted: header.flags & FLAG_GRANTED != 0 },
        kind => return Err(DecodeError::Kind { kind }),
    })
}

impl Header {
    fn extent(&self) -> Result<Extent, DecodeError> {
        let &Self { kind, offset, len, .. } = self;
        if len == 0 || offset.checked_add(len).is_none() {
            return Err(DecodeError::Extent { kind, offset, len });
        }
        Ok(Extent { offset, len })
    }

    const fn mode(&self) -> Result<AckMode, DecodeError> {
        match self.flags & FLAGS_MODE {
            FLAG_MODE_A => Ok(AckMode::A),
            FLAG_MODE_B => Ok(AckMode::B),
            FLAG_MODE_C => Ok(AckMode::C),
            flags => Err(DecodeError::Value { kind: self.kind, field: "mode", value: flags as u64 }),
        }
    }

    fn coded<T: Copy>(&self, field: &'static str, values: &[T]) -> Result<T, DecodeError> {
        let value = usize::try_from(self.name).ok().and_then(|code| values.get(code));
        value.copied().ok_or(DecodeError::Value { kind: self.kind, field, value: self.name })
    }

    const fn expect_payload(&self, payload_len: usize, len: u64) -> Result<(), DecodeError> {
        if payload_len as u64 == len {
            return Ok(());
        }
        Err(DecodeError::Mismatch { kind: self.kind, len, payload_len })
    }
}

const fn change_flags(fua: bool, unmap: bool, mode: AckMode) -> u8 {
    let fua = if fua { FLAG_FUA } else { 0 };
    let unmap = if unmap { FLAG_UNMAP } else { 0 };
    fua | unmap | mode_flags(mode)
}

const fn mode_flags(mode: AckMode) -> u8 {
    match mode {
        AckMode::A => FLAG_MODE_A,
        AckMode::B => FLAG_MODE_B,
        AckMode::C => FLAG_MODE_C,
    }
}

const fn farewell_code(farewell: Farewell) -> u64 {
    match farewell {
        Farewell::Leaving => 0,
        Farewell::Diverged => 1,
        Farewell::Unrelated => 2,
        Farewell::Retry => 3,
    }
}

/// In the order of their codes.
const FAREWELLS: [Farewell; 4] =
    [Farewell::Leaving, Farewell::Diverged, Farewell::Unrelated, Farewell::Retry];

const FLAG_FUA: u8 = 0x01;
const FLAG_UNMAP: u8 = 0x02;
const FLAG_LAST: u8 = 0x04;
const FLAG_FORCE: u8 = 0x08;
const FLAGS_MODE: u8 = 0x30;
const FLAG_MODE_A: u8 = 0x10;
const FLAG_MODE_B: u8 = 0x20;
const FLAG_MODE_C: u8 = 0x30;
const FLAG_GRANTED: u8 = 0x40;

const OPEN: u8 = 0x01;
const PING: u8 = 0x02;
const PONG: u8 = 0x03;
const CLOSE: u8 = 0x04;
const READY: u8 = 0x05;
const STATE: u8 = 0x10;
const GOODBYE: u8 = 0x11;
const PROMOTE: u8 = 0x12;
const PROMOTE_ANSWER: u8 = 0x13;
const PROTOCOL: u8 = 0x14;
const PROTOCOL_KNOWN: u8 = 0x15;
const INVALIDATE: u8 = 0x16;
const DECLARE: u8 = 0x17;
const ANSWER: u8 = 0x18;
const LEAD: u8 = 0x19;
const WRITE: u8 = 0x20;
const WRITE_ZEROES: u8 = 0x21;
const FLUSH: u8 = 0x22;
const NEW_GENERATION: u8 = 0x23;
const RECEIVED: u8 = 0x24;
const WRITTEN: u8 = 0x25;
const WRITE_FAILED: u8 = 0x26;
const EVERYWHERE: u8 = 0x27;
const READ: u8 = 0x30;
const READ_DATA: u8 = 0x31;
const READ_FAILED: u8 = 0x32;
const ALLOCATION: u8 = 0x33;
const ALLOCATION_RUNS: u8 = 0x34;
const BITMAP: u8 = 0x40;
const SYNC_REQUEST: u8 = 0x41;
const SYNC_DATA: u8 = 0x42;
const SYNC_ZEROES: u8 = 0x43;
const SYNC_FAILED: u8 = 0x44;
const SYNC_DONE: u8 = 0x45;
