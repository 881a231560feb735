//! Places on a volume: logical block addresses and runs of bytes.

use std::fmt;

/// A logical block address: the number of a block of [`BlockSize`] bytes, as initiators count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// The size of a logical block: 512 or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// The block size of this many bytes, where there is one.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// The base-two logarithm of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// The bytes of `blocks` blocks from `lba` on, or `None` where that leaves 64 bits.
    #[must_use]
    pub fn extent(self, lba: Lba, blocks: u64) -> Option<Extent> {
        let end = lba.0.checked_add(blocks)?;
        end.checked_mul(u64::from(self.bytes()))?;
        Some(Extent { offset: lba.0 << self.shift(), len: blocks << self.shift() })
    }
}

/// A run of bytes of a volume, on block boundaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Extent {
    /// The run of `len` bytes from `offset` on.
    #[must_use]
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The first byte behind the run.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether the run has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether both runs have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end() && self.len > 0 && other.len > 0
    }

    /// Whether every byte of `other` is one of this run's.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command's range is checked before it is used: no address wraps round.
    #[test]
    fn an_extent_beyond_64_bits_is_none() {
        assert_eq!(BlockSize::B512.extent(Lba(u64::MAX), 2), None);
        assert_eq!(BlockSize::B4096.extent(Lba(u64::MAX >> 11), 1), None);
        assert_eq!(BlockSize::B512.extent(Lba(2), 3), Some(Extent::new(1024, 1536)));
    }

    #[test]
    fn overlap_needs_a_common_byte() {
        let run = Extent::new(4096, 4096);
        assert!(run.overlaps(Extent::new(8191, 1)));
        assert!(!run.overlaps(Extent::new(8192, 1)));
        assert!(!run.overlaps(Extent::new(5000, 0)));
        assert!(run.contains(Extent::new(4096, 4096)) && !run.contains(Extent::new(4095, 2)));
    }
}
