//! One transaction of the activity log as it stands on the disk, and what is read from the ring after a crash.
//!
//! ```text
//! 0    magic                     24   slots: u16     28  ranges: u8        34  changes: (slot u16, extent u32)
//! 8    identity of the log       26   shift: u8      30  slice length: u16  ..  ranges: (first u32, last u32)
//! 16   sequence, from 1 on       27   changes: u8    32  first slot: u16    ..  slice: extent u32 each
//!                                                                        4092  CRC-32C
//! ```
//! Each block has what changed, every active range, and a slice of the table, so that enough blocks in a row tell it
//! whole. A block that is torn is not there, and neither is anything behind it: only one is written at a time.

use block::Extent;
use nom::{
    Parser,
    bytes::complete::take,
    multi::count,
    number::complete::{le_u8, le_u16, le_u32, le_u64},
    sequence::pair,
};
use thiserror::Error;

use super::table::{EMPTY, Span};
use crate::meta::checksum;

/// A block of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogBlock {
    /// Tells this log from those that stood there before.
    pub(super) identity: u64,
    /// Counts the transactions.
    pub(super) sequence: u64,
    /// How many slots the table has.
    pub(super) slots: u16,
    /// An extent has two to this power bytes.
    pub(super) shift: u8,
    /// Slots that got another extent.
    pub(super) changes: Vec<(u16, u32)>,
    /// Every range of extents that is active as a whole.
    pub(super) ranges: Vec<Span>,
    /// The slot that the slice begins with.
    pub(super) slice_at: u16,
    /// The extents in those slots after the changes.
    pub(super) slice: Vec<u32>,
}

/// Why the ring does not tell what was active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the activity log has a gap before its block {sequence}")]
pub(crate) struct Gap {
    /// The newest block that is whole.
    pub(crate) sequence: u64,
}

/// What was active, as a log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// The length of an extent, in bytes.
    pub(crate) extent_len: u64,
    /// The extents.
    pub(crate) spans: Vec<Span>,
}

impl Recovered {
    /// The bytes that were active.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.spans.iter().map(|span| span.bytes(self.extent_len))
    }
}

impl LogBlock {
    /// The bytes of the block.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.extend(MAGIC);
        for number in [self.identity, self.sequence] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.slots.to_le_bytes());
        out.extend([self.shift, short(self.changes.len()), short(self.ranges.len()), 0]);
        out.extend(u16::try_from(self.slice.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(self.slice_at.to_le_bytes());
        for (slot, extent) in &self.changes {
            out.extend(slot.to_le_bytes());
            out.extend(extent.to_le_bytes());
        }
        for number in self.ranges.iter().flat_map(|span| [span.first, span.last]).chain(self.slice.clone()) {
            out.extend(number.to_le_bytes());
        }
        out.resize(CHECKSUM_AT, 0);
        out.extend(checksum(&out).to_le_bytes());
        out
    }

    /// Reads a block; `None` where it is not whole.
    pub(super) fn decode(block: &[u8]) -> Option<Self> {
        let (body, sum) = block.split_at_checked(CHECKSUM_AT)?;
        if !body.starts_with(MAGIC) || sum != checksum(body).to_le_bytes() {
            return None;
        }
        Self::read(body).ok().map(|(_, block)| block)
    }

    fn read(body: &[u8]) -> nom::IResult<&[u8], Self> {
        let (rest, (_, identity, sequence)) = (take(MAGIC.len()), le_u64, le_u64).parse(body)?;
        let (rest, (slots, shift, changes, ranges, _)) = (le_u16, le_u8, le_u8, le_u8, le_u8).parse(rest)?;
        let (rest, (slice_len, slice_at)) = (le_u16, le_u16).parse(rest)?;
        let (rest, changes) = count(pair(le_u16, le_u32), usize::from(changes)).parse(rest)?;
        let (rest, ranges) = count(pair(le_u32, le_u32), usize::from(ranges)).parse(rest)?;
        let (rest, slice) = count(le_u32, usize::from(slice_len)).parse(rest)?;
        let ranges = ranges.into_iter().map(|(first, last)| Span { first, last }).collect();
        Ok((rest, Self { identity, sequence, slots, shift, changes, ranges, slice_at, slice }))
    }

    /// Where the block of a sequence stands in the metadata area, in bytes.
    pub(super) const fn offset(sequence: u64) -> u64 {
        (RING_AT + sequence % RING_BLOCKS) * LEN as u64
    }
}

