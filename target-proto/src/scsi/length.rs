//! Lengths on their way between memory and the wire. None of ours leaves its field; one that did would be capped.

use block::Extent;

pub(super) fn len8(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

pub(super) fn len16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

pub(super) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// The length of an extent as that of a transfer, in bytes.
pub(super) fn transfer_len(extent: Extent) -> u32 {
    u32::try_from(extent.len).unwrap_or(u32::MAX)
}

/// A number of bytes that a buffer holds.
pub(super) fn in_memory(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
