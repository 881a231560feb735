//! One logical unit: what it is, how it is set, and who has it reserved.

use block::{BlockSize, Extent, Lba, VolumeNumber};

use super::mode::Mode;
use super::reservation::Registry;
use super::sense::{Additional, Sense, SenseFormat, SenseKey};
use super::{NexusId, UnitConfig};

/// A logical unit.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) config: UnitConfig,
    /// What MODE SELECT can change. A reset brings it back to the default.
    pub(super) mode: Mode,
    /// Persistent reservations.
    pub(super) registry: Registry,
    /// The holder of a reservation made by RESERVE (SPC-2 5.5).
    pub(super) reserved_by: Option<NexusId>,
}

impl Unit {
    pub(super) fn new(config: UnitConfig) -> Self {
        Self { config, mode: Mode::default(), registry: Registry::default(), reserved_by: None }
    }

    pub(super) const fn volume(&self) -> VolumeNumber {
        self.config.volume
    }

    pub(super) const fn block_size(&self) -> BlockSize {
        self.config.block_size
    }

    /// The size of a logical block in bytes.
    pub(super) const fn block_len(&self) -> u32 {
        self.config.block_size.bytes()
    }

    /// The size of a logical block as a power of two of bytes.
    pub(super) fn block_exponent(&self) -> u8 {
        u8::try_from(self.config.block_size.shift()).unwrap_or(u8::MAX)
    }

    /// How many logical blocks it has.
    pub(super) const fn blocks(&self) -> u64 {
        self.config.size >> self.config.block_size.shift()
    }

    /// The bytes of some blocks, which all have to be there.
    pub(super) fn extent(&self, lba: u64, count: u64) -> Result<Extent, Sense> {
        let extent = self.block_size().extent(Lba(lba), count);
        let inside = extent.filter(|_| lba.saturating_add(count) <= self.blocks());
        inside.ok_or(Sense::illegal(Additional::LBA_OUT_OF_RANGE))
    }

    /// The bytes of some blocks that one command may transfer. `field` is the byte of the CDB that says how many.
    pub(super) fn transfer(&self, lba: u64, count: u32, field: u16) -> Result<Extent, Sense> {
        let extent = self.extent(lba, count.into())?;
        if count > self.transfer_max() { Err(Sense::cdb_byte(field)) } else { Ok(extent) }
    }

    /// MAXIMUM TRANSFER LENGTH, in blocks.
    pub(super) const fn transfer_max(&self) -> u32 {
        TRANSFER_MAX_BYTES >> self.config.block_size.shift()
    }

    /// MAXIMUM WRITE SAME LENGTH, in blocks.
    pub(super) const fn write_same_max(&self) -> u32 {
        WRITE_SAME_MAX_BYTES >> self.config.block_size.shift()
    }

    /// MAXIMUM UNMAP LBA COUNT, in blocks.
    pub(super) const fn unmap_max(&self) -> u32 {
        let blocks = UNMAP_MAX_BYTES >> self.config.block_size.shift();
        if blocks > UNMAP_MAX_BLOCKS { UNMAP_MAX_BLOCKS } else { blocks }
    }

    pub(super) const fn sense_format(&self) -> SenseFormat {
        if self.mode.descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// Whether MODE SENSE reports the medium as write protected.
    pub(super) const fn write_protected(&self) -> bool {
        self.config.read_only || self.mode.write_protect
    }

    /// Refuses writes where they are forbidden for good or by SWP.
    pub(super) fn check_writable(&self) -> Result<(), Sense> {
        if self.write_protected() {
            return Err(Sense::new(SenseKey::DataProtect, Additional::WRITE_PROTECTED));
        }
        Ok(())
    }
}

/// The most that one READ, WRITE or VERIFY moves, in bytes.
const TRANSFER_MAX_BYTES: u32 = 32 << 20;
/// What moves best, in bytes.
pub(super) const TRANSFER_OPTIMAL_BYTES: u32 = 1 << 20;
/// The most that one WRITE SAME fills, in bytes.
const WRITE_SAME_MAX_BYTES: u32 = 1 << 30;
/// The most that one UNMAP takes, in bytes and in blocks.
const UNMAP_MAX_BYTES: u32 = 1 << 30;
const UNMAP_MAX_BLOCKS: u32 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(super) const UNMAP_DESCRIPTORS_MAX: usize = 256;
/// MAXIMUM COMPARE AND WRITE LENGTH, in blocks.
pub(super) const COMPARE_AND_WRITE_MAX: u8 = 255;
