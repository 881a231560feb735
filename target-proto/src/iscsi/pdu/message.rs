//! What keeps a connection in order: NOP, Logout, asynchronous messages, Reject, SNACK (RFC 7143 11.9 and 11.14 to
//! 11.19).

use block::Payload;
use bytes::Bytes;
use nom::Parser;
use nom::number::complete::{be_u16, be_u32, be_u64};

use super::{DecodeError, FINAL, Header, IMMEDIATE, NO_TAG, Numbers, Output, fields, tag};

/// NOP-Out (RFC 7143 11.18).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// Outside the order of CmdSN.
    pub immediate: bool,
    /// The logical unit, copied from the NOP-In it answers.
    pub lun: u64,
    /// Initiator Task Tag; `None` where no answer is wanted.
    pub task: Option<u32>,
    /// Target Transfer Tag of the NOP-In it answers.
    pub transfer: Option<u32>,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// Bytes that come back with the answer.
    pub data: Bytes,
}

impl NopOut {
    pub(super) const OPCODE: u8 = 0x00;

    pub(super) fn read(header: &Header, data: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, transfer, cmd_sn, exp_stat_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        Ok(Self {
            immediate: header.immediate(),
            lun,
            task: tag(task),
            transfer: tag(transfer),
            cmd_sn,
            exp_stat_sn,
            data,
        })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | if self.immediate { IMMEDIATE } else { 0 });
        header.0[1] = FINAL;
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task.unwrap_or(NO_TAG))
            .put_u32(20, self.transfer.unwrap_or(NO_TAG))
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn);
        output.push(header, &Payload::from(self.data.clone()));
    }
}

/// NOP-In (RFC 7143 11.19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// The logical unit.
    pub lun: u64,
    /// Initiator Task Tag of the NOP-Out it answers.
    pub task: Option<u32>,
    /// Target Transfer Tag, where an answer is wanted.
    pub transfer: Option<u32>,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// The bytes of the NOP-Out.
    pub data: Bytes,
}

impl NopIn {
    pub(super) const OPCODE: u8 = 0x20;

    pub(super) fn read(header: &Header, data: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, transfer, stat_sn, exp_cmd_sn, max_cmd_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        let numbers = Numbers { stat_sn, exp_cmd_sn, max_cmd_sn };
        Ok(Self { lun, task: tag(task), transfer: tag(transfer), numbers, data })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task.unwrap_or(NO_TAG))
            .put_u32(20, self.transfer.unwrap_or(NO_TAG));
        self.numbers.put(&mut header);
        output.push(header, &Payload::from(self.data.clone()));
    }
}

/// What a logout ends (RFC 7143 11.14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogoutReason {
    /// The session, with all its connections.
    CloseSession = 0,
    /// The connection that it names.
    CloseConnection = 1,
    /// A failed connection, so that its tasks can be taken over.
    RemoveForRecovery = 2,
}

/// Logout Request (RFC 7143 11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Outside the order of CmdSN.
    pub immediate: bool,
    /// What it ends.
    pub reason: LogoutReason,
    /// Initiator Task Tag.
    pub task: u32,
    /// The connection that is meant, unless the session is.
    pub cid: u16,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
}

impl LogoutRequest {
    pub(super) const OPCODE: u8 = 0x06;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (_, task, cid, _, cmd_sn, exp_stat_sn) =
            fields(header, (be_u64, be_u32, be_u16, be_u16, be_u32, be_u32).parse(&header.0[8..]))?;
        let reason = match header.flags() & !FINAL {
            0 => LogoutReason::CloseSession,
            1 => LogoutReason::CloseConnection,
            2 => LogoutReason::RemoveForRecovery,
            _ => return Err(DecodeError::Field { header: *header, at: 1 }),
        };
        Ok(Self { immediate: header.immediate(), reason, task, cid, cmd_sn, exp_stat_sn })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | if self.immediate { IMMEDIATE } else { 0 });
        header.0[1] = FINAL | self.reason as u8;
        header
            .put_u32(16, self.task)
            .put(20, self.cid.to_be_bytes())
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn);
        output.push(header, &Payload::new());
    }
}

/// What became of a logout (RFC 7143 11.15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogoutAnswer {
    /// Closed.
    Closed = 0,
    /// The connection was not found.
    CidNotFound = 1,
    /// Connection recovery is not supported.
    NoRecovery = 2,
    /// The clean-up failed.
    CleanupFailed = 3,
}

/// Logout Response (RFC 7143 11.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// Initiator Task Tag of the request.
    pub task: u32,
    /// What became of it.
    pub answer: LogoutAnswer,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// How long to wait before a new login, in seconds.
    pub time2wait: u16,
    /// How long tasks may be taken over after that, in seconds.
    pub time2retain: u16,
}

impl LogoutResponse {
    pub(super) const OPCODE: u8 = 0x26;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (_, task, _, stat_sn, exp_cmd_sn, max_cmd_sn, _, time2wait, time2retain) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u16, be_u16).parse(&header.0[8..]),
        )?;
        let answer = match header.0[2] {
            0 => LogoutAnswer::Closed,
            1 => LogoutAnswer::CidNotFound,
            2 => LogoutAnswer::NoRecovery,
            3 => LogoutAnswer::CleanupFailed,
            _ => return Err(DecodeError::Field { header: *header, at: 2 }),
        };
        let numbers = Numbers { stat_sn, exp_cmd_sn, max_cmd_sn };
        Ok(Self { task, answer, numbers, time2wait, time2retain })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header.0[2] = self.answer as u8;
        header
            .put_u32(16, self.task)
            .put(40, self.time2wait.to_be_bytes())
            .put(42, self.time2retain.to_be_bytes());
        self.numbers.put(&mut header);
        output.push(header, &Payload::new());
    }
}

