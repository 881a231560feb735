//! Where things are in a backing file or device, and the label that says that it is ours.
//!
//! ```text
//! 0                 size   rounded up to 4096
//! | data area        |  -   | label 4 KiB | metadata area ...     |
//! ```
//! With external metadata the data file is the data area alone, and the other file starts with the label. What
//! stands in the metadata area is the replication core's; the label is written once, when a file or device
//! becomes ours, and never again.

use thiserror::Error;

/// Where the parts of a volume's backing are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The data area's length. It starts at byte 0.
    pub(super) data_len: u64,
    /// Where the label is, in the file that holds the metadata.
    pub(super) label_at: u64,
    /// Where the metadata area is, in the file that holds it.
    pub(super) area_at: u64,
    /// Its length.
    pub(super) area_len: u64,
}

impl Layout {
    /// The layout of a volume of `size` bytes; `None` where it leaves what a file may have.
    pub(super) fn of(size: u64, internal: bool) -> Option<Self> {
        let area_len = metadata_len(size)?;
        let label_at = if internal { size.checked_next_multiple_of(LABEL_LEN as u64)? } else { 0 };
        let area_at = label_at.checked_add(LABEL_LEN as u64)?;
        let end = area_at.checked_add(area_len)?;
        i64::try_from(end).ok()?;
        Some(Self { data_len: size, label_at, area_at, area_len })
    }

    /// The size of the data area in front of internal metadata that ends a file of `file_len` bytes, where there is
    /// one of whole 4 KiB.
    pub(super) fn size_in(file_len: u64) -> Option<u64> {
        let needed = |blocks: u64| Self::of(blocks * 4096, true).map(|layout| layout.metadata_file_len());
        let (mut low, mut high) = (1, file_len / 4096);
        while low < high {
            let middle = low + (high - low) / 2;
            if needed(middle)? < file_len { low = middle + 1 } else { high = middle }
        }
        (needed(low)? == file_len).then_some(low * 4096)
    }

    /// How long the file that holds the metadata is at least.
    pub(super) const fn metadata_file_len(&self) -> u64 {
        self.area_at + self.area_len
    }
}

/// How long the metadata area of a volume of `size` bytes is: [`HEAD_LEN`] and, for each of the [`PEERS_MAX`] peers,
/// one bit for each 4 KiB, in whole blocks of 4 KiB. `None` where that leaves 64 bits.
#[must_use]
pub fn metadata_len(size: u64) -> Option<u64> {
    let bitmap_len = size.div_ceil(4096).div_ceil(8).next_multiple_of(4096);
    bitmap_len.checked_mul(PEERS_MAX)?.checked_add(HEAD_LEN)
}

/// The head of the metadata area, in bytes: superblocks and activity log.
pub const HEAD_LEN: u64 = 1 << 20;

/// The peers that a volume's bitmaps have room for.
pub const PEERS_MAX: u64 = 31;

/// What the label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// The size of the data area, in bytes.
    pub(super) data_len: u64,
    /// The length of the metadata area, in bytes.
    pub(super) area_len: u64,
}

impl Label {
    /// The label of a backing with this layout.
    pub(super) const fn of(layout: &Layout) -> Self {
        Self { data_len: layout.data_len, area_len: layout.area_len }
    }

