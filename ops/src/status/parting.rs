//! Why a connection is not wanted any more, as `why` and the JSON tell it.

use serde::{Deserialize, Serialize};

use super::generation;

/// Why a connection is not wanted any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Parting {
    /// The kind of reason.
    pub reason: Reason,
    /// What both sides wrote, where the data diverged.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub volumes: Vec<Divergence>,
    /// The policy that did not decide whose data goes, as the configuration spells it.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub policy: String,
}

/// The kind of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// An operator disconnected, here or there.
    Disconnected,
    /// Both sides hold data that the other lacks.
    SplitBrain,
    /// The two have nothing in common.
    Unrelated,
}

/// What both sides wrote to a volume while they were apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Divergence {
    /// The volume.
    pub volume: u16,
    /// On this node.
    pub here: Written,
    /// On the peer.
    pub there: Written,
}

/// What one side wrote since the two were in step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Written {
    /// In KiB; after a crash not more than this.
    pub changed: u64,
    /// The generation of its data, in hexadecimal.
    pub generation: String,
    /// The generation that both had, in hexadecimal; zeros where it is not known.
    pub since: String,
    /// Whether it was Primary when the two met again.
    pub primary: bool,
}

impl Parting {
    pub(super) fn new(parting: &replication::Parting) -> Self {
        use replication::Parting as P;
        let reason = match parting {
            P::Disconnected => Reason::Disconnected,
            P::Diverged { .. } => Reason::SplitBrain,
            P::Unrelated => Reason::Unrelated,
        };
        let (diverged, policy) = match parting {
            P::Diverged { volumes, policy } => (volumes.as_slice(), policy.clone()),
            P::Disconnected | P::Unrelated => (&[][..], String::new()),
        };
        let volumes = diverged.iter().map(|volume| Divergence {
            volume: volume.volume.0,
            here: Written::new(volume.here),
            there: Written::new(volume.there),
        });
        Self { reason, volumes: volumes.collect(), policy }
    }
}

impl Written {
    fn new(written: replication::Written) -> Self {
        Self {
            changed: written.changed.div_ceil(super::KIB),
            generation: generation(written.generation),
            since: generation(written.since),
            primary: written.primary,
        }
    }
}
