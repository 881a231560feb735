//! The commands that move or examine blocks (SBC-3 5): from the CDB to what is asked of which bytes.

use block::Extent;

use super::cdb::{Blocks, Cdb};
use super::length::transfer_len;
use super::operation::Operation;
use super::sense::Sense;
use super::unit::{COMPARE_AND_WRITE_MAX, Unit};

/// What a command does to blocks, checked against the size of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// READ.
    Read {
        extent: Extent,
        /// What was written before is stable before it is read.
        fua: bool,
    },
    /// WRITE.
    Write { extent: Extent, fua: bool },
    /// WRITE AND VERIFY.
    WriteAndVerify {
        extent: Extent,
        /// Whether what was written is compared with what was sent.
        compare: bool,
    },
    /// VERIFY.
    Verify { extent: Extent, against: Against },
    /// COMPARE AND WRITE.
    CompareAndWrite { extent: Extent, fua: bool },
    /// ORWRITE.
    OrWrite { extent: Extent, fua: bool },
    /// WRITE SAME.
    WriteSame {
        extent: Extent,
        /// Whether space may be given back where that reads the same.
        unmap: bool,
        /// Whether a block of data comes along; zeros are written where not.
        data: bool,
    },
    /// UNMAP, with the length of its parameter list.
    Unmap { list_len: u32 },
    /// SYNCHRONIZE CACHE, and START STOP UNIT that stops.
    Flush,
    /// GET LBA STATUS: the bytes from the address on.
    LbaStatus { from: u64, allocation: u32 },
}

/// What VERIFY compares the medium with (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Against {
    /// Nothing: the blocks have to be readable.
    Nothing,
    /// As much data as there are blocks.
    Data,
    /// The same block of data over and over.
    OneBlock,
}

impl Medium {
    /// How many bytes come with the command.
    pub(super) fn data_out(&self, block_len: u32) -> u32 {
        match self {
            Self::Write { extent, .. }
            | Self::WriteAndVerify { extent, .. }
            | Self::OrWrite { extent, .. }
            | Self::Verify { extent, against: Against::Data } => transfer_len(*extent),
            Self::Verify { extent, against: Against::OneBlock } if !extent.is_empty() => block_len,
            Self::CompareAndWrite { extent, .. } => 2 * transfer_len(*extent),
            Self::WriteSame { data: true, .. } => block_len,
            Self::Unmap { list_len } => *list_len,
            Self::Read { .. }
            | Self::Verify { .. }
            | Self::WriteSame { .. }
            | Self::Flush
            | Self::LbaStatus { .. } => 0,
        }
    }

    /// How many bytes it returns, at most.
    pub(super) fn data_in(&self) -> u32 {
        match self {
            Self::Read { extent, .. } => transfer_len(*extent),
            Self::LbaStatus { allocation, .. } => *allocation,
            _ => 0,
        }
    }

    /// Whether it changes what the medium holds.
    pub(super) const fn writes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Verify { .. } | Self::Flush | Self::LbaStatus { .. })
    }
}

macro_rules! forms {
    ($($name:ident = $parse:ident($shape:ident, $field:literal), $text:literal;)*) => {
        $(
            #[doc = $text]
            pub(super) fn $name(cdb: &Cdb, unit: &Unit) -> Result<Operation, Sense> {
                $parse(cdb.$shape()?, $field, unit).map(Operation::Medium)
            }
        )*
    };
}

forms! {
    read6 = read(blocks6, 4), "READ(6), SBC-3 5.10.";
    read10 = read(blocks10, 7), "READ(10), SBC-3 5.11.";
    read12 = read(blocks12, 6), "READ(12), SBC-3 5.12.";
    read16 = read(blocks16, 10), "READ(16), SBC-3 5.13.";
    write6 = write(blocks6, 4), "WRITE(6), SBC-3 5.31.";
    write10 = write(blocks10, 7), "WRITE(10), SBC-3 5.32.";
    write12 = write(blocks12, 6), "WRITE(12), SBC-3 5.33.";
    write16 = write(blocks16, 10), "WRITE(16), SBC-3 5.34.";
    orwrite = or(blocks16, 10), "ORWRITE(16), SBC-3 5.6.";
    write_and_verify10 = write_and_verify(blocks10, 7), "WRITE AND VERIFY(10), SBC-3 5.36.";
    write_and_verify12 = write_and_verify(blocks12, 6), "WRITE AND VERIFY(12), SBC-3 5.37.";
    write_and_verify16 = write_and_verify(blocks16, 10), "WRITE AND VERIFY(16), SBC-3 5.38.";
    verify10 = verify(blocks10, 7), "VERIFY(10), SBC-3 5.27.";
    verify12 = verify(blocks12, 6), "VERIFY(12), SBC-3 5.28.";
    verify16 = verify(blocks16, 10), "VERIFY(16), SBC-3 5.29.";
    compare_and_write = compare(blocks16_short, 13), "COMPARE AND WRITE, SBC-3 5.2.";
    write_same10 = write_same(blocks10, 7), "WRITE SAME(10), SBC-3 5.42.";
    synchronize_cache10 = synchronize(blocks10, 7), "SYNCHRONIZE CACHE(10), SBC-3 5.24.";
    synchronize_cache16 = synchronize(blocks16, 10), "SYNCHRONIZE CACHE(16), SBC-3 5.25.";
}

/// PRE-FETCH(10), SBC-3 5.8.
pub(super) fn prefetch10(cdb: &Cdb, unit: &Unit) -> Result<Operation, Sense> {
    prefetch(cdb.blocks10()?, unit)
}

/// PRE-FETCH(16), SBC-3 5.9.
pub(super) fn prefetch16(cdb: &Cdb, unit: &Unit) -> Result<Operation, Sense> {
    prefetch(cdb.blocks16()?, unit)
}

