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
    /// A generation is told to one peer only.
    UntoldGeneration,
    /// The blocks of a resync count as equal once they are asked for.
    ClearWhenAsked,
    /// What a resync brought is not marked as different from a third replica.
    ForgetThird,
    /// A source serves a resync that the Primary does not count in.
    ServeUncounted,
    /// A resync ends without a flush.
    UnflushedResync,
    /// A replica that is not in the newest generation counts as good when its node returns.
    TrustReturning,
    /// A replica that knows that a newer one exists passes for good after a restart.
    TrustOutdated,
    /// A node that was not promoted carries out later, when it is Primary, what it was asked then.
    ReplayFenced,
    /// A change is acknowledged after quorum was lost.
    LateAcknowledgement,
    /// A flush is not sent to the peers.
    FlushHereOnly,
    /// A flush reaches one volume of a peer only.
    FlushOneVolume,
    /// A forced write is not forced at the peers.
    ForgetForce,
    /// A flush does not wait for the generation that leaves a lost peer behind.
    FlushWithoutGeneration,
    /// A peer does not order a read behind the changes it received.
    UnorderedRead,
    /// A read-modify-write does not keep others away.
    TornCompare,
    /// A read that failed is not tried elsewhere.
    ReadOnce,
    /// Split brain is taken for two replicas of which one is newer.
    MergeSplitBrain,
    /// Not the side that its operator gives up is given up, but the other one.
    DiscardOther,
    /// An extent leaves the activity log while a change in it is not everywhere.
    EvictEarly,
    /// An extent leaves the activity log before the bitmaps about it are on the disk.
    ForgetBitmapPage,
    /// A change goes to the disk before the transaction that makes its extent hot.
    LogAfterWrite,
    /// A replica that was given up is replaced by what the bitmaps have only.
    KeepGivenUp,
    /// A policy gives up the side that it should keep.
    KeepLoser,
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
        Self::UntoldGeneration,
        Self::ClearWhenAsked,
        Self::ForgetThird,
        Self::ServeUncounted,
        Self::UnflushedResync,
        Self::TrustReturning,
        Self::TrustOutdated,
        Self::ReplayFenced,
        Self::LateAcknowledgement,
        Self::FlushHereOnly,
        Self::FlushOneVolume,
        Self::ForgetForce,
        Self::FlushWithoutGeneration,
        Self::UnorderedRead,
        Self::TornCompare,
        Self::ReadOnce,
        Self::MergeSplitBrain,
        Self::DiscardOther,
        Self::EvictEarly,
        Self::ForgetBitmapPage,
        Self::LogAfterWrite,
        Self::KeepGivenUp,
        Self::KeepLoser,
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
