//! The bytes between two nodes once they have authenticated each other ([`crate::authenticate`] comes before).
//!
//! A connection carries frames, each one header of 48 bytes and the payload it announces. Numbers are
//! big-endian. A field that a kind does not use is sent as zero and not looked at.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | magic | `EKp1` |
//! | 4 | kind | what the frame says |
//! | 5 | flags | 01 force unit access, 02 unmap, 04 last, 08 force, 40 granted; 10, 20, 30 acknowledgement mode A, B, C |
//! | 6..8 | volume | number of the volume |
//! | 8..16 | name | sequence of a change, name of a read or request, number of a ping, code of a reason |
//! | 16..24 | offset | first byte of the extent; first word of a bitmap; a generation |
//! | 24..32 | length | bytes of the extent |
//! | 32..36 | nodes | one bit per node |
//! | 36..40 | payload length | bytes that follow the header |
//! | 40..44 | payload check | CRC32C of the payload |
//! | 44..48 | header check | CRC32C of bytes 0..44 |
//!
//! The header check is compared before any field is used, and the payload check before the payload is: a bit that
//! flipped on the way, where TCP's own sum missed it, breaks the connection and not the data.

mod body;
mod frame;
mod header;
mod output;

use bytes::{Buf, BytesMut};
use crc_fast::crc32_iscsi;
use thiserror::Error;

pub use frame::{CloseReason, Frame};
pub use header::HEADER_LEN;
pub use output::Output;

use header::Header;

/// The longest payload of a frame, in bytes. A longer write is several packets.
pub const PAYLOAD_MAX: usize = 16 << 20;

/// Takes frames from a receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// The longest payload that is taken, in bytes.
    pub payload_max: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { payload_max: PAYLOAD_MAX }
    }
}

impl Decoder {
    /// Takes one whole frame from the start of `buffer`, or leaves the bytes alone and makes room for the rest of
    /// the frame. A payload shares the buffer.
    ///
    /// # Errors
    /// When the bytes are no frame. The connection is of no use any more.
    pub fn next(&self, buffer: &mut BytesMut) -> Result<Option<Frame>, DecodeError> {
        let Some(header) = buffer.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Header::read(header)?;
        let payload_len = header.payload_len as usize;
        if payload_len > self.payload_max {
            let payload_max = self.payload_max;
            return Err(DecodeError::PayloadLength { kind: header.kind, payload_len, payload_max });
        }
        let frame_len = HEADER_LEN + payload_len;
        if buffer.len() < frame_len {
            buffer.reserve(frame_len - buffer.len());
            return Ok(None);
        }
        buffer.advance(HEADER_LEN);
        if payload_len == 0 {
            return Frame::read(&header, bytes::Bytes::new()).map(Some);
        }
        let payload = buffer.split_to(payload_len).freeze();
        let computed = crc32_iscsi(&payload);
        if computed != header.payload_check {
            return Err(DecodeError::PayloadCheck {
                kind: header.kind,
                payload_len,
                computed,
                received: header.payload_check,
            });
        }
        Frame::read(&header, payload).map(Some)
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The frame does not start as one.
    #[error("a frame starts with {magic:#010x}")]
    Magic {
        /// What stands there.
        magic: u32,
    },
    /// The header was damaged.
    #[error("the header's CRC32C is {computed:#010x}, and {received:#010x} was sent")]
    HeaderCheck {
        /// Of the bytes as they came.
        computed: u32,
        /// As the sender computed it.
        received: u32,
    },
    /// The payload was damaged.
    #[error(
        "the CRC32C of {payload_len} bytes of payload is {computed:#010x}, and {received:#010x} was sent (kind {kind:#04x})"
    )]
    PayloadCheck {
        /// The kind of the frame.
        kind: u8,
        /// In bytes.
        payload_len: usize,
        /// Of the bytes as they came.
        computed: u32,
        /// As the sender computed it.
        received: u32,
    },
    /// The payload is longer than we take.
    #[error("a payload of {payload_len} bytes exceeds {payload_max} (kind {kind:#04x})")]
    PayloadLength {
        /// The kind of the frame.
        kind: u8,
        /// As announced, in bytes.
        payload_len: usize,
        /// The limit, in bytes.
        payload_max: usize,
    },
    /// The kind is none that we know.
    #[error("kind {kind:#04x} is unknown")]
    Kind {
        /// As received.
        kind: u8,
    },
    /// The extent has no bytes or leaves 64 bits.
    #[error("{len} bytes from {offset} on are no extent (kind {kind:#04x})")]
    Extent {
        /// The kind of the frame.
        kind: u8,
        /// As received, in bytes.
        offset: u64,
        /// As received, in bytes.
        len: u64,
    },
    /// The payload is not as long as the rest of the frame says.
    #[error("a payload of {payload_len} bytes does not fit a frame of kind {kind:#04x} and length {len}")]
    Mismatch {
        /// The kind of the frame.
        kind: u8,
        /// The length field.
        len: u64,
        /// In bytes.
        payload_len: usize,
    },
    /// A field has a value that means nothing.
    #[error("{field} has the value {value:#x} (kind {kind:#04x})")]
    Value {
        /// The kind of the frame.
        kind: u8,
        /// Which field.
        field: &'static str,
        /// As received.
        value: u64,
    },
}
