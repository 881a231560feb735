//! What a command ends with: a status (SAM-5 5.3), perhaps sense data, perhaps data.

use block::Payload;
use bytes::Bytes;

use super::sense::{Sense, SenseFormat};

/// The status of a command (SAM-5 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ScsiStatus {
    /// Done.
    Good = 0x00,
    /// Not done, or done with something to tell: the sense data says what.
    CheckCondition = 0x02,
    /// The logical unit can not take the command now.
    Busy = 0x08,
    /// A reservation of another `I_T` nexus forbids the command.
    ReservationConflict = 0x18,
    /// The task set is full. The transport's to use.
    TaskSetFull = 0x28,
    /// The command was aborted, and the control mode page asks that its sender be told. The transport's to use.
    TaskAborted = 0x40,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: ScsiStatus,
    /// The sense data, with [`ScsiStatus::CheckCondition`].
    pub sense: Option<Sense>,
    /// The format the logical unit is set to send sense data in (`D_SENSE` of the control mode page).
    pub format: SenseFormat,
    /// What the initiator is sent.
    pub data_in: Payload,
}

impl Response {
    /// The status alone.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self { status, sense: None, format: SenseFormat::Fixed, data_in: Payload::new() }
    }

    /// GOOD, with `data_in`.
    #[must_use]
    pub fn data(data_in: impl Into<Payload>) -> Self {
        Self { data_in: data_in.into(), ..Self::status(ScsiStatus::Good) }
    }

    /// CHECK CONDITION, with `sense` in `format`.
    #[must_use]
    pub fn check(sense: Sense, format: SenseFormat) -> Self {
        Self { sense: Some(sense), format, ..Self::status(ScsiStatus::CheckCondition) }
    }

    /// The sense data as sent, without a transport's length in front. Empty where there is none.
    #[must_use]
    pub fn sense_bytes(&self) -> Bytes {
        self.sense.as_ref().map_or_else(Bytes::new, |sense| sense.encode(self.format))
    }
}
