//! SCSI commands and their responses (RFC 7143 11.3 and 11.4).

use block::Payload;
use bytes::{Buf, Bytes};
use nom::Parser;
use nom::bytes::complete::take;
use nom::number::complete::{be_u8, be_u16, be_u32, be_u64};

use super::{DecodeError, FINAL, Header, IMMEDIATE, Numbers, Output, fields};

/// The task attributes of SAM-5 8.6 (RFC 7143 11.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskAttribute {
    /// Not queued.
    Untagged = 0,
    /// SIMPLE
    #[default]
    Simple = 1,
    /// ORDERED
    Ordered = 2,
    /// HEAD OF QUEUE
    HeadOfQueue = 3,
    /// ACA
    Aca = 4,
}

impl TaskAttribute {
    const fn read(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Untagged,
            1 => Self::Simple,
            2 => Self::Ordered,
            3 => Self::HeadOfQueue,
            4 => Self::Aca,
            _ => return None,
        })
    }
}

/// Which way data goes, as the initiator sees it (the R and W bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    #[default]
    None,
    /// From the target.
    Read,
    /// To the target.
    Write,
    /// Both: the expected length is of the write.
    Both,
}

impl Direction {
    /// Whether the initiator expects data.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Whether the initiator has data to send.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// SCSI Command (RFC 7143 11.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Outside the order of CmdSN.
    pub immediate: bool,
    /// No unsolicited Data-Out follows.
    pub last: bool,
    /// Which way data goes.
    pub direction: Direction,
    /// How the command is ordered among others.
    pub attribute: TaskAttribute,
    /// The logical unit, as SAM-5 4.7 writes it.
    pub lun: u64,
    /// Initiator Task Tag.
    pub task: u32,
    /// Expected Data Transfer Length, in bytes.
    pub expected_len: u32,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// The first 16 bytes of the CDB. No command that we execute has more.
    pub cdb: [u8; 16],
    /// Expected Bidirectional Read Data Length, in bytes, from an additional header segment.
    pub bidirectional_len: Option<u32>,
    /// Immediate data.
    pub data: Bytes,
}

impl ScsiCommand {
    pub(super) const OPCODE: u8 = 0x01;

    pub(super) fn read(header: &Header, ahs: &[u8], data: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, expected_len, cmd_sn, exp_stat_sn, cdb) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, take(16_usize)).parse(&header.0[8..]))?;
        let flags = header.flags();
        let attribute =
            TaskAttribute::read(flags & ATTRIBUTE).ok_or(DecodeError::Field { header: *header, at: 1 })?;
        let mut command = Self {
            immediate: header.immediate(),
            last: flags & FINAL != 0,
            direction: match (flags & READ != 0, flags & WRITE != 0) {
                (false, false) => Direction::None,
                (true, false) => Direction::Read,
                (false, true) => Direction::Write,
                (true, true) => Direction::Both,
            },
            attribute,
            lun,
            task,
            expected_len,
            cmd_sn,
            exp_stat_sn,
            cdb: [0; 16],
            bidirectional_len: None,
            data,
        };
        command.cdb.copy_from_slice(cdb);
        command.read_ahs(header, ahs)?;
        Ok(command)
    }

    /// Additional header segments: an extended CDB or the length of a bidirectional read (RFC 7143 11.2.2).
    fn read_ahs(&mut self, header: &Header, mut ahs: &[u8]) -> Result<(), DecodeError> {
        let wrong = DecodeError::Field { header: *header, at: 4 };
        while !ahs.is_empty() {
            let Ok((rest, (len, kind))) = (be_u16::<_, nom::error::Error<&[u8]>>, be_u8).parse(ahs) else {
                return Err(wrong);
            };
            // The length counts what stands behind the type, without padding.
            let Some(next) = ahs.get((3 + usize::from(len)).next_multiple_of(4)..) else {
                return Err(wrong);
            };
            match kind {
                AHS_EXTENDED_CDB => {}
                AHS_BIDIRECTIONAL if len == 5 => {
                    let Ok((_, (_, read_len))) = (be_u8::<_, nom::error::Error<&[u8]>>, be_u32).parse(rest)
                    else {
                        return Err(wrong);
                    };
                    self.bidirectional_len = Some(read_len);
                }
                _ => return Err(wrong),
            }
            ahs = next;
        }
        Ok(())
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | if self.immediate { IMMEDIATE } else { 0 });
        header.0[1] = if self.last { FINAL } else { 0 }
            | if self.direction.reads() { READ } else { 0 }
            | if self.direction.writes() { WRITE } else { 0 }
            | self.attribute as u8;
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.expected_len)
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn)
            .put(32, self.cdb);
        let data = Payload::from(self.data.clone());
        match self.bidirectional_len {
            None => output.push(header, &data),
            Some(len) => {
                let [a, b, c, d] = len.to_be_bytes();
                output.push_with_ahs(header, &[0, 5, AHS_BIDIRECTIONAL, 0, a, b, c, d], &data);
            }
        }
    }
}

