//! Text Request and Text Response (RFC 7143 11.10 and 11.11).

use block::Payload;
use bytes::Bytes;
use nom::Parser;
use nom::number::complete::{be_u32, be_u64};

use super::{CONTINUE, DecodeError, FINAL, Header, IMMEDIATE, NO_TAG, Numbers, Output, fields, tag};

/// Text Request (RFC 7143 11.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// Outside the order of CmdSN.
    pub immediate: bool,
    /// The last request of the negotiation, unless the target has more to say (the F bit).
    pub last: bool,
    /// The text goes on in the next request (the C bit).
    pub more: bool,
    /// The logical unit, where the target gave one.
    pub lun: u64,
    /// Initiator Task Tag, the same in the whole negotiation.
    pub task: u32,
    /// Target Transfer Tag of the response that it goes on from; `None` where a negotiation starts.
    pub transfer: Option<u32>,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// Keys and values.
    pub text: Bytes,
}

impl TextRequest {
    pub(super) const OPCODE: u8 = 0x04;

    pub(super) fn read(header: &Header, text: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, transfer, cmd_sn, exp_stat_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        Ok(Self {
            immediate: header.immediate(),
            last: header.flags() & FINAL != 0,
            more: header.flags() & CONTINUE != 0,
            lun,
            task,
            transfer: tag(transfer),
            cmd_sn,
            exp_stat_sn,
            text,
        })
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | if self.immediate { IMMEDIATE } else { 0 });
        header.0[1] = if self.last { FINAL } else { 0 } | if self.more { CONTINUE } else { 0 };
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.transfer.unwrap_or(NO_TAG))
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn);
        output.push(header, &Payload::from(self.text.clone()));
    }
}

/// Text Response (RFC 7143 11.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// The negotiation ends.
    pub last: bool,
    /// The text goes on in the next response.
    pub more: bool,
    /// The logical unit, where an answer is expected.
    pub lun: u64,
    /// Initiator Task Tag of the request.
    pub task: u32,
    /// Target Transfer Tag, where an answer is expected.
    pub transfer: Option<u32>,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// Keys and values.
    pub text: Bytes,
}

impl TextResponse {
    pub(super) const OPCODE: u8 = 0x24;

    pub(super) fn read(header: &Header, text: Bytes) -> Result<Self, DecodeError> {
        let (lun, task, transfer, stat_sn, exp_cmd_sn, max_cmd_sn) =
            fields(header, (be_u64, be_u32, be_u32, be_u32, be_u32, be_u32).parse(&header.0[8..]))?;
        Ok(Self {
            last: header.flags() & FINAL != 0,
            more: header.flags() & CONTINUE != 0,
            lun,
            task,
            transfer: tag(transfer),
            numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn },
            text,
        })
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = if self.last { FINAL } else { 0 } | if self.more { CONTINUE } else { 0 };
        header
            .put(8, self.lun.to_be_bytes())
            .put_u32(16, self.task)
            .put_u32(20, self.transfer.unwrap_or(NO_TAG));
        self.numbers.put(&mut header);
        output.push(header, &Payload::from(self.text.clone()));
    }
}
