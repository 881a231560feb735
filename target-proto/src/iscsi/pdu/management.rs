//! Task management (RFC 7143 11.5 and 11.6).

use block::Payload;
use nom::Parser;
use nom::number::complete::{be_u32, be_u64};

use super::{DecodeError, FINAL, Header, IMMEDIATE, Numbers, Output, fields};

/// What a task management request asks for (RFC 7143 11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ManagementFunction {
    /// ABORT TASK
    AbortTask = 1,
    /// ABORT TASK SET
    AbortTaskSet = 2,
    /// CLEAR ACA
    ClearAca = 3,
    /// CLEAR TASK SET
    ClearTaskSet = 4,
    /// LOGICAL UNIT RESET
    LogicalUnitReset = 5,
    /// TARGET WARM RESET
    TargetWarmReset = 6,
    /// TARGET COLD RESET
    TargetColdReset = 7,
    /// TASK REASSIGN
    TaskReassign = 8,
}

impl ManagementFunction {
    const fn read(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            _ => return None,
        })
    }
}

/// Task Management Function Request (RFC 7143 11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementRequest {
    /// Outside the order of CmdSN.
    pub immediate: bool,
    /// What is asked; `None` for a code that the standard does not know.
    pub function: Option<ManagementFunction>,
    /// The logical unit.
    pub lun: u64,
    /// Initiator Task Tag of the request itself.
    pub task: u32,
    /// Referenced Task Tag: the task that is meant.
    pub referenced_task: u32,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// RefCmdSN: the CmdSN of the task that is meant.
    pub ref_cmd_sn: u32,
    /// ExpDataSN, for a reassignment.
    pub exp_data_sn: u32,
}

impl ManagementRequest {
    pub(super) const OPCODE: u8 = 0x02;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (lun, task, referenced_task, cmd_sn, exp_stat_sn, ref_cmd_sn, exp_data_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        Ok(Self {
            immediate: header.immediate(),
            function: ManagementFunction::read(header.flags() & !FINAL),
            lun,
            task,
            referenced_task,
            cmd_sn,
            exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn,
        })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | if self.immediate { IMMEDIATE } else { 0 });
        header.0[1] = FINAL | self.function.map_or(0, |function| function as u8);
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.referenced_task)
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn)
            .put_u32(32, self.ref_cmd_sn)
            .put_u32(36, self.exp_data_sn);
        output.push(header, &Payload::new());
    }
}

/// What became of a task management request (RFC 7143 11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ManagementAnswer {
    /// Function complete.
    Complete = 0,
    /// Task does not exist.
    NoTask = 1,
    /// LUN does not exist.
    NoLun = 2,
    /// Task still allegiant.
    StillAllegiant = 3,
    /// Task allegiance reassignment not supported.
    NoReassignment = 4,
    /// Task management function not supported.
    NotSupported = 5,
    /// Function authorization failed.
    NotAuthorized = 6,
    /// Function rejected.
    Rejected = 255,
}

impl ManagementAnswer {
    const fn read(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Complete,
            1 => Self::NoTask,
            2 => Self::NoLun,
            3 => Self::StillAllegiant,
            4 => Self::NoReassignment,
            5 => Self::NotSupported,
            6 => Self::NotAuthorized,
            255 => Self::Rejected,
            _ => return None,
        })
    }
}

/// Task Management Function Response (RFC 7143 11.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementResponse {
    /// Initiator Task Tag of the request.
    pub task: u32,
    /// What became of it.
    pub answer: ManagementAnswer,
    /// StatSN and the command window.
    pub numbers: Numbers,
}

impl ManagementResponse {
    pub(super) const OPCODE: u8 = 0x22;

    pub(super) fn read(header: &Header) -> Result<Self, DecodeError> {
        let (_, task, _, stat_sn, exp_cmd_sn, max_cmd_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        let answer =
            ManagementAnswer::read(header.0[2]).ok_or(DecodeError::Field { header: *header, at: 2 })?;
        Ok(Self { task, answer, numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = FINAL;
        header.0[2] = self.answer as u8;
        header.put_u32(16, self.task);
        self.numbers.put(&mut header);
        output.push(header, &Payload::new());
    }
}
