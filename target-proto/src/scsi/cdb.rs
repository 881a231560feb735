//! The shapes of command descriptor blocks (SPC-4 4.2, SBC-3 5), read field by field.

use nom::bytes::complete::take;
use nom::error::Error;
use nom::number::complete::{be_u8, be_u16, be_u24, be_u32, be_u64};

use super::sense::{Additional, Sense};

/// A CDB of 6, 10, 12 or 16 bytes, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cdb([u8; LEN]);

/// What names some blocks: READ, WRITE, VERIFY and their like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// The byte behind the operation code.
    pub(super) flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub(super) lba: u64,
    /// How many blocks.
    pub(super) count: u32,
}

impl Cdb {
    /// What a transport received. Bytes behind the sixteenth are no part of a CDB that we know.
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut cdb = [0; LEN];
        let len = bytes.len().min(LEN);
        cdb[..len].copy_from_slice(&bytes[..len]);
        Self(cdb)
    }

    pub(super) const fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// SERVICE ACTION, where the operation code has them.
    pub(super) const fn service_action(&self) -> u8 {
        self.0[1] & 0x1f
    }

    /// One byte of it.
    ///
    /// # Panics
    /// When `at` is 16 or more.
    pub(super) const fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// READ(6) and WRITE(6): 21 bits of address, and a length whose 0 means 256.
    pub(super) fn blocks6(&self) -> Result<Blocks, Sense> {
        let (_, lba, count) = self.read((be_u8, be_u24, be_u8))?;
        let count = if count == 0 { 256 } else { u32::from(count) };
        Ok(Blocks { flags: 0, lba: u64::from(lba & 0x1f_ffff), count })
    }

    pub(super) fn blocks10(&self) -> Result<Blocks, Sense> {
        let (_, flags, lba, _, count) = self.read((be_u8, be_u8, be_u32, be_u8, be_u16))?;
        Ok(Blocks { flags, lba: lba.into(), count: count.into() })
    }

    pub(super) fn blocks12(&self) -> Result<Blocks, Sense> {
        let (_, flags, lba, count) = self.read((be_u8, be_u8, be_u32, be_u32))?;
        Ok(Blocks { flags, lba: lba.into(), count })
    }

    pub(super) fn blocks16(&self) -> Result<Blocks, Sense> {
        let (_, flags, lba, count) = self.read((be_u8, be_u8, be_u64, be_u32))?;
        Ok(Blocks { flags, lba, count })
    }

    /// COMPARE AND WRITE has its length in byte 13.
    pub(super) fn blocks16_short(&self) -> Result<Blocks, Sense> {
        let (_, flags, lba, _, count) = self.read((be_u8, be_u8, be_u64, take(3_usize), be_u8))?;
        Ok(Blocks { flags, lba, count: count.into() })
    }

    /// The 8 bits at `at`: an allocation or parameter list length.
    pub(super) fn length8(&self, at: usize) -> u32 {
        u32::from(self.0[at])
    }

    /// The 16 bits from `at` on.
    pub(super) fn length16(&self, at: usize) -> Result<u32, Sense> {
        let (_, length) = self.read((take(at), be_u16))?;
        Ok(length.into())
    }

    /// The 32 bits from `at` on.
    pub(super) fn length32(&self, at: usize) -> Result<u32, Sense> {
        let (_, length) = self.read((take(at), be_u32))?;
        Ok(length)
    }

    fn read<'a, P, O>(&'a self, mut parser: P) -> Result<O, Sense>
    where
        P: nom::Parser<&'a [u8], Output = O, Error = Error<&'a [u8]>>,
    {
        match parser.parse(&self.0) {
            Ok((_, fields)) => Ok(fields),
            Err(_) => Err(Sense::illegal(Additional::INVALID_FIELD_IN_CDB)),
        }
    }
}

/// The longest CDB that we know.
const LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// SBC-3 5.10 to 5.13: where address and length stand in each of the four forms.
    #[test]
    fn addresses_and_lengths() {
        let cdb = Cdb::new(&[0x08, 0xff, 0x02, 0x03, 0, 0]);
        assert_eq!(cdb.blocks6().unwrap(), Blocks { flags: 0, lba: 0x1f_0203, count: 256 });
        let cdb = Cdb::new(&[0x28, 0x18, 1, 2, 3, 4, 0xff, 5, 6, 0]);
        assert_eq!(cdb.blocks10().unwrap(), Blocks { flags: 0x18, lba: 0x0102_0304, count: 0x0506 });
        let cdb = Cdb::new(&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
        assert_eq!(cdb.blocks12().unwrap(), Blocks { flags: 0, lba: 0x0102_0304, count: 0x0506_0708 });
        let cdb = Cdb::new(&[0x88, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(
            cdb.blocks16().unwrap(),
            Blocks { flags: 1, lba: 0x0102_0304_0506_0708, count: 0x090a_0b0c }
        );
        assert_eq!(cdb.blocks16_short().unwrap().count, 12);
    }

    /// A transport may hand over fewer bytes or more.
    #[test]
    fn any_length_is_taken() {
        assert_eq!(Cdb::new(&[]).opcode(), 0);
        assert_eq!(Cdb::new(&[0xff; 260]).byte(15), 0xff);
    }
}
