//! The protocol data units of iSCSI, both ways (RFC 7143 chapter 11).
//!
//! One [`Decoder`] reads what either side sends and one [`Output`] collects what is to be sent, because a test, a
//! benchmark and the demo need an initiator as much as the daemon needs a target.

mod command;
mod data;
mod decoder;
mod login;
mod management;
mod message;
mod output;
mod text;

use bytes::Bytes;

pub use command::{Direction, Residual, ScsiCommand, ScsiResponse, TaskAttribute};
pub use data::{DataIn, DataInStatus, DataOut, ReadyToTransfer};
pub use decoder::{DecodeError, Decoder, Digests, Sender};
pub use login::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage};
pub use management::{ManagementAnswer, ManagementFunction, ManagementRequest, ManagementResponse};
pub use message::{AsyncEvent, AsyncMessage, LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut};
pub use message::{LogoutAnswer, Reject, RejectReason, Snack};
pub use output::Output;
pub use text::{TextRequest, TextResponse};

/// The length of the basic header segment, in bytes (RFC 7143 11.2.1).
pub const BHS_LEN: usize = 48;

/// The tag that names nothing: no task, no transfer (RFC 7143 11.2.1.8).
pub const NO_TAG: u32 = 0xffff_ffff;

/// A basic header segment as it stood on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header(pub [u8; BHS_LEN]);

impl Header {
    pub(super) const fn new(opcode: u8) -> Self {
        let mut bytes = [0; BHS_LEN];
        bytes[0] = opcode;
        Self(bytes)
    }

    /// The opcode, without the immediate bit.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.0[0] & OPCODE
    }

    /// Whether the command is for immediate delivery, outside the order of CmdSN.
    #[must_use]
    pub const fn immediate(&self) -> bool {
        self.0[0] & IMMEDIATE != 0
    }

    /// Byte 1: the flags of the opcode.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.0[1]
    }

    /// The length of all additional header segments, in bytes.
    #[must_use]
    pub const fn ahs_len(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// The length of the data segment without padding, in bytes.
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]])
    }

    /// The Initiator Task Tag.
    #[must_use]
    pub const fn task(&self) -> u32 {
        u32::from_be_bytes([self.0[16], self.0[17], self.0[18], self.0[19]])
    }

    /// CmdSN, in the requests that carry one.
    #[must_use]
    pub const fn cmd_sn(&self) -> u32 {
        u32::from_be_bytes([self.0[24], self.0[25], self.0[26], self.0[27]])
    }

    pub(super) fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> &mut Self {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    fn put_u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.put(at, value.to_be_bytes())
    }
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Header(opcode {:#04x}, flags {:#04x}, task {:#x})",
            self.opcode(),
            self.flags(),
            self.task()
        )
    }
}

/// A PDU with the header it came with: a Reject sends that header back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The header as it stood on the wire.
    pub header: Header,
    /// What it says.
    pub pdu: Pdu,
}

/// One PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// 0x00
    NopOut(NopOut),
    /// 0x01
    ScsiCommand(ScsiCommand),
    /// 0x02
    ManagementRequest(ManagementRequest),
    /// 0x03
    LoginRequest(LoginRequest),
    /// 0x04
    TextRequest(TextRequest),
    /// 0x05
    DataOut(DataOut),
    /// 0x06
    LogoutRequest(LogoutRequest),
    /// 0x10
    Snack(Snack),
    /// 0x20
    NopIn(NopIn),
    /// 0x21
    ScsiResponse(ScsiResponse),
    /// 0x22
    ManagementResponse(ManagementResponse),
    /// 0x23
    LoginResponse(LoginResponse),
    /// 0x24
    TextResponse(TextResponse),
    /// 0x25
    DataIn(DataIn),
    /// 0x26
    LogoutResponse(LogoutResponse),
    /// 0x31
    ReadyToTransfer(ReadyToTransfer),
    /// 0x32
    AsyncMessage(AsyncMessage),
    /// 0x3f
    Reject(Reject),
}

