//! Data on its way: SCSI Data-Out, SCSI Data-In, Ready To Transfer (RFC 7143 11.7 and 11.8).

use block::Payload;
use bytes::Bytes;
use nom::Parser;
use nom::number::complete::{be_u32, be_u64};

use super::{DecodeError, FINAL, Header, NO_TAG, Numbers, Output, Residual, fields, tag};

/// SCSI Data-Out (RFC 7143 11.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// The last PDU of its sequence.
    pub last: bool,
    /// The logical unit, where the target gave one with its R2T.
    pub lun: u64,
    /// Initiator Task Tag.
    pub task: u32,
    /// Target Transfer Tag of the R2T it answers; `None` for unsolicited data.
    pub transfer: Option<u32>,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// DataSN: its place in the sequence.
    pub data_sn: u32,
    /// Buffer Offset, in bytes.
    pub offset: u32,
    /// The bytes.
    pub data: Bytes,
}

impl DataOut {
    pub(super) const OPCODE: u8 = 0x05;

    pub(in crate::iscsi) fn read(header: &Header, data: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, transfer, _, exp_stat_sn, _, data_sn, offset) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        Ok(Self {
            last: header.flags() & FINAL != 0,
            lun,
            task,
            transfer: tag(transfer),
            exp_stat_sn,
            data_sn,
            offset,
            data,
        })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = if self.last { FINAL } else { 0 };
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.transfer.unwrap_or(NO_TAG))
            .put_u32(28, self.exp_stat_sn)
            .put_u32(36, self.data_sn)
            .put_u32(40, self.offset);
        output.push(header, &Payload::from(self.data.clone()));
    }
}

/// The status that the last Data-In of a command may carry, so that no SCSI Response follows (RFC 7143 11.7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInStatus {
    /// The SCSI status, one without sense data.
    pub status: u8,
    /// StatSN.
    pub stat_sn: u32,
    /// The residual of the transfer.
    pub residual: Residual,
}

/// SCSI Data-In (RFC 7143 11.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// The last PDU of its sequence.
    pub last: bool,
    /// The status of the command, in its last PDU.
    pub status: Option<DataInStatus>,
    /// The logical unit, where an acknowledgement is asked for.
    pub lun: u64,
    /// Initiator Task Tag.
    pub task: u32,
    /// ExpCmdSN.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN.
    pub max_cmd_sn: u32,
    /// DataSN: its place among the command's Data-In.
    pub data_sn: u32,
    /// Buffer Offset, in bytes.
    pub offset: u32,
    /// The bytes.
    pub data: Payload,
}

impl DataIn {
    pub(super) const OPCODE: u8 = 0x25;

    pub(in crate::iscsi) fn read(header: &Header, data: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, _, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn, offset, count) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        let status = if header.flags() & STATUS == 0 {
            None
        } else {
            let residual = Residual::read(header, count)?;
            Some(DataInStatus { status: header.0[3], stat_sn, residual })
        };
        Ok(Self {
            last: header.flags() & FINAL != 0,
            status,
            lun,
            task,
            exp_cmd_sn,
            max_cmd_sn,
            data_sn,
            offset,
            data: data.into(),
        })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = if self.last { FINAL } else { 0 };
        if let Some(status) = self.status {
            header.0[1] |= STATUS | status.residual.flags();
            header.0[3] = status.status;
            header.put_u32(24, status.stat_sn).put_u32(44, status.residual.count());
        }
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, NO_TAG)
            .put_u32(28, self.exp_cmd_sn)
            .put_u32(32, self.max_cmd_sn)
            .put_u32(36, self.data_sn)
            .put_u32(40, self.offset);
        output.push(header, &self.data);
    }
}

/// Ready To Transfer: the target asks for data (RFC 7143 11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// The logical unit.
    pub lun: u64,
    /// Initiator Task Tag.
    pub task: u32,
    /// Target Transfer Tag, which the Data-Out carries.
    pub transfer: u32,
    /// StatSN (not advanced by this PDU) and the command window.
    pub numbers: Numbers,
    /// R2TSN: its place among the task's R2Ts.
    pub r2t_sn: u32,
    /// Buffer Offset, in bytes.
    pub offset: u32,
    /// Desired Data Transfer Length, in bytes.
    pub len: u32,
}

impl ReadyToTransfer {
    pub(super) const OPCODE: u8 = 0x31;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (lun, task, transfer, stat_sn, exp_cmd_sn, max_cmd_sn, r2t_sn, offset, len) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        if transfer == NO_TAG || len == 0 {
            return Err(DecodeError::Field { header: *header, at: 20 });
        }
        let numbers = Numbers { stat_sn, exp_cmd_sn, max_cmd_sn };
        Ok(Self { lun, task, transfer, numbers, r2t_sn, offset, len })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.transfer)
            .put_u32(36, self.r2t_sn)
            .put_u32(40, self.offset)
            .put_u32(44, self.len);
        self.numbers.put(&mut header);
        output.push(header, &Payload::new());
    }
}

const STATUS: u8 = 0x01;
