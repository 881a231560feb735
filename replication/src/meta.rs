//! The metadata of a replica on its disk: two copies of the superblock, room for the activity log, a bitmap for each
//! possible peer.
//!
//! ```text
//! block 0, 1      the superblock, written alternately: one copy is whole at every moment
//! block 2..208    the activity log, a ring (see `activity_log`)
//! block 208..256  left to the shell
//! block 256..     bitmaps, one slot for each other node with a disk, in the order of their ids
//! ```
//! Blocks have 4096 bytes, numbers are little-endian. A copy ends in the CRC-32C of everything before.

use block::VolumeNumber;
use bytes::Bytes;
use nom::{
    Parser,
    bytes::complete::take,
    multi::{count, length_count},
    number::complete::{le_u8, le_u16, le_u32, le_u64},
};
use thiserror::Error;

use crate::{Generation, Lineage, NodeId, VolumeConfig, bitmap};

/// How many bytes of metadata a volume needs on each of its disks: a multiple of 4096.
#[must_use]
pub fn metadata_len(volume: &VolumeConfig) -> u64 {
    BITMAPS_AT + slot_len(volume.size) * u64::from(volume.disks.len().saturating_sub(1))
}

/// Why metadata cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// Neither copy of the superblock is whole.
    #[error("no superblock: neither copy has the magic and a right checksum")]
    Missing,
    /// It was written by another version.
    #[error("metadata version {found} is not {VERSION}")]
    Version {
        /// Its version.
        found: u16,
    },
    /// It belongs to something else.
    #[error("the metadata belongs to another {what}: {found:#x}, not {wanted:#x}")]
    Foreign {
        /// What differs.
        what: &'static str,
        /// As it stands in the metadata.
        found: u64,
        /// As the configuration wants it.
        wanted: u64,
    },
}

/// What a replica knows about itself and its peers across a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) cluster: u64,
    pub(crate) resource: u64,
    pub(crate) volume: VolumeNumber,
    pub(crate) node: NodeId,
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    /// Counts the writes of the superblock.
    pub(crate) version: u64,
    /// The highest place in the order of changes seen, as of the last clean stop.
    pub(crate) order: u64,
    pub(crate) current: Generation,
    /// For each node, the generation that it had when it was left behind; zero for one in step.
    pub(crate) bases: [Generation; 32],
    pub(crate) history: Vec<Generation>,
    pub(crate) flags: Flags,
    /// How many extents the activity log may have; zero until one of its blocks is on the disk.
    pub(crate) activity_extents: u32,
    /// The identity of the activity log's blocks; zero where there is no log.
    pub(crate) activity_log: u64,
}

/// What is true of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one bit of the disk format")]
pub(crate) struct Flags {
    /// Nothing was ever written.
    pub(crate) fresh: bool,
    /// The data is of one moment.
    pub(crate) consistent: bool,
    /// A peer is known to be newer.
    pub(crate) outdated: bool,
    /// The node is or was Primary.
    pub(crate) was_primary: bool,
    /// Changes may be under way; a node that finds it set was not stopped cleanly.
    pub(crate) in_use: bool,
    /// The last Primary acknowledged changes that may not have arrived.
    pub(crate) lags: bool,
}

