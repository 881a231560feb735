//! What is to be sent: headers in one small buffer, payloads shared, everything ready for one gathered write.

use std::collections::VecDeque;
use std::io::IoSlice;

use block::Payload;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

use super::{BHS_LEN, Digests, Header};

/// PDUs on their way to a socket. A shell writes [`Output::slices`] and calls [`Output::advance`] with what went out.
#[derive(Debug, Default)]
pub struct Output {
    digests: Digests,
    /// Headers, padding, digests and short payloads; the bytes before `small_start` are sent.
    small: Vec<u8>,
    small_start: usize,
    segments: VecDeque<Segment>,
    len: usize,
}

/// The next bytes to send: a run of the small buffer, or a payload.
#[derive(Debug)]
enum Segment {
    Small(usize),
    Shared(Bytes),
}

impl Output {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which digests follow headers and data from the next PDU on (RFC 7143 11.2.3).
    pub const fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// How many bytes wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `slices` with the bytes that wait, in order, and returns how many of them were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.small_start;
        let mut filled = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(match segment {
                Segment::Small(len) => {
                    at += len;
                    &self.small[at - len..at]
                }
                Segment::Shared(bytes) => bytes,
            });
            filled += 1;
        }
        filled
    }

    /// Forgets the first `sent` bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, mut sent: usize) {
        assert!(sent <= self.len, "{sent} bytes sent of {}", self.len);
        self.len -= sent;
        while let Some(segment) = self.segments.front_mut() {
            let here = match segment {
                Segment::Small(len) => {
                    let here = sent.min(*len);
                    self.small_start += here;
                    *len -= here;
                    if *len > 0 {
                        return;
                    }
                    here
                }
                Segment::Shared(bytes) if sent < bytes.len() => {
                    bytes::Buf::advance(bytes, sent);
                    return;
                }
                Segment::Shared(bytes) => bytes.len(),
            };
            sent -= here;
            self.segments.pop_front();
        }
        self.small.clear();
        self.small_start = 0;
    }

    /// Appends a PDU. The length of the data segment is put into the header here.
    pub(super) fn push(&mut self, header: Header, data: &Payload) {
        self.push_with_ahs(header, &[], data);
    }

    /// Appends a PDU with additional header segments, a multiple of four bytes.
    pub(super) fn push_with_ahs(&mut self, mut header: Header, ahs: &[u8], data: &Payload) {
        let [_, high, middle, low] = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
        let ahs_words = u8::try_from(ahs.len() / 4).unwrap_or(u8::MAX);
        header.put(4, [ahs_words, high, middle, low]);
        self.compact();
        self.put_small(&header.0);
        self.put_small(ahs);
        if self.digests.header {
            let mut digest = Digest::new(CRC32C);
            digest.update(&header.0);
            digest.update(ahs);
            self.put_small(&wire_digest(&digest));
        }
        if data.is_empty() {
            return;
        }
        for part in data.parts() {
            if part.len() <= COPY_MAX {
                self.put_small(part);
            } else {
                self.len += part.len();
                self.segments.push_back(Segment::Shared(part.clone()));
            }
        }
        let padding = &[0; 3][..data.len().next_multiple_of(4) - data.len()];
        self.put_small(padding);
        if self.digests.data {
            let mut digest = Digest::new(CRC32C);
            data.parts().iter().for_each(|part| digest.update(part));
            digest.update(padding);
            self.put_small(&wire_digest(&digest));
        }
    }

    fn put_small(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.small.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.segments.back_mut() {
            Some(Segment::Small(len)) => *len += bytes.len(),
            _ => self.segments.push_back(Segment::Small(bytes.len())),
        }
    }

    /// A connection that is never idle never empties its queue: what is sent of the small buffer goes before it is
    /// most of it.
    fn compact(&mut self) {
        if self.small_start >= COMPACT_FROM && self.small_start * 2 >= self.small.len() {
            self.small.drain(..self.small_start);
            self.small_start = 0;
        }
    }
}

/// The digest of these bytes as it stands on the wire: CRC32C, least significant byte first (RFC 7143 13.1).
pub(super) fn wire_digest(digest: &Digest) -> [u8; 4] {
    u32::try_from(digest.finalize()).unwrap_or_default().to_le_bytes()
}

/// CRC32C, which iSCSI named first.
pub(super) const CRC32C: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;
/// Payloads of this many bytes or fewer are cheaper to copy than to send from their own place.
const COPY_MAX: usize = 256;
/// How many sent bytes the small buffer may hold before they are worth moving the rest.
const COMPACT_FROM: usize = 64 * BHS_LEN;
