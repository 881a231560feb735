//! One PDU: a basic header segment of 48 bytes, additional headers, data (RFC 7143, section 11).

use std::io::{self, Read};

/// Opcodes (RFC 7143, section 11.2.1.2).
pub mod opcode {
    #![expect(missing_docs, reason = "the names are the standard's")]
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// A PDU with every byte under the test's control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdu {
    /// Basic header segment. Lengths are filled in by [`Pdu::encode`] unless `length_override` says otherwise.
    pub header: [u8; 48],
    /// Additional header segments, a multiple of 4 bytes.
    pub additional: Vec<u8>,
    /// Data segment without padding.
    pub data: Vec<u8>,
    /// A `DataSegmentLength` that is a lie.
    pub length_override: Option<u32>,
}

impl Pdu {
    /// A PDU of `opcode` with the final bit set and nothing else.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut header = [0; 48];
        header[0] = opcode;
        header[1] = 0x80;
        Self { header, additional: Vec::new(), data: Vec::new(), length_override: None }
    }

    /// Marks the PDU for immediate delivery: its `CmdSN` is not consumed.
    #[must_use]
    pub fn immediate(mut self) -> Self {
        self.header[0] |= 0x40;
        self
    }

    /// Sets byte 1.
    #[must_use]
    pub fn flags(self, flags: u8) -> Self {
        self.byte(1, flags)
    }

    /// Sets the byte at `at`.
    #[must_use]
    pub fn byte(mut self, at: usize, value: u8) -> Self {
        self.header[at] = value;
        self
    }

    /// Sets the big-endian word at `at`.
    #[must_use]
    pub fn word(mut self, at: usize, value: u32) -> Self {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Sets the logical unit number, peripheral addressing (SAM-5, section 4.7.7.2).
    #[must_use]
    pub fn lun(self, lun: u8) -> Self {
        self.byte(9, lun)
    }

    /// Sets the data segment.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = data.into();
        self
    }

    /// The opcode without the immediate bit.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// The big-endian word at `at`.
    #[must_use]
    pub fn read_word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    /// The bytes for the wire, the data padded to four.
    ///
    /// # Panics
    /// When the data does not fit in 24 bits of length, which no test needs.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let data_len = u32::try_from(self.data.len()).expect("a test sends less than 16 MiB at once");
        let mut bytes = self.header.to_vec();
        bytes[4] = u8::try_from(self.additional.len() / 4).expect("at most 255 words of additional headers");
        bytes[5..8].copy_from_slice(&self.length_override.unwrap_or(data_len).to_be_bytes()[1..]);
        bytes.extend_from_slice(&self.additional);
        bytes.extend_from_slice(&self.data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Reads one whole PDU.
    ///
    /// # Errors
    /// What the socket says: a time-out, a reset, or an end in the middle.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; 48];
        from.read_exact(&mut header)?;
        let mut additional = vec![0; usize::from(header[4]) * 4];
        from.read_exact(&mut additional)?;
        let data_len = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
        let mut data = vec![0; data_len.next_multiple_of(4)];
        from.read_exact(&mut data)?;
        data.truncate(data_len);
        Ok(Self { header, additional, data, length_override: None })
    }
}

/// Command descriptor blocks (SBC-3, SPC-4), 16 bytes as the iSCSI header holds them.
pub mod cdb {
    /// The first bytes given, the rest zero.
    #[must_use]
    pub fn from<const N: usize>(bytes: [u8; N]) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[..N].copy_from_slice(&bytes);
        cdb
    }

    /// A ten-byte command with a logical block address and a length: READ(10), WRITE(10), VERIFY(10).
    #[must_use]
    pub fn ten(operation: u8, lba: u32, blocks: u16) -> [u8; 16] {
        let mut cdb = from([operation]);
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        cdb
    }

    /// A sixteen-byte command with a logical block address and a length.
    #[must_use]
    pub fn sixteen(operation: u8, lba: u64, blocks: u32) -> [u8; 16] {
        let mut cdb = from([operation]);
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        cdb
    }

    /// INQUIRY of a vital product data page.
    #[must_use]
    pub fn vital_product_data(page: u8) -> [u8; 16] {
        from([0x12, 1, page, 0x10, 0])
    }

    /// TEST UNIT READY.
    pub const TEST_UNIT_READY: [u8; 16] = [0; 16];
    /// READ(10).
    pub const READ_10: u8 = 0x28;
    /// WRITE(10).
    pub const WRITE_10: u8 = 0x2a;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read back, padding included.
    #[test]
    fn round_trip() {
        for len in 0..9 {
            let pdu = Pdu::new(opcode::TEXT).word(16, 7).lun(3).data(vec![0xa5; len]);
            let bytes = pdu.encode();
            assert_eq!(bytes.len() % 4, 0);
            let mut read = Pdu::read(&mut &bytes[..]).unwrap();
            read.header[5..8].fill(0);
            assert_eq!(read, pdu);
        }
    }
}
