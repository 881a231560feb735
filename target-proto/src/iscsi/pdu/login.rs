//! Login Request and Login Response (RFC 7143 11.12 and 11.13).

use std::fmt;

use block::Payload;
use bytes::Bytes;
use nom::Parser;
use nom::bytes::complete::take;
use nom::number::complete::{be_u16, be_u32};

use super::{CONTINUE, DecodeError, FINAL, Header, IMMEDIATE, Numbers, Output, fields};

/// The initiator's part of a session identifier, six bytes that it chooses (RFC 7143 11.12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isid(pub [u8; 6]);

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The stages of a login (RFC 7143 6.3). Their order is their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// SecurityNegotiation
    Security = 0,
    /// LoginOperationalNegotiation
    Operational = 1,
    /// FullFeaturePhase
    FullFeature = 3,
}

impl Stage {
    const fn read(bits: u8) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }
}

/// Login Request (RFC 7143 11.12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// Where the initiator wants to go, and is ready to go (the T bit and NSG).
    pub next: Option<Stage>,
    /// The text goes on in the next request (the C bit).
    pub more: bool,
    /// The stage it is in (CSG).
    pub stage: Stage,
    /// The highest version it speaks.
    pub version_max: u8,
    /// The lowest version it speaks.
    pub version_min: u8,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part of the session identifier; 0 for a new session.
    pub tsih: u16,
    /// Initiator Task Tag, the same in the whole login.
    pub task: u32,
    /// The connection's number in the session.
    pub cid: u16,
    /// CmdSN.
    pub cmd_sn: u32,
    /// ExpStatSN.
    pub exp_stat_sn: u32,
    /// Text: keys and values.
    pub text: Bytes,
}

impl LoginRequest {
    pub(super) const OPCODE: u8 = 0x03;

    pub(super) fn read(header: &Header, text: Bytes) -> Result<Self, DecodeError> {
        let (isid, tsih, task, cid, _, cmd_sn, exp_stat_sn) = fields(
            header,
            (take(6_usize), be_u16, be_u32, be_u16, be_u16, be_u32, be_u32).parse(&header.0[8..]),
        )?;
        let flags = header.flags();
        let wrong = DecodeError::Field { header: *header, at: 1 };
        let Some(stage @ (Stage::Security | Stage::Operational)) = Stage::read(flags >> 2) else {
            return Err(wrong);
        };
        let next = if flags & TRANSIT == 0 { None } else { Some(Stage::read(flags).ok_or(wrong)?) };
        let mut request = Self {
            next,
            more: flags & CONTINUE != 0,
            stage,
            version_max: header.0[2],
            version_min: header.0[3],
            isid: Isid::default(),
            tsih,
            task,
            cid,
            cmd_sn,
            exp_stat_sn,
            text,
        };
        request.isid.0.copy_from_slice(isid);
        Ok(request)
    }

    pub(super) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE | IMMEDIATE);
        header.0[1] = stage_flags(self.next, self.more, self.stage);
        header.0[2] = self.version_max;
        header.0[3] = self.version_min;
        header
            .put(8, self.isid.0)
            .put(14, self.tsih.to_be_bytes())
            .put_u32(16, self.task)
            .put(20, self.cid.to_be_bytes())
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn);
        output.push(header, &Payload::from(self.text.clone()));
    }
}

/// Login Response (RFC 7143 11.13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// Where both go now.
    pub next: Option<Stage>,
    /// The text goes on in the next response.
    pub more: bool,
    /// The stage it is in.
    pub stage: Stage,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part, in the last response of a login.
    pub tsih: u16,
    /// Initiator Task Tag of the request.
    pub task: u32,
    /// StatSN and the command window.
    pub numbers: Numbers,
    /// What became of the request.
    pub status: LoginStatus,
    /// Text: keys and values.
    pub text: Bytes,
}

impl LoginResponse {
    pub(super) const OPCODE: u8 = 0x23;