impl Superblock {
    /// The bytes of one copy.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([self.node.0, self.flags.bits()]);
        out.extend(self.block_size.to_le_bytes());
        for number in
            [self.cluster, self.resource, u64::from(self.volume.0), self.size, self.version, self.order]
        {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.current.0.to_le_bytes());
        out.extend(self.bases.iter().flat_map(|base| base.0.to_le_bytes()));
        out.extend(self.activity_extents.to_le_bytes());
        let history = &self.history[..self.history.len().min(Lineage::HISTORY_MAX)];
        out.push(u8::try_from(history.len()).unwrap_or(u8::MAX));
        out.extend(history.iter().flat_map(|generation| generation.0.to_le_bytes()));
        out.extend(self.activity_log.to_le_bytes());
        out.resize(CHECKSUM_AT, 0);
        out.extend(checksum(&out).to_le_bytes());
        out
    }

    /// Reads one copy.
    fn decode(block: &[u8]) -> Result<Self, MetadataError> {
        let (body, sum) = block.split_at_checked(CHECKSUM_AT).ok_or(MetadataError::Missing)?;
        if !body.starts_with(MAGIC) || sum.get(..4) != Some(&checksum(body).to_le_bytes()) {
            return Err(MetadataError::Missing);
        }
        let (superblock, format) = Self::read(body).map_err(|_| MetadataError::Missing)?;
        if format == VERSION { Ok(superblock) } else { Err(MetadataError::Version { found: format }) }
    }

    fn read(body: &[u8]) -> Result<(Self, u16), nom::Err<nom::error::Error<&[u8]>>> {
        let (rest, (_, format, node, flags, block_size)) =
            (take(MAGIC.len()), le_u16, le_u8, le_u8, le_u32).parse(body)?;
        let (rest, (cluster, resource, volume, size, version, order)) =
            (le_u64, le_u64, le_u64, le_u64, le_u64, le_u64).parse(rest)?;
        let (rest, (current, bases)) = (le_u64, count(le_u64, 32)).parse(rest)?;
        let (_, (activity_extents, history, activity_log)) =
            (le_u32, length_count(le_u8, le_u64), le_u64).parse(rest)?;
        let mut slots = [Generation(0); 32];
        for (slot, base) in slots.iter_mut().zip(bases) {
            *slot = Generation(base);
        }
        let superblock = Self {
            cluster,
            resource,
            volume: VolumeNumber(u16::try_from(volume).unwrap_or(u16::MAX)),
            node: NodeId(node),
            size,
            block_size,
            version,
            order,
            current: Generation(current),
            bases: slots,
            history: history.into_iter().map(Generation).collect(),
            flags: Flags::from_bits(flags),
            activity_extents,
            activity_log,
        };
        Ok((superblock, format))
    }

    /// The newer whole copy of a metadata area.
    pub(crate) fn find(area: &[u8]) -> Result<Self, MetadataError> {
        let copy = |index: usize| {
            area.get(index * LEN..(index + 1) * LEN).map_or(Err(MetadataError::Missing), Self::decode)
        };
        match (copy(0), copy(1)) {
            (Ok(first), Ok(second)) => Ok(if first.version > second.version { first } else { second }),
            (Ok(found), _) | (_, Ok(found)) => Ok(found),
            (Err(MetadataError::Missing), error) | (error, _) => error,
        }
    }

    /// Where this version of the superblock is written: the block of the older copy.
    pub(crate) const fn offset(&self) -> u64 {
        self.version % 2 * LEN as u64
    }

    /// Whether the metadata is that of this volume on this node.
    pub(crate) fn check(&self, wanted: &Self) -> Result<(), MetadataError> {
        let pairs = [
            ("cluster", self.cluster, wanted.cluster),
            ("resource", self.resource, wanted.resource),
            ("volume", u64::from(self.volume.0), u64::from(wanted.volume.0)),
            ("node", u64::from(self.node.0), u64::from(wanted.node.0)),
            ("size", self.size, wanted.size),
            ("block size", u64::from(self.block_size), u64::from(wanted.block_size)),
        ];
        match pairs.into_iter().find(|(_, found, wanted)| found != wanted) {
            Some((what, found, wanted)) => Err(MetadataError::Foreign { what, found, wanted }),
            None => Ok(()),
        }
    }

    /// What is told to `peer`.
    pub(crate) fn lineage(&self, peer: NodeId) -> Lineage {
        let base = self.bases[usize::from(peer.0 & 31)];
        Lineage { current: self.current, base, history: self.history.clone() }
    }

    /// Begins or adopts a generation.
    pub(crate) fn enter(&mut self, generation: Generation) {
        let old = std::mem::replace(&mut self.current, generation);
        remember(&mut self.history, old);
    }
}

/// Puts a generation that ended in front of a history.
pub(crate) fn remember(history: &mut Vec<Generation>, ended: Generation) {
    if ended.0 != 0 && history.first() != Some(&ended) {
        history.insert(0, ended);
        history.truncate(Lineage::HISTORY_MAX);
    }
}

/// Puts a generation that the data does not come from, because it was given up, behind the one that it comes from.
pub(crate) fn remember_given_up(history: &mut Vec<Generation>, given_up: Generation) {
    if given_up.0 != 0 && !history.contains(&given_up) {
        history.insert(history.len().min(1), given_up);
        history.truncate(Lineage::HISTORY_MAX);
    }
}

impl Flags {
    const fn bits(self) -> u8 {
        self.fresh as u8
            | (self.consistent as u8) << 1
            | (self.outdated as u8) << 2
            | (self.was_primary as u8) << 3
            | (self.in_use as u8) << 4
            | (self.lags as u8) << 5
    }

