//! The bytes between two nodes once they have authenticated each other ([`crate::authenticate`] comes before).
//!
//! A connection carries frames, each one header of 48 bytes and the payload it announces. Numbers are
//! big-endian. A field that a kind does not use is sent as zero and not looked at.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | magic | `EKp1` |
//! | 4 | kind | what the frame says |
//! | 5 | flags | 01 force unit access, 02 unmap, 04 last, 08 force or everything, 40 granted; 10, 20, 30 acknowledgement mode A, B, C |
//! | 6..8 | volume | number of the volume |
//! | 8..16 | name | sequence of a change, name of a read or request, number of a ping, code of a reason |
//! | 16..24 | offset | first byte of the extent, first word of a bitmap, a generation, or how far the order was seen |
//! | 24..32 | length | bytes of the extent |
//! | 32..36 | nodes | one bit per node |
//! | 36..40 | payload length | bytes that follow the header |
//! | 40..44 | payload check | CRC32C of the payload |
//! | 44..48 | header check | CRC32C of bytes 0..44 |
//!
//! The header check is compared before any field is used, and the payload check before the payload is: a bit that
//! flipped on the way, where TCP's own sum missed it, breaks the connection and not the data.

#[cfg(test)]
mod any;
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

#[cfg(test)]
mod tests {
    use block::{Extent, VolumeNumber};
    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*, strategy::ValueTree, test_runner::TestRunner};

    use super::{any::frame, *};
    use crate::{AckMode, NodeSet, Packet, Sequence};

    fn encode(frames: &[Frame]) -> BytesMut {
        let mut output = Output::default();
        for frame in frames {
            output.push(frame.clone());
        }
        BytesMut::from(&*output.copy_to_bytes(output.remaining()))
    }

    fn decode(mut bytes: BytesMut) -> Result<Vec<Frame>, DecodeError> {
        let mut frames = Vec::new();
        while let Some(frame) = Decoder::default().next(&mut bytes)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        /// What was sent is what arrives, frame by frame, wherever TCP cuts the stream.
        #[test]
        fn frames_come_back_the_same(frames in vec(frame(), 1..8), cuts in vec(any::<u16>(), 0..8)) {
            let whole = encode(&frames);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| usize::from(cut) % whole.len()).collect();
            cuts.sort_unstable();
            cuts.push(whole.len());
            let (mut received, mut decoded, mut from) = (BytesMut::new(), Vec::new(), 0);
            for to in cuts {
                received.extend_from_slice(&whole[from..to]);
                from = to;
                while let Some(frame) = Decoder::default().next(&mut received).unwrap() {
                    decoded.push(frame);
                }
            }
            prop_assert_eq!(decoded, frames);
            prop_assert!(received.is_empty());
        }

        /// P13: bytes that were damaged, or made up behind right checks, are an error or another frame, never a
        /// panic; with the checks left alone they are an error.
        #[test]
        fn damage_is_an_error(frame in frame(), bit in any::<usize>(), made_up in any::<bool>(), value in any::<u8>()) {
            let mut bytes = encode(&[frame]);
            if made_up {
                let at = bit % bytes.len();
                bytes[at] = value;
                mend(&mut bytes);
                if let Ok(frames) = decode(bytes.clone()) {
                    prop_assert_eq!(decode(encode(&frames)).unwrap(), frames);
                }
            } else {
                let at = bit % (bytes.len() * 8);
                bytes[at / 8] ^= 1 << (at % 8);
                prop_assert!(decode(bytes).is_err());
            }
        }
    }

    /// Makes both checks right again.
    fn mend(bytes: &mut [u8]) {
        let payload_check = crc32_iscsi(&bytes[HEADER_LEN..]);
        bytes[40..44].copy_from_slice(&payload_check.to_be_bytes());
        let header_check = crc32_iscsi(&bytes[..44]);
        bytes[44..48].copy_from_slice(&header_check.to_be_bytes());
    }

    /// P13: whatever stands behind right checks, decoding it is quick, bounded and without panic.
    #[test]
    fn mutations_are_errors_or_frames() {
        let mut frames = TestRunner::deterministic();
        for _ in 0..2_000 {
            let whole = encode(&[frame().new_tree(&mut frames).unwrap().current()]);
            for _ in 0..50 {
                let mut bytes = whole.clone();
                for _ in 0..=frames.rng().next_u32() % 3 {
                    let at = frames.rng().next_u32() as usize % bytes.len();
                    bytes[at] = frames.rng().next_u32().to_be_bytes()[0];
                }
                mend(&mut bytes);
                if let Ok(decoded) = decode(bytes) {
                    assert_eq!(decode(encode(&decoded)), Ok(decoded));
                }
            }
        }
    }

    fn write(len: usize) -> Frame {
        Frame::Packet(Packet::Write {
            volume: VolumeNumber(1),
            sequence: Sequence(2),
            extent: Extent::new(4096, len as u64),
            data: Bytes::from(vec![7; len]).into(),
            fua: true,
            mode: AckMode::C,
            missing: NodeSet(4),
        })
    }

    /// A frame is taken whole or not at all.
    #[test]
    fn every_truncation_waits() {
        let whole = encode(&[write(512)]);
        for cut in 0..whole.len() {
            let mut bytes = BytesMut::from(&whole[..cut]);
            assert_eq!(Decoder::default().next(&mut bytes), Ok(None), "{cut}");
            assert_eq!(bytes, whole[..cut]);
        }
    }

    /// P13: the length is judged before room is made for it.
    #[test]
    fn a_long_payload_is_refused_by_its_header() {
        let decoder = Decoder { payload_max: 511 };
        let mut bytes = BytesMut::from(&encode(&[write(512)])[..HEADER_LEN]);
        let error = DecodeError::PayloadLength { kind: 0x20, payload_len: 512, payload_max: 511 };
        assert_eq!(decoder.next(&mut bytes), Err(error));
        let mut bytes = BytesMut::from(&encode(&[write(512)])[..HEADER_LEN]);
        assert_eq!(Decoder { payload_max: 512 }.next(&mut bytes), Ok(None));
        assert!(bytes.capacity() >= HEADER_LEN + 512, "room for the rest");
    }

    /// A payload is the very bytes of the receive buffer.
    #[test]
    fn a_payload_shares_the_receive_buffer() {
        let mut bytes = encode(&[write(512)]);
        let payload = bytes[HEADER_LEN..].as_ptr();
        let Ok(Some(Frame::Packet(Packet::Write { data, .. }))) = Decoder::default().next(&mut bytes) else {
            panic!("a write");
        };
        assert_eq!(data.parts()[0].as_ptr(), payload);
    }

    /// What no node sends is an error with its evidence.
    #[test]
    fn senseless_fields_are_refused() {
        let changed = |at: usize, value: &[u8]| {
            let mut bytes = encode(&[write(512)]);
            bytes[at..at + value.len()].copy_from_slice(value);
            mend(&mut bytes);
            decode(bytes).unwrap_err()
        };
        assert_eq!(changed(0, b"GET "), DecodeError::Magic { magic: 0x4745_5420 });
        assert_eq!(changed(4, &[0xee]), DecodeError::Mismatch { kind: 0xee, len: 0, payload_len: 512 });
        assert_eq!(changed(5, &[0]), DecodeError::Value { kind: 0x20, field: "mode", value: 0 });
        let far = u64::MAX - 510;
        assert_eq!(
            changed(16, &far.to_be_bytes()),
            DecodeError::Extent { kind: 0x20, offset: far, len: 512 }
        );
        assert_eq!(changed(24, &[0; 8]), DecodeError::Extent { kind: 0x20, offset: 4096, len: 0 });
        assert_eq!(changed(31, &[1]), DecodeError::Mismatch { kind: 0x20, len: 0x201, payload_len: 512 });
    }
}