    pub(super) fn read(header: &Header, text: Bytes) -> Result<Self, DecodeError> {
        let (isid, tsih, task, _, stat_sn, exp_cmd_sn, max_cmd_sn, status) = fields(
            header,
            (take(6_usize), be_u16, be_u32, be_u32, be_u32, be_u32, be_u32, be_u16).parse(&header.0[8..]),
        )?;
        let flags = header.flags();
        let wrong = DecodeError::Field { header: *header, at: 1 };
        let mut response = Self {
            next: if flags & TRANSIT == 0 { None } else { Some(Stage::read(flags).ok_or(wrong)?) },
            more: flags & CONTINUE != 0,
            stage: Stage::read(flags >> 2).ok_or(wrong)?,
            isid: Isid::default(),
            tsih,
            task,
            numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn },
            status: LoginStatus(status),
            text,
        };
        response.isid.0.copy_from_slice(isid);
        Ok(response)
    }

    pub(in crate::iscsi) fn write(&self, output: &mut Output) {
        let mut header = Header::new(Self::OPCODE);
        header.0[1] = stage_flags(self.next, self.more, self.stage);
        header
            .put(8, self.isid.0)
            .put(14, self.tsih.to_be_bytes())
            .put_u32(16, self.task)
            .put(36, self.status.0.to_be_bytes());
        self.numbers.put(&mut header);
        output.push(header, &Payload::from(self.text.clone()));
    }
}

/// Status-Class and Status-Detail of a Login Response, as one number (RFC 7143 11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoginStatus(pub u16);

impl LoginStatus {
    /// The login goes on, or is done.
    pub const SUCCESS: Self = Self(0x0000);
    /// The target has moved for now: TargetAddress says where.
    pub const MOVED_TEMPORARILY: Self = Self(0x0101);
    /// The target has moved for good: TargetAddress says where.
    pub const MOVED_PERMANENTLY: Self = Self(0x0102);
    /// The initiator made an error that no other code describes.
    pub const INITIATOR_ERROR: Self = Self(0x0200);
    /// Authentication failed.
    pub const AUTHENTICATION_FAILURE: Self = Self(0x0201);
    /// The initiator is not allowed to use the target.
    pub const FORBIDDEN: Self = Self(0x0202);
    /// There is no such target.
    pub const NOT_FOUND: Self = Self(0x0203);
    /// The target was removed.
    pub const REMOVED: Self = Self(0x0204);
    /// No common version.
    pub const UNSUPPORTED_VERSION: Self = Self(0x0205);
    /// The session has as many connections as were agreed.
    pub const TOO_MANY_CONNECTIONS: Self = Self(0x0206);
    /// A key that is needed was not sent.
    pub const MISSING_PARAMETER: Self = Self(0x0207);
    /// The session does not span to this portal.
    pub const CANNOT_INCLUDE: Self = Self(0x0208);
    /// The type of session is not supported.
    pub const SESSION_TYPE: Self = Self(0x0209);
    /// There is no session with this TSIH.
    pub const NO_SESSION: Self = Self(0x020a);
    /// Something else than a login request came during the login.
    pub const INVALID_DURING_LOGIN: Self = Self(0x020b);
    /// The target has an error.
    pub const TARGET_ERROR: Self = Self(0x0300);
    /// The target does not serve now.
    pub const UNAVAILABLE: Self = Self(0x0301);
    /// The target has no room for the session.
    pub const OUT_OF_RESOURCES: Self = Self(0x0302);

    const fn words(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::MOVED_TEMPORARILY => "target moved temporarily",
            Self::MOVED_PERMANENTLY => "target moved permanently",
            Self::INITIATOR_ERROR => "initiator error",
            Self::AUTHENTICATION_FAILURE => "authentication failure",
            Self::FORBIDDEN => "initiator not allowed",
            Self::NOT_FOUND => "target not found",
            Self::REMOVED => "target removed",
            Self::UNSUPPORTED_VERSION => "unsupported version",
            Self::TOO_MANY_CONNECTIONS => "too many connections",
            Self::MISSING_PARAMETER => "missing parameter",
            Self::CANNOT_INCLUDE => "can not include in session",
            Self::SESSION_TYPE => "session type not supported",
            Self::NO_SESSION => "session does not exist",
            Self::INVALID_DURING_LOGIN => "invalid request during login",
            Self::TARGET_ERROR => "target error",
            Self::UNAVAILABLE => "service unavailable",
            Self::OUT_OF_RESOURCES => "out of resources",
            _ => "unknown status",
        }
    }
}

impl fmt::Debug for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoginStatus({:#06x})", self.0)
    }
}

impl fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:04x})", self.words(), self.0)
    }
}

const fn stage_flags(next: Option<Stage>, more: bool, stage: Stage) -> u8 {
    let next = match next {
        Some(next) => TRANSIT | next as u8,
        None => 0,
    };
    next | if more { CONTINUE } else { 0 } | (stage as u8) << 2
}

const TRANSIT: u8 = FINAL;