/// WRITE SAME(16), SBC-3 5.43: the form that may come without data.
pub(super) fn write_same16(cdb: &Cdb, unit: &Unit) -> Result<Operation, Sense> {
    let blocks = cdb.blocks16()?;
    let without_data = blocks.flags & FLAG_NDOB != 0;
    let medium = write_same(Blocks { flags: blocks.flags & !FLAG_NDOB, ..blocks }, 10, unit)?;
    Ok(Operation::Medium(match medium {
        Medium::WriteSame { extent, unmap, .. } if without_data => {
            Medium::WriteSame { extent, unmap, data: false }
        }
        other => other,
    }))
}

/// UNMAP, SBC-3 5.26.
pub(super) fn unmap(cdb: &Cdb, _: &Unit) -> Result<Operation, Sense> {
    if cdb.byte(1) & FLAG_ANCHOR_UNMAP != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    Ok(Operation::Medium(Medium::Unmap { list_len: cdb.length16(7)? }))
}

/// GET LBA STATUS, SBC-3 5.4.
pub(super) fn get_lba_status(cdb: &Cdb, unit: &Unit) -> Result<Operation, Sense> {
    let Blocks { lba, count: allocation, .. } = cdb.blocks16()?;
    let first = unit.extent(lba, 1)?;
    Ok(Operation::Medium(Medium::LbaStatus { from: first.offset, allocation }))
}

fn read(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let extent = unit.transfer(blocks.lba, blocks.count, field)?;
    Ok(Medium::Read { extent, fua: blocks.flags & FLAG_FUA != 0 })
}

fn write(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let extent = unit.transfer(blocks.lba, blocks.count, field)?;
    Ok(Medium::Write { extent, fua: blocks.flags & FLAG_FUA != 0 })
}

fn or(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let extent = unit.transfer(blocks.lba, blocks.count, field)?;
    Ok(Medium::OrWrite { extent, fua: blocks.flags & FLAG_FUA != 0 })
}

fn write_and_verify(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let compare = match blocks.flags & BYTCHK {
        0x00 => false,
        0x02 => true,
        _ => return Err(Sense::cdb_bit(1, 2)),
    };
    let extent = unit.transfer(blocks.lba, blocks.count, field)?;
    Ok(Medium::WriteAndVerify { extent, compare })
}

fn verify(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let against = match blocks.flags & BYTCHK {
        0x00 => Against::Nothing,
        0x02 => Against::Data,
        0x06 => Against::OneBlock,
        _ => return Err(Sense::cdb_bit(1, 2)),
    };
    let extent = unit.transfer(blocks.lba, blocks.count, field)?;
    Ok(Medium::Verify { extent, against })
}

fn compare(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    let extent = unit.extent(blocks.lba, blocks.count.into())?;
    if blocks.count > u32::from(COMPARE_AND_WRITE_MAX) {
        return Err(Sense::cdb_byte(field));
    }
    Ok(Medium::CompareAndWrite { extent, fua: blocks.flags & FLAG_FUA != 0 })
}

/// A count of 0 means nothing that we do (WSNZ is 1).
fn write_same(blocks: Blocks, field: u16, unit: &Unit) -> Result<Medium, Sense> {
    check_protect(blocks.flags)?;
    if let Some((_, bit)) = WRITE_SAME_UNKNOWN.into_iter().find(|(flag, _)| blocks.flags & flag != 0) {
        return Err(Sense::cdb_bit(1, bit));
    }
    let unmap = blocks.flags & FLAG_UNMAP != 0;
    if unmap && !unit.config.thin {
        return Err(Sense::cdb_bit(1, 3));
    }
    let extent = unit.extent(blocks.lba, blocks.count.into())?;
    if blocks.count == 0 || blocks.count > unit.write_same_max() {
        return Err(Sense::cdb_byte(field));
    }
    Ok(Medium::WriteSame { extent, unmap, data: true })
}

/// A count of 0 means all blocks to the end. More is made stable than was asked, and IMMED is not made use of.
fn synchronize(blocks: Blocks, _: u16, unit: &Unit) -> Result<Medium, Sense> {
    unit.extent(blocks.lba, blocks.count.into())?;
    Ok(Medium::Flush)
}

/// There is no cache to fetch into: GOOD, which says that the blocks did not all fit.
fn prefetch(blocks: Blocks, unit: &Unit) -> Result<Operation, Sense> {
    unit.extent(blocks.lba, blocks.count.into())?;
    Ok(Operation::Nothing)
}

/// RDPROTECT, WRPROTECT, VRPROTECT: there is no protection information.
const fn check_protect(flags: u8) -> Result<(), Sense> {
    if flags & PROTECT == 0 { Ok(()) } else { Err(Sense::cdb_bit(1, 7)) }
}

const PROTECT: u8 = 0xe0;
const FLAG_FUA: u8 = 0x08;
const BYTCHK: u8 = 0x06;
const FLAG_UNMAP: u8 = 0x08;
const FLAG_NDOB: u8 = 0x01;
/// ANCHOR of UNMAP.
const FLAG_ANCHOR_UNMAP: u8 = 0x01;
/// What we know nothing of in WRITE SAME, each with its bit: ANCHOR, PBDATA, LBDATA, RELADR.
const WRITE_SAME_UNKNOWN: [(u8, u8); 4] = [(0x10, 4), (0x04, 2), (0x02, 1), (0x01, 0)];

/// Only lengths inside the limits of the unit get here, so that sums of them fit 32 bits.
const _: () = assert!(2 * (COMPARE_AND_WRITE_MAX as u64) * 4096 < 1 << 32);