/// What the log of that identity tells of a metadata area; `None` where none of its blocks is there.
///
/// # Errors
/// When blocks are missing that are needed to tell the table.
pub(crate) fn recover(area: &[u8], identity: u64) -> Result<Option<Recovered>, Gap> {
    let at = |sequence: u64| {
        let from = usize::try_from(LogBlock::offset(sequence)).ok()?;
        let block = LogBlock::decode(area.get(from..from + LEN)?)?;
        (block.identity == identity).then_some(block)
    };
    let Some(last) = (0..RING_BLOCKS).filter_map(at).max_by_key(|block| block.sequence) else {
        return Ok(None);
    };
    let gap = Gap { sequence: last.sequence };
    let enough = u64::from(last.slots.div_ceil(SLICE_MAX));
    let from = (last.sequence.saturating_add(1)).saturating_sub(enough).max(1);
    let mut table = vec![EMPTY; usize::from(last.slots)];
    for sequence in from..=last.sequence {
        let block = at(sequence).filter(|block| block.sequence == sequence).ok_or(gap)?;
        let slice = (block.slice_at..).zip(block.slice);
        for (slot, extent) in slice.chain(block.changes) {
            *table.get_mut(usize::from(slot)).ok_or(gap)? = extent;
        }
    }
    let active = table.into_iter().filter(|&extent| extent != EMPTY);
    let spans = active.map(|extent| Span { first: extent, last: extent }).chain(last.ranges).collect();
    let extent_len = 1_u64.checked_shl(u32::from(last.shift)).ok_or(gap)?;
    Ok(Some(Recovered { extent_len, spans }))
}

fn short(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

const MAGIC: &[u8; 8] = b"ek-actlg";
const LEN: usize = 4096;
const CHECKSUM_AT: usize = LEN - 4;
const RING_AT: u64 = 2;
/// How many blocks the ring has: the area from block 2 to where the shell keeps reservations.
const RING_BLOCKS: u64 = 206;
/// How many slots one transaction changes at most.
pub(super) const CHANGES_MAX: usize = 64;
/// How many ranges are active at most.
pub(super) const RANGES_MAX: usize = 8;
/// How many slots a block shows.
pub(super) const SLICE_MAX: u16 = 880;
const _: () = assert!(34 + CHANGES_MAX * 6 + RANGES_MAX * 8 + SLICE_MAX as usize * 4 <= CHECKSUM_AT);
const _: () = assert!((u16::MAX.div_ceil(SLICE_MAX) as u64) < RING_BLOCKS);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn blocks()(
            (identity, sequence) in any::<(u64, u64)>(),
            (slots, shift, slice_at) in any::<(u16, u8, u16)>(),
            changes in prop::collection::vec(any::<(u16, u32)>(), 0..=CHANGES_MAX),
            ranges in prop::collection::vec(any::<(u32, u32)>(), 0..=RANGES_MAX),
            slice in prop::collection::vec(any::<u32>(), 0..=usize::from(SLICE_MAX)),
        ) -> LogBlock {
            let ranges = ranges.into_iter().map(|(first, last)| Span { first, last }).collect();
            LogBlock { identity, sequence, slots, shift, changes, ranges, slice_at, slice }
        }
    }

    proptest! {
        /// P10: a transaction is read back as it was written.
        #[test]
        fn round_trip(block in blocks()) {
            let bytes = block.encode();
            prop_assert_eq!(bytes.len(), LEN);
            prop_assert_eq!(LogBlock::decode(&bytes), Some(block));
        }

        /// P10: a metadata area of any bytes is no reason to fail.
        #[test]
        fn foreign_bytes_are_no_log(block in blocks(), identity: u64) {
            let mut area = vec![0x5a; 256 * LEN];
            let at = usize::try_from(LogBlock::offset(block.sequence)).unwrap();
            area[at..at + LEN].copy_from_slice(&block.encode());
            let _ = recover(&area, block.identity);
            if block.identity != identity {
                prop_assert_eq!(recover(&area, identity), Ok(None));
            }
        }
    }

    /// P10: a block with any bit flipped is not there.
    #[test]
    fn every_flipped_bit_is_noticed() {
        let block = LogBlock {
            identity: 7,
            sequence: 3,
            slots: 1237,
            shift: 22,
            changes: vec![(4, 5)],
            ranges: vec![Span { first: 9, last: 90 }],
            slice_at: 880,
            slice: (0..357).collect(),
        };
        let bytes = block.encode();
        for bit in 0..LEN * 8 {
            let mut torn = bytes.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogBlock::decode(&torn), None, "bit {bit}");
        }
    }
}
