//! States in JSON: by DRBD's names.

use replication::{AckMode, ConnectionState, DiskState, ReplicationState, Role};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// A state that has a name.
pub(super) trait Named: Copy + 'static {
    /// Every state with its name.
    fn all() -> impl Iterator<Item = (Self, &'static str)>;
    /// This one's name.
    fn named(self) -> &'static str;
}

macro_rules! named {
    ($($state:ty),*) => {
        $(impl Named for $state {
            fn all() -> impl Iterator<Item = (Self, &'static str)> {
                Self::ALL.iter().map(|&state| (state, state.name()))
            }

            fn named(self) -> &'static str {
                self.name()
            }
        })*
    };
}

named!(Role, DiskState, ConnectionState, ReplicationState);

impl Named for AckMode {
    fn all() -> impl Iterator<Item = (Self, &'static str)> {
        [Self::A, Self::B, Self::C].into_iter().map(|mode| (mode, mode.named()))
    }

    fn named(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
        }
    }
}

pub(super) fn serialize<T: Named, S: Serializer>(state: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.named())
}

pub(super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = T::all().find(|(_, known)| *known == name).map(|(state, _)| state);
    found.ok_or_else(|| D::Error::custom(format!("`{name}` is not a state that this version knows")))
}