    /// The label as it stands on disk: magic, version, and the fields, big-endian; a CRC32C in the last four bytes.
    pub(super) fn encode(self) -> [u8; LABEL_LEN] {
        let mut bytes = [0; LABEL_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[VERSION_AT..DATA_LEN_AT].copy_from_slice(&VERSION.to_be_bytes());
        bytes[DATA_LEN_AT..AREA_LEN_AT].copy_from_slice(&self.data_len.to_be_bytes());
        bytes[AREA_LEN_AT..FIELDS_END].copy_from_slice(&self.area_len.to_be_bytes());
        let checksum = checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Reads a label.
    ///
    /// # Errors
    /// When the bytes are something else, a damaged label, or one of a version that this program does not know.
    pub(super) fn decode(bytes: &[u8; LABEL_LEN]) -> Result<Self, LabelError> {
        if !bytes.starts_with(MAGIC) {
            return Err(LabelError::Missing);
        }
        let field = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let stored = u32::from_be_bytes(std::array::from_fn(|i| bytes[CHECKSUM_AT + i]));
        let computed = checksum(&bytes[..CHECKSUM_AT]);
        if stored != computed {
            return Err(LabelError::Damaged { stored, computed });
        }
        match field(VERSION_AT) {
            VERSION => Ok(Self { data_len: field(DATA_LEN_AT), area_len: field(AREA_LEN_AT) }),
            version => Err(LabelError::Version { version }),
        }
    }
}

/// Why bytes are no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LabelError {
    /// They do not begin like one.
    #[error("no Evenkeel label")]
    Missing,
    /// They begin like one and fail their checksum.
    #[error("a damaged label: its CRC32C is {stored:#010x}, its bytes give {computed:#010x}")]
    Damaged {
        /// The checksum that it carries.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// They are the label of another version.
    #[error("a label of version {version}; this program knows version {VERSION}")]
    Version {
        /// Its version.
        version: u64,
    },
}

fn checksum(bytes: &[u8]) -> u32 {
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(checksum).expect("a CRC32C has 32 bits")
}

/// The length of the label, in bytes.
pub(super) const LABEL_LEN: usize = 4096;

const MAGIC: &[u8; 8] = b"EVENKEEL";
const VERSION: u64 = 1;
const VERSION_AT: usize = 8;
const DATA_LEN_AT: usize = 16;
const AREA_LEN_AT: usize = 24;
const FIELDS_END: usize = 32;
const CHECKSUM_AT: usize = LABEL_LEN - 4;
const _: () = assert!(FIELDS_END <= CHECKSUM_AT);

#[cfg(test)]
mod tests {
    use super::*;

    /// A label is read back as it was written, and any flipped bit of it is noticed.
    #[test]
    fn a_label_survives_and_damage_is_noticed() {
        let label = Label { data_len: 1 << 30, area_len: metadata_len(1 << 30).unwrap() };
        let bytes = label.encode();
        assert_eq!(Label::decode(&bytes), Ok(label));
        for bit in 0..LABEL_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    /// "The data area starts at byte 0 and is `size` bytes; internal metadata sits behind it" (design, On disk), on
    /// whole blocks, and sizes that no file can have are refused.
    #[test]
    fn the_metadata_is_behind_the_data() {
        for size in [512, 4096, 1_000_448, 1 << 30, (1 << 44) + 512] {
            let layout = Layout::of(size, true).unwrap();
            assert!(layout.label_at >= size && layout.label_at < size + 4096);
            assert!(layout.area_at.is_multiple_of(4096) && layout.area_len.is_multiple_of(4096));
            let bits = (layout.area_len - HEAD_LEN) / PEERS_MAX * 8;
            assert!(bits * 4096 >= size);
        }
        assert_eq!(Layout::of(u64::MAX, true), None);
    }

    /// `serve --disk` finds the size of a file that it made before.
    #[test]
    fn the_size_is_found_from_the_file() {
        for size in [4096, 1_003_520, 1 << 30, 10 << 30, 1 << 44] {
            let len = Layout::of(size, true).unwrap().metadata_file_len();
            assert_eq!(Layout::size_in(len), Some(size));
            assert_eq!(Layout::size_in(len + 1), None);
        }
        assert_eq!(Layout::size_in(0), None);
    }

    /// Sizes that no file can have are refused.
    #[test]
    fn the_layout_has_bounds() {
        assert_eq!(Layout::of(u64::MAX, true), None);
        assert_eq!(Layout::of(i64::MAX as u64, false).map(|layout| layout.label_at), Some(0));
        assert_eq!(Layout::of(i64::MAX as u64, true), None);
    }
}
