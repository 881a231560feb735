//! Roles and states, with DRBD's names and spellings, in the order of DRBD.

use std::fmt;

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every state, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// DRBD's spelling.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

states! {
    /// Whether a node serves initiators.
    Role {
        /// Not known: the peer is not connected.
        Unknown,
        /// Takes writes from a Primary only.
        Secondary,
        /// Serves initiators. One node at a time.
        Primary,
    }
}

states! {
    /// What is known of the data of one replica.
    DiskState {
        /// No disk: the node is diskless, or its disk was detached.
        Diskless,
        /// Being attached.
        Attaching,
        /// Failed and being detached.
        Failed,
        /// Being negotiated with a peer.
        Negotiating,
        /// Some of the data is older than the rest; must be synchronised before it is of use.
        Inconsistent,
        /// Consistent, but older than a peer's.
        Outdated,
        /// Not known: the peer is not connected.
        DUnknown,
        /// Consistent; whether it is up to date is known when a peer is met.
        Consistent,
        /// Good.
        UpToDate,
    }
}

states! {
    /// How the connection to a peer stands.
    ConnectionState {
        /// Not wanted: after `disconnect`, or because a human has to decide.
        StandAlone,
        /// Being taken down.
        Disconnecting,
        /// Wanted, not there.
        Unconnected,
        /// The peer did not answer in time.
        Timeout,
        /// The connection broke.
        BrokenPipe,
        /// The connection failed.
        NetworkFailure,
        /// The peer sent what it must not.
        ProtocolError,
        /// The peer closed the connection.
        TearDown,
        /// Trying.
        Connecting,
        /// There.
        Connected,
    }
}

states! {
    /// What happens between two replicas of one volume.
    ReplicationState {
        /// No connection.
        Off,
        /// Every write is mirrored; nothing is to be copied.
        Established,
        /// About to copy everything to the peer.
        StartingSyncS,
        /// About to copy everything from the peer.
        StartingSyncT,
        /// Sending the bitmap.
        WFBitMapS,
        /// Waiting for the bitmap.
        WFBitMapT,
        /// Copying to the peer.
        SyncSource,
        /// Copying from the peer.
        SyncTarget,
        /// Comparing, and asks.
        VerifyS,
        /// Comparing, and answers.
        VerifyT,
        /// Copying to the peer, paused.
        PausedSyncS,
        /// Copying from the peer, paused.
        PausedSyncT,
    }
}
