//! The parameter list of EXTENDED COPY(LID1) (SPC-4 6.4.3 to 6.4.6), read field by field.

use bytes::Buf as _;

use super::super::length::len16;
use super::super::sense::{Additional, Sense};
use super::{CSCDS_MAX, DESCRIPTORS_LEN_MAX, SEGMENTS_MAX};

/// What is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// What RECEIVE COPY RESULTS names the copy by, where it is going to ask.
    pub(super) id: Option<u8>,
    /// The logical units that take part.
    pub(super) cscds: Vec<Cscd>,
    /// The copies, in order.
    pub(super) segments: Vec<Segment>,
}

/// A copy source or copy destination: an identification descriptor CSCD descriptor (SPC-4 6.4.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cscd {
    /// Where it stands in the list, in bytes.
    pub(super) at: u16,
    /// There is no such device, on purpose.
    pub(super) null: bool,
    pub(super) device_type: u8,
    pub(super) code_set: u8,
    /// ASSOCIATION and DESIGNATOR TYPE.
    pub(super) kind: u8,
    designator: [u8; DESIGNATOR_LEN_MAX],
    designator_len: usize,
    /// DISK BLOCK LENGTH, in bytes.
    pub(super) block_len: u32,
}

impl Cscd {
    pub(super) fn designator(&self) -> &[u8] {
        &self.designator[..self.designator_len]
    }
}

/// A block device to block device segment descriptor (SPC-4 6.4.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Places in the list of logical units.
    pub(super) source: u16,
    pub(super) destination: u16,
    /// Of both: their blocks have one size, so that DC makes no difference.
    pub(super) blocks: u16,
    /// The first block of the source.
    pub(super) from: u64,
    /// The first block of the destination.
    pub(super) to: u64,
}

/// Reads a list that is not empty.
///
/// # Errors
/// When it breaks its form or a limit that we announce: then nothing of it is copied.
pub(super) fn read(list: &[u8]) -> Result<List, Sense> {
    let (mut header, rest) = list.split_at_checked(HEADER_LEN).ok_or(LIST_LENGTH)?;
    let (id, flags, cscds_len) = (header.get_u8(), header.get_u8(), usize::from(header.get_u16()));
    header.advance(4);
    let (segments_len, inline_len) = (header.get_u32() as usize, header.get_u32());
    let id = match (flags & LIST_ID_USAGE) >> 3 {
        0b00 | 0b10 => Some(id),
        0b11 if id == 0 => None,
        0b11 => return Err(Sense::parameter_byte(0)),
        _ => return Err(Sense::parameter_bit(1, 4)),
    };
    if inline_len != 0 {
        return Err(Sense::illegal(Additional::INLINE_DATA_LENGTH_EXCEEDED));
    }
    if cscds_len.saturating_add(segments_len) > DESCRIPTORS_LEN_MAX {
        return Err(LIST_LENGTH);
    }
    let (cscds, rest) = rest.split_at_checked(cscds_len).ok_or(LIST_LENGTH)?;
    let (segments, _) = rest.split_at_checked(segments_len).ok_or(LIST_LENGTH)?;
    Ok(List { id, cscds: read_cscds(cscds)?, segments: read_segments(segments, HEADER_LEN + cscds_len)? })
}

fn read_cscds(mut rest: &[u8]) -> Result<Vec<Cscd>, Sense> {
    let mut cscds = Vec::with_capacity(rest.len() / CSCD_LEN);
    while let Some(kind) = rest.first() {
        if cscds.len() == usize::from(CSCDS_MAX) {
            return Err(Sense::illegal(Additional::TOO_MANY_TARGET_DESCRIPTORS));
        }
        if *kind != IDENTIFICATION {
            return Err(Sense::illegal(Additional::UNSUPPORTED_TARGET_DESCRIPTOR));
        }
        let (descriptor, others) = rest.split_at_checked(CSCD_LEN).ok_or(Sense::parameter_byte(2))?;
        cscds.push(read_cscd(descriptor, len16(HEADER_LEN + cscds.len() * CSCD_LEN))?);
        rest = others;
    }
    Ok(cscds)
}

fn read_cscd(mut descriptor: &[u8], at: u16) -> Result<Cscd, Sense> {
    descriptor.advance(1);
    // LU ID TYPE tells of a LUN, which this descriptor does not have (SPC-4 6.4.5.1).
    let flags = descriptor.get_u8();
    // The initiator port to use counts where a copy manager reaches a unit over the fabric.
    descriptor.advance(2);
    let (code_set, kind) = (descriptor.get_u8() & 0x0f, descriptor.get_u8() & 0x3f);
    descriptor.advance(1);
    let designator_len = usize::from(descriptor.get_u8());
    if designator_len > DESIGNATOR_LEN_MAX {
        return Err(Sense::parameter_byte(at + 7));
    }
    let mut designator = [0; DESIGNATOR_LEN_MAX];
    descriptor.copy_to_slice(&mut designator);
    let block_len = descriptor.get_u32() & BLOCK_LEN;
    Ok(Cscd {
        at,
        null: flags & NUL != 0,
        device_type: flags & DEVICE_TYPE,
        code_set,
        kind,
        designator,
        designator_len,
        block_len,
    })
}

fn read_segments(mut rest: &[u8], mut at: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::with_capacity(rest.len() / SEGMENT_LEN);
    while let Some(kind) = rest.first() {
        if segments.len() == usize::from(SEGMENTS_MAX) {
            return Err(Sense::illegal(Additional::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        if *kind != BLOCK_TO_BLOCK {
            return Err(Sense::illegal(Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR));
        }
        let (descriptor, others) = rest.split_at_checked(SEGMENT_LEN).ok_or(Sense::parameter_byte(8))?;
        segments.push(read_segment(descriptor, len16(at))?);
        (rest, at) = (others, at + SEGMENT_LEN);
    }
    Ok(segments)
}

fn read_segment(mut descriptor: &[u8], at: u16) -> Result<Segment, Sense> {
    // The type, DC and CAT: all residues are empty where both ends have one block size.
    descriptor.advance(2);
    if usize::from(descriptor.get_u16()) != SEGMENT_LEN - 4 {
        return Err(Sense::parameter_byte(at + 2));
    }
    let (source, destination) = (descriptor.get_u16(), descriptor.get_u16());
    descriptor.advance(2);
    let blocks = descriptor.get_u16();
    let (from, to) = (descriptor.get_u64(), descriptor.get_u64());
    Ok(Segment { source, destination, blocks, from, to })
}

const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
pub(super) const HEADER_LEN: usize = 16;
pub(super) const CSCD_LEN: usize = 32;
pub(super) const SEGMENT_LEN: usize = 28;
/// The descriptor types that we know.
pub(super) const IDENTIFICATION: u8 = 0xe4;
pub(super) const BLOCK_TO_BLOCK: u8 = 0x02;
const DESIGNATOR_LEN_MAX: usize = 20;
const LIST_ID_USAGE: u8 = 0x18;
const NUL: u8 = 0x20;
const DEVICE_TYPE: u8 = 0x1f;
const BLOCK_LEN: u32 = 0x00ff_ffff;
