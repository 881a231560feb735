//! From bytes to PDUs: lengths, padding and digests (RFC 7143 11.2), and what is wrong with them.

use bytes::{Buf, Bytes, BytesMut};
use crc_fast::Digest;
use thiserror::Error;

use super::output::{CRC32C, wire_digest};
use super::{BHS_LEN, Header, Pdu, Received, RejectReason};

/// Which digests were agreed on (RFC 7143 13.1). They count from the full feature phase on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// A CRC32C follows the headers.
    pub header: bool,
    /// A CRC32C follows the data segment.
    pub data: bool,
}

/// Whose PDUs are read: those of the other side are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Opcodes 0x00 to 0x1f.
    Initiator,
    /// Opcodes 0x20 to 0x3f.
    Target,
}

/// Reads one PDU after the other from what a socket brought.
#[derive(Clone, Debug)]
pub struct Decoder {
    sender: Sender,
    data_segment_max: u32,
    digests: Digests,
    /// The header at the start of the buffer was found good, so it is not checked again when more bytes come.
    header_checked: bool,
}

impl Decoder {
    /// A decoder for what `sender` sends that takes data segments of up to `data_segment_max` bytes: the MaxRecvDataSegmentLength that we
    /// declared.
    #[must_use]
    pub const fn new(sender: Sender, data_segment_max: u32, digests: Digests) -> Self {
        Self { sender, data_segment_max, digests, header_checked: false }
    }

    /// Takes one whole PDU from the start of `buffer`, or leaves the bytes alone when it is not whole. A payload
    /// shares the buffer. The header is checked before its data is waited for.
    ///
    /// # Errors
    /// [`DecodeError::reject`] tells whether the PDU can be rejected, and was taken from the buffer; otherwise the
    /// connection is of no use any more.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Received>, DecodeError> {
        let Some(bytes) = buffer.first_chunk::<BHS_LEN>() else { return Ok(None) };
        let header = Header(*bytes);
        let data_len = header.data_len();
        if data_len > self.data_segment_max {
            return Err(DecodeError::Length { data_len, data_segment_max: self.data_segment_max });
        }
        let headers_len = BHS_LEN + header.ahs_len();
        let data_at = headers_len + if self.digests.header { DIGEST_LEN } else { 0 };
        if !self.header_checked && buffer.len() >= data_at {
            if self.digests.header {
                check(&buffer[..headers_len], &buffer[headers_len..data_at])
                    .map_err(|(received, computed)| DecodeError::HeaderDigest { received, computed })?;
            }
            self.header_checked = true;
        }
        let padded_len = (data_len as usize).next_multiple_of(4);
        let digest_len = if self.digests.data && data_len > 0 { DIGEST_LEN } else { 0 };
        let pdu_len = data_at + padded_len + digest_len;
        if buffer.len() < pdu_len {
            return Ok(None);
        }
        self.header_checked = false;
        if data_len == 0 && headers_len == BHS_LEN {
            buffer.advance(pdu_len);
            self.check_sender(&header)?;
            return Ok(Some(Received { header, pdu: Pdu::read(&header, &[], Bytes::new())? }));
        }
        let mut pdu = buffer.split_to(pdu_len).freeze();
        self.check_sender(&header)?;
        if digest_len > 0 {
            let (data, digest) = pdu[data_at..].split_at(padded_len);
            check(data, digest).map_err(|(received, computed)| DecodeError::DataDigest {
                header,
                received,
                computed,
            })?;
        }
        let ahs = pdu.slice(BHS_LEN..headers_len);
        pdu.advance(data_at);
        pdu.truncate(data_len as usize);
        Ok(Some(Received { header, pdu: Pdu::read(&header, &ahs, pdu)? }))
    }
}

impl Decoder {
    fn check_sender(&self, header: &Header) -> Result<(), DecodeError> {
        let sender = if header.opcode() < FIRST_OF_TARGET { Sender::Initiator } else { Sender::Target };
        if sender == self.sender { Ok(()) } else { Err(DecodeError::Opcode { header: *header }) }
    }
}

/// What is wrong with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The data segment is longer than the limit we declared.
    #[error("data segment of {data_len} bytes exceeds the declared {data_segment_max}")]
    Length {
        /// DataSegmentLength as received, in bytes.
        data_len: u32,
        /// The limit we declared, in bytes.
        data_segment_max: u32,
    },
    /// The headers do not match their digest: not even their length can be trusted (RFC 7143 7.8).
    #[error("header digest {received:#010x}, computed {computed:#010x}")]
    HeaderDigest {
        /// As received.
        received: u32,
        /// Of the bytes that came.
        computed: u32,
    },
    /// The data segment does not match its digest.
    #[error("data digest {received:#010x}, computed {computed:#010x} after {header:?}")]
    DataDigest {
        /// The header of the PDU.
        header: Header,
        /// As received.
        received: u32,
        /// Of the bytes that came.
        computed: u32,
    },
    /// The opcode is not one of the standard's for this direction.
    #[error("unsupported opcode in {header:?}")]
    Opcode {
        /// The header of the PDU.
        header: Header,
    },
    /// A field has a value that the standard does not allow.
    #[error("invalid field at byte {at} of {header:?}")]
    Field {
        /// The header of the PDU.
        header: Header,
        /// Where the field is, counted from the start of the header.
        at: u8,
    },
}

impl DecodeError {
    /// The reason and the header of the Reject that answers it (RFC 7143 11.17); `None` where the connection has to
    /// be closed.
    #[must_use]
    pub const fn reject(&self) -> Option<(RejectReason, Header)> {
        match self {
            Self::Length { .. } | Self::HeaderDigest { .. } => None,
            Self::DataDigest { header, .. } => Some((RejectReason::DataDigest, *header)),
            Self::Opcode { header } => Some((RejectReason::NotSupported, *header)),
            Self::Field { header, .. } => Some((RejectReason::InvalidField, *header)),
        }
    }
}

/// Compares a digest with the bytes it is of; both numbers where they differ.
fn check(bytes: &[u8], received: &[u8]) -> Result<(), (u32, u32)> {
    let mut digest = Digest::new(CRC32C);
    digest.update(bytes);
    let computed = wire_digest(&digest);
    if received == computed {
        return Ok(());
    }
    let received = received.first_chunk().copied().unwrap_or_default();
    Err((u32::from_le_bytes(received), u32::from_le_bytes(computed)))
}

const DIGEST_LEN: usize = 4;
const FIRST_OF_TARGET: u8 = 0x20;
