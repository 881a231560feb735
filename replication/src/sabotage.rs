//! Deliberate faults, to show that the simulation finds such ones. Without the feature `sabotage` nothing of it
//! is compiled in.

/// A fault that the core can be made to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write is acknowledged before any disk completed it.
    EarlyAcknowledgement,
    /// What a lost peer missed while it was in flight is not marked.
    ForgetInFlight,
    /// What is written while a peer is away is not marked.
    ForgetMissed,
    /// No generation begins when a peer is lost.
    NoNewGeneration,
    /// Writes are acknowledged without quorum.
    IgnoreQuorum,
    /// A SyncTarget serves reads.
    ReadFromTarget,
    /// A SyncTarget applies what it fetched over a newer write.
    SyncOverWrite,
    /// Overlapping changes are applied by the replica in any order.
    UnorderedApply,
    /// A peer answers a flush before the earlier changes are on its disk.
    EarlyFlush,
    /// A peer consents to a second Primary.
    SecondPrimary,
    /// A crash is taken for a clean stop.
    ForgetCrash,
    /// The survivors of a Primary do not compare what only one of them received.
    ForgetTail,
}

impl Fault {
    /// Every fault.
    pub const ALL: &[Self] = &[
        Self::EarlyAcknowledgement,
        Self::ForgetInFlight,
        Self::ForgetMissed,
        Self::NoNewGeneration,
        Self::IgnoreQuorum,
        Self::ReadFromTarget,
        Self::SyncOverWrite,
        Self::UnorderedApply,
        Self::EarlyFlush,
        Self::SecondPrimary,
        Self::ForgetCrash,
        Self::ForgetTail,
    ];
}

#[cfg(feature = "sabotage")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Gives every core of this thread a fault, or none.
#[cfg(feature = "sabotage")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether the core has that fault.
#[cfg(feature = "sabotage")]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether the core has that fault: never.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