/// What an asynchronous message tells (RFC 7143 11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AsyncEvent {
    /// A SCSI event: sense data tells which.
    Scsi = 0,
    /// The target wants the initiator to log out.
    LogoutRequest = 1,
    /// The target is about to drop a connection.
    DropConnection = 2,
    /// The target is about to drop all connections.
    DropSession = 3,
    /// The target wants to negotiate parameters.
    Renegotiate = 4,
    /// The tasks of a logical unit end.
    TasksEnd = 5,
}

/// Asynchronous Message (RFC 7143 11.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// What it tells.
    pub event: AsyncEvent,
    /// The logical unit of a SCSI event.
    pub lun: u64,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// Parameter1 to Parameter3: connection, how long to wait and to retain, or the time to log out, in seconds.
    pub parameters: [u16; 3],
    /// Sense data and more.
    pub data: Bytes,
}

impl AsyncMessage {
    pub(super) const OPCODE: u8 = 0x32;

    pub(super) fn read(header: &Header, data: Bytes) -> Result<Self, DecodeError> {
        let (lun, _, _, stat_sn, exp_cmd_sn, max_cmd_sn, code, first, second, third) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u16, be_u16, be_u16, be_u16)
                .parse(&header.0[8..]),
        )?;
        let event = match code >> 8 {
            0 => AsyncEvent::Scsi,
            1 => AsyncEvent::LogoutRequest,
            2 => AsyncEvent::DropConnection,
            3 => AsyncEvent::DropSession,
            4 => AsyncEvent::Renegotiate,
            5 => AsyncEvent::TasksEnd,
            _ => return Err(DecodeError::Field { header: *header, at: 36 }),
        };
        let numbers = Numbers { stat_sn, exp_cmd_sn, max_cmd_sn };
        Ok(Self { event, lun, numbers, parameters: [first, second, third], data })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header.0[36] = self.event as u8;
        header.put(8, self.lun.to_be_bytes()).put_u32(16, NO_TAG);
        for (at, parameter) in (38..).step_by(2).zip(self.parameters) {
            header.put(at, parameter.to_be_bytes());
        }
        self.numbers.put(&mut header);
        output.push(header, &Payload::from(self.data.clone()));
    }
}

/// Why a PDU is rejected (RFC 7143 11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// The data digest did not match.
    DataDigest = 0x02,
    /// A SNACK could not be served.
    Snack = 0x03,
    /// The PDU does not fit the state of the protocol.
    Protocol = 0x04,
    /// The opcode is not supported.
    NotSupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediate = 0x06,
    /// A task with this tag is in progress.
    TaskInProgress = 0x07,
    /// The data acknowledgement is not valid.
    InvalidDataAck = 0x08,
    /// A field of the PDU is not valid.
    InvalidField = 0x09,
    /// The target has no room for the negotiation.
    LongOperation = 0x0a,
    /// The target waits for a logout.
    WaitingForLogout = 0x0c,
}

impl RejectReason {
    const fn read(code: u8) -> Option<Self> {
        Some(match code {
            0x02 => Self::DataDigest,
            0x03 => Self::Snack,
            0x04 => Self::Protocol,
            0x05 => Self::NotSupported,
            0x06 => Self::TooManyImmediate,
            0x07 => Self::TaskInProgress,
            0x08 => Self::InvalidDataAck,
            0x09 => Self::InvalidField,
            0x0a => Self::LongOperation,
            0x0c => Self::WaitingForLogout,
            _ => return None,
        })
    }
}

/// Reject (RFC 7143 11.17).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// The header that is rejected.
    pub rejected: Bytes,
}

impl Reject {
    pub(super) const OPCODE: u8 = 0x3f;

    pub(super) fn read(header: &Header, rejected: Bytes) -> Result<Self, DecodeError> {
        let (_, _, _, stat_sn, exp_cmd_sn, max_cmd_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        let reason = RejectReason::read(header.0[2]).ok_or(DecodeError::Field { header: *header, at: 2 })?;
        Ok(Self { reason, numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn }, rejected })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header.0[2] = self.reason as u8;
        header.put_u32(16, NO_TAG);
        self.numbers.put(&mut header);
        output.push(header, &Payload::from(self.rejected.clone()));
    }
}

/// SNACK Request (RFC 7143 11.16). A target at ErrorRecoveryLevel 0 rejects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snack {
    /// What is asked for again (SNACK type).
    pub kind: u8,
    /// The logical unit.
    pub lun: u64,
    /// Initiator Task Tag.
    pub task: u32,
    /// Target Transfer Tag or SNACK Tag.
    pub transfer: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// BegRun: the first number of the run.
    pub first: u32,
    /// RunLength.
    pub count: u32,
}

impl Snack {
    pub(super) const OPCODE: u8 = 0x10;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (lun, task, transfer, _, exp_stat_sn, _, _, first, count) = fields(
            header,
            (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        Ok(Self { kind: header.flags() & SNACK_KIND, lun, task, transfer, exp_stat_sn, first, count })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL | self.kind & SNACK_KIND;
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.transfer)
            .put_u32(28, self.exp_stat_sn)
            .put_u32(40, self.first)
            .put_u32(44, self.count);
        output.push(header, &Payload::new());
    }
}

const SNACK_KIND: u8 = 0x0f;
