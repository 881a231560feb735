//! Persistent reservations (SPC-4 5.13): who is registered with which key, who holds the volume and how.
//!
//! The registry knows nothing of commands: a [`Registrant`] is a name and a port, so that NVMe reservations, which
//! have the same types, keys and rules, can stand on it too.

mod registry;
mod store;

pub use registry::{REGISTRATIONS_MAX, Registry};
pub use store::RestoreError;

use super::sense::Additional;

/// One `I_T` nexus as reservations see it: it outlives the session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registrant {
    /// The initiator port's name.
    pub initiator: String,
    /// The relative target port.
    pub port: u16,
}

/// A reservation key. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// The type of a reservation (SPC-4 table 62).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registrants write.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registrants read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registrants write, and each of them holds the reservation.
    WriteExclusiveAllRegistrants = 7,
    /// Only registrants read and write, and each of them holds the reservation.
    ExclusiveAccessAllRegistrants = 8,
}

/// What a command does, as far as a reservation cares (SPC-4 table 66, SBC-3 table 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing that a reservation forbids.
    Any,
    /// It reads: exclusive access forbids it to others.
    Read,
    /// It writes or changes the device: every reservation forbids it to others.
    Write,
}

/// The nexus has no right to what it asked for: RESERVATION CONFLICT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

/// Why a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// RELEASE with another scope or type than the reservation's.
    InvalidRelease,
    /// A key of 0 where one is needed, or a move to oneself.
    InvalidParameter,
    /// PREEMPT would make a reservation of no type.
    InvalidType,
    /// The registry is full.
    Full,
}

/// What a request did to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consequences {
    /// Who is to be told what.
    pub attentions: Vec<(Registrant, Additional)>,
    /// Who lost its registration to a preemption.
    pub preempted: Vec<Registrant>,
}

impl ReservationType {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Whether every registrant holds the reservation.
    #[must_use]
    pub const fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether a registrant that does not hold the reservation may do what the holder may.
    #[must_use]
    pub const fn shared(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// What nobody but those with a right may do.
    #[must_use]
    pub(super) const fn forbids(self, access: Access) -> bool {
        match self {
            Self::WriteExclusive
            | Self::WriteExclusiveRegistrantsOnly
            | Self::WriteExclusiveAllRegistrants => {
                matches!(access, Access::Write)
            }
            Self::ExclusiveAccess
            | Self::ExclusiveAccessRegistrantsOnly
            | Self::ExclusiveAccessAllRegistrants => matches!(access, Access::Read | Access::Write),
        }
    }
}
