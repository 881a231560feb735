//! The header that every frame starts with.

use bytes::{BufMut, BytesMut};
use crc_fast::crc32_iscsi;
use nom::{
    IResult, Parser,
    number::complete::{be_u8, be_u16, be_u32, be_u64},
};

use super::DecodeError;

/// Length of a frame's header, in bytes.
pub const HEADER_LEN: usize = 48;

/// A header, field by field, in the order of the wire. Magic and header check are added and taken off here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) volume: u16,
    pub(super) name: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) nodes: u32,
    pub(super) payload_len: u32,
    pub(super) payload_check: u32,
}

impl Header {
    /// Reads a header whose check holds.
    pub(super) fn read(bytes: &[u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let (checked, check) = bytes.split_last_chunk::<4>().expect("a header is longer than its check");
        let (magic, received) = (u32::from_be_bytes(first_four(bytes)), u32::from_be_bytes(*check));
        if magic != MAGIC {
            return Err(DecodeError::Magic { magic });
        }
        let computed = crc32_iscsi(checked);
        if computed != received {
            return Err(DecodeError::HeaderCheck { computed, received });
        }
        let (_, header) = fields(checked).expect("44 bytes hold every field");
        Ok(header)
    }

    /// Appends the header with its magic and check.
    pub(super) fn put(&self, target: &mut BytesMut) {
        let start = target.len();
        target.reserve(HEADER_LEN);
        target.put_u32(MAGIC);
        target.put_u8(self.kind);
        target.put_u8(self.flags);
        target.put_u16(self.volume);
        target.put_u64(self.name);
        target.put_u64(self.offset);
        target.put_u64(self.len);
        target.put_u32(self.nodes);
        target.put_u32(self.payload_len);
        target.put_u32(self.payload_check);
        target.put_u32(crc32_iscsi(&target[start..]));
    }
}

fn fields(input: &[u8]) -> IResult<&[u8], Header> {
    let (rest, (_, kind, flags, volume, name, offset, len, nodes, payload_len, payload_check)) =
        (be_u32, be_u8, be_u8, be_u16, be_u64, be_u64, be_u64, be_u32, be_u32, be_u32).parse(input)?;
    Ok((rest, Header { kind, flags, volume, name, offset, len, nodes, payload_len, payload_check }))
}

const fn first_four(bytes: &[u8; HEADER_LEN]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

const MAGIC: u32 = u32::from_be_bytes(*b"EKp1");

#[cfg(test)]
mod tests {
    use super::*;

    /// A header comes back the same, and with any one bit flipped it does not come back at all.
    #[test]
    fn every_flipped_bit_is_found() {
        let header = Header {
            kind: 0x10,
            flags: 0x31,
            volume: 2,
            name: 3,
            offset: 4 << 40,
            len: 4096,
            nodes: 5,
            payload_len: 4096,
            payload_check: 0xdead_beef,
        };
        let mut bytes = BytesMut::new();
        header.put(&mut bytes);
        let bytes: [u8; HEADER_LEN] = bytes[..].try_into().unwrap();
        assert_eq!(Header::read(&bytes), Ok(header));
        for bit in 0..HEADER_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::read(&damaged).is_err(), "bit {bit}");
        }
    }
}
