//! What every message of the authentication starts with.

use bytes::{Bytes, BytesMut};

use super::{AuthError, MESSAGE_MAX};

/// One message, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub(super) kind: u16,
    /// Header included.
    pub(super) bytes: Bytes,
}

impl Message {
    /// Takes one whole message from the start of `buffer`, or leaves the bytes alone.
    ///
    /// # Errors
    /// When the bytes are no message, as soon as that shows.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, AuthError> {
        let known = buffer.len().min(MAGIC.len());
        if buffer[..known] != MAGIC[..known] {
            let mut magic = [0; 4];
            magic[..known].copy_from_slice(&buffer[..known]);
            return Err(AuthError::Magic { magic: u32::from_be_bytes(magic) });
        }
        let Some(&[_, _, _, _, kind_high, kind_low, len_high, len_low]) = buffer.first_chunk() else {
            return Ok(None);
        };
        let kind = u16::from_be_bytes([kind_high, kind_low]);
        let len = HEADER_LEN + usize::from(u16::from_be_bytes([len_high, len_low]));
        if len > MESSAGE_MAX {
            return Err(AuthError::Length { len });
        }
        Ok((buffer.len() >= len).then(|| Self { kind, bytes: buffer.split_to(len).freeze() }))
    }

    pub(super) fn body(&self, expected: u16) -> Result<&[u8], AuthError> {
        if self.kind != expected {
            return Err(AuthError::Kind { expected, received: self.kind });
        }
        Ok(&self.bytes[HEADER_LEN..])
    }

    pub(super) const fn malformed(&self) -> AuthError {
        AuthError::Malformed { kind: self.kind, len: self.bytes.len() - HEADER_LEN }
    }
}

pub(super) fn put_message(kind: u16, body: &[&[u8]], output: &mut Vec<u8>) {
    let len: usize = body.iter().map(|part| part.len()).sum();
    assert!(HEADER_LEN + len <= MESSAGE_MAX, "a message of {len} bytes: the names were not checked");
    output.extend_from_slice(&MAGIC);
    output.extend_from_slice(&kind.to_be_bytes());
    output.extend_from_slice(&u16::try_from(len).expect("just compared").to_be_bytes());
    for part in body {
        output.extend_from_slice(part);
    }
}

pub(super) const HELLO: u16 = 1;
pub(super) const PROOF: u16 = 2;
pub(super) const VERDICT: u16 = 3;

const MAGIC: [u8; 4] = *b"EKh1";
const HEADER_LEN: usize = 8;