    const fn from_bits(bits: u8) -> Self {
        Self {
            fresh: bits & 1 != 0,
            consistent: bits & 2 != 0,
            outdated: bits & 4 != 0,
            was_primary: bits & 8 != 0,
            in_use: bits & 16 != 0,
            lags: bits & 32 != 0,
        }
    }
}

/// Where the bitmap slot number `slot` begins.
pub(crate) const fn bitmap_offset(size: u64, slot: u64) -> u64 {
    BITMAPS_AT + slot_len(size) * slot
}

/// The bytes of one bitmap slot of an area that was read, where they are there.
pub(crate) fn bitmap_slot(area: &Bytes, size: u64, slot: u64) -> Option<Bytes> {
    let from = usize::try_from(bitmap_offset(size, slot)).ok()?;
    let len = usize::try_from(slot_len(size)).ok()?;
    (area.len() >= from + len).then(|| area.slice(from..from + len))
}

const fn slot_len(size: u64) -> u64 {
    (bitmap::words(size) * 8).next_multiple_of(4096)
}

pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    // The CRC is 32 bits wide; the crate's type is for the widest.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)).unwrap_or_default()
}

const MAGIC: &[u8; 8] = b"evenkeel";
const VERSION: u16 = 1;
/// The length of one copy of the superblock, in bytes.
pub(crate) const LEN: usize = 4096;
const CHECKSUM_AT: usize = LEN - 4;
const BITMAPS_AT: u64 = 256 * 4096;
const BODY_LEN_MAX: usize = 8 + 2 + 2 + 4 + 6 * 8 + 8 + 32 * 8 + 4 + 1 + Lineage::HISTORY_MAX * 8 + 8;
const _: () = assert!(BODY_LEN_MAX <= CHECKSUM_AT);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock(seed: u64, history: usize, flags: u8) -> Superblock {
        let number =
            |salt: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(u32::try_from(salt).unwrap());
        Superblock {
            cluster: number(1),
            resource: number(2),
            volume: VolumeNumber(7),
            node: NodeId(3),
            size: number(3),
            block_size: 512,
            version: number(4),
            order: number(5),
            current: Generation(number(6)),
            bases: std::array::from_fn(|node| Generation(number(node as u64))),
            history: (0..history).map(|age| Generation(number(age as u64) | 1)).collect(),
            flags: Flags::from_bits(flags & 63),
            activity_extents: 1237,
            activity_log: number(7),
        }
    }

    proptest! {
        /// P10: what was written is read back the same.
        #[test]
        fn round_trip(seed: u64, history in 0_usize..=32, flags: u8) {
            let written = superblock(seed, history, flags);
            prop_assert_eq!(Superblock::decode(&written.encode()), Ok(written));
        }
    }

    /// P10: a copy with any bit flipped is not used.
    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = superblock(5, 32, 63).encode();
        assert_eq!(bytes.len(), LEN);
        for bit in 0..LEN * 8 {
            let mut torn = bytes.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&torn), Err(MetadataError::Missing), "bit {bit}");
        }
    }

    /// P10: a write of the superblock torn at any sector leaves the copy before it.
    #[test]
    fn a_torn_write_leaves_the_older_copy() {
        let mut old = superblock(5, 3, 1);
        old.version = 8;
        let mut new = old.clone();
        new.version = 9;
        new.enter(Generation(77));
        for sectors in 0..=8 {
            let mut area = vec![0xff; 2 * LEN];
            area[..LEN].copy_from_slice(&old.encode());
            let at = usize::try_from(new.offset()).unwrap();
            area[at..at + sectors * 512].copy_from_slice(&new.encode()[..sectors * 512]);
            let expected = if sectors == 8 { &new } else { &old };
            assert_eq!(Superblock::find(&area).as_ref(), Ok(expected));
        }
        assert_eq!(Superblock::find(&[0; 100]), Err(MetadataError::Missing));
    }

    /// The contract, "On disk": foreign metadata is named, not used.
    #[test]
    fn foreign_metadata_is_refused() {
        let wanted = superblock(5, 0, 0);
        let found = Superblock { cluster: 9, ..wanted.clone() };
        assert!(matches!(
            found.check(&wanted),
            Err(MetadataError::Foreign { what: "cluster", found: 9, .. })
        ));
        assert_eq!(wanted.check(&wanted), Ok(()));
    }
}