/// How many bytes were moved fewer or more than the initiator expected (RFC 7143 11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// As many as expected.
    #[default]
    None,
    /// Fewer, by this many.
    Underflow(u32),
    /// There were this many more than expected.
    Overflow(u32),
}

impl Residual {
    /// The residual of a transfer that could move `possible` bytes where the initiator expected `expected`.
    #[must_use]
    pub fn of(expected: u32, possible: u64) -> Self {
        match u64::from(expected).checked_sub(possible) {
            Some(0) => Self::None,
            Some(fewer) => Self::Underflow(u32::try_from(fewer).unwrap_or(u32::MAX)),
            None => Self::Overflow(u32::try_from(possible - u64::from(expected)).unwrap_or(u32::MAX)),
        }
    }

    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Underflow(_) => UNDERFLOW,
            Self::Overflow(_) => OVERFLOW,
        }
    }

    pub(super) const fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Underflow(count) | Self::Overflow(count) => count,
        }
    }

    pub(super) fn read(header: &Header, count: u32) -> Result<Self, DecodeError> {
        Ok(match (header.flags() & UNDERFLOW != 0, header.flags() & OVERFLOW != 0) {
            (false, false) => Self::None,
            (true, false) => Self::Underflow(count),
            (false, true) => Self::Overflow(count),
            (true, true) => return Err(DecodeError::Field { header: *header, at: 1 }),
        })
    }
}

/// SCSI Response (RFC 7143 11.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// Initiator Task Tag.
    pub task: u32,
    /// Whether the target executed the command: 0x00, else a target failure.
    pub response: u8,
    /// The SCSI status.
    pub status: u8,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// How many Data-In PDUs or R2Ts were sent for the task.
    pub exp_data_sn: u32,
    /// The residual of the transfer.
    pub residual: Residual,
    /// The sense data, without the length that stands before it on the wire.
    pub sense: Bytes,
}

impl ScsiResponse {
    pub(super) const OPCODE: u8 = 0x21;

    pub(super) fn read(header: &Header, mut data: Bytes) -> Result<Self, DecodeError> {
        let (_, task, _, stat_sn, exp_cmd_sn, max_cmd_sn, exp_data_sn, _, count) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        let sense = if data.len() < 2 {
            Bytes::new()
        } else {
            let len = usize::from(data.get_u16());
            if len > data.len() {
                return Err(DecodeError::Field { header: *header, at: 5 });
            }
            data.slice(..len)
        };
        Ok(Self {
            task,
            response: header.0[2],
            status: header.0[3],
            numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn },
            exp_data_sn,
            residual: Residual::read(header, count)?,
            sense,
        })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL | self.residual.flags();
        header.0[2] = self.response;
        header.0[3] = self.status;
        header.put_u32(16, self.task).put_u32(36, self.exp_data_sn).put_u32(44, self.residual.count());
        self.numbers.put(&mut header);
        if self.sense.is_empty() {
            output.push(header, &Payload::new());
        } else {
            let len = u16::try_from(self.sense.len()).unwrap_or(u16::MAX);
            let mut data = Vec::with_capacity(2 + usize::from(len));
            data.extend_from_slice(&len.to_be_bytes());
            data.extend_from_slice(&self.sense[..usize::from(len)]);
            output.push(header, &Payload::from(data));
        }
    }
}

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
const ATTRIBUTE: u8 = 0x07;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
const AHS_EXTENDED_CDB: u8 = 1;
const AHS_BIDIRECTIONAL: u8 = 2;