impl Pdu {
    /// Reads what stands behind a header that was checked already.
    fn read(header: &Header, ahs: &[u8], data: Bytes) -> Result<Self, DecodeError> {
        Ok(match header.opcode() {
            NopOut::OPCODE => Self::NopOut(NopOut::read(header, data)?),
            ScsiCommand::OPCODE => Self::ScsiCommand(ScsiCommand::read(header, ahs, data)?),
            ManagementRequest::OPCODE => Self::ManagementRequest(ManagementRequest::read(header)?),
            LoginRequest::OPCODE => Self::LoginRequest(LoginRequest::read(header, data)?),
            TextRequest::OPCODE => Self::TextRequest(TextRequest::read(header, data)?),
            DataOut::OPCODE => Self::DataOut(DataOut::read(header, data)?),
            LogoutRequest::OPCODE => Self::LogoutRequest(LogoutRequest::read(header)?),
            Snack::OPCODE => Self::Snack(Snack::read(header)?),
            NopIn::OPCODE => Self::NopIn(NopIn::read(header, data)?),
            ScsiResponse::OPCODE => Self::ScsiResponse(ScsiResponse::read(header, data)?),
            ManagementResponse::OPCODE => Self::ManagementResponse(ManagementResponse::read(header)?),
            LoginResponse::OPCODE => Self::LoginResponse(LoginResponse::read(header, data)?),
            TextResponse::OPCODE => Self::TextResponse(TextResponse::read(header, data)?),
            DataIn::OPCODE => Self::DataIn(DataIn::read(header, data)?),
            LogoutResponse::OPCODE => Self::LogoutResponse(LogoutResponse::read(header)?),
            ReadyToTransfer::OPCODE => Self::ReadyToTransfer(ReadyToTransfer::read(header)?),
            AsyncMessage::OPCODE => Self::AsyncMessage(AsyncMessage::read(header, data)?),
            Reject::OPCODE => Self::Reject(Reject::read(header, data)?),
            _ => return Err(DecodeError::Opcode { header: *header }),
        })
    }

    /// Appends the PDU to what is to be sent.
    pub fn write(&self, output: &mut Output) {
        match self {
            Self::NopOut(pdu) => pdu.write(output),
            Self::ScsiCommand(pdu) => pdu.write(output),
            Self::ManagementRequest(pdu) => pdu.write(output),
            Self::LoginRequest(pdu) => pdu.write(output),
            Self::TextRequest(pdu) => pdu.write(output),
            Self::DataOut(pdu) => pdu.write(output),
            Self::LogoutRequest(pdu) => pdu.write(output),
            Self::Snack(pdu) => pdu.write(output),
            Self::NopIn(pdu) => pdu.write(output),
            Self::ScsiResponse(pdu) => pdu.write(output),
            Self::ManagementResponse(pdu) => pdu.write(output),
            Self::LoginResponse(pdu) => pdu.write(output),
            Self::TextResponse(pdu) => pdu.write(output),
            Self::DataIn(pdu) => pdu.write(output),
            Self::LogoutResponse(pdu) => pdu.write(output),
            Self::ReadyToTransfer(pdu) => pdu.write(output),
            Self::AsyncMessage(pdu) => pdu.write(output),
            Self::Reject(pdu) => pdu.write(output),
        }
    }
}

/// The numbers that the target puts into each PDU it sends (RFC 7143 4.2.2): its own StatSN, and the window in
/// which it takes commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// StatSN.
    pub stat_sn: u32,
    /// ExpCmdSN: the next command that is due.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN: the last command that is taken.
    pub max_cmd_sn: u32,
}

impl Numbers {
    fn put(&self, header: &mut Header) {
        header.put_u32(24, self.stat_sn).put_u32(28, self.exp_cmd_sn).put_u32(32, self.max_cmd_sn);
    }
}

/// Reads the fields of a header from byte 8 on, in the order of the standard.
type Parsed<'a, T> = Result<(&'a [u8], T), nom::Err<nom::error::Error<&'a [u8]>>>;

/// Ends the reading of a header: its length is fixed, so only a value can be wrong.
fn fields<T>(header: &Header, parsed: Parsed<'_, T>) -> Result<T, DecodeError> {
    parsed.map(|(_, fields)| fields).map_err(|_| DecodeError::Field { header: *header, at: 8 })
}

/// `None` for the tag that names nothing.
fn tag(tag: u32) -> Option<u32> {
    (tag != NO_TAG).then_some(tag)
}

const OPCODE: u8 = 0x3f;
const IMMEDIATE: u8 = 0x40;
const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

#[cfg(test)]
mod tests;
