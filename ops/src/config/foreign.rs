//! Options of DRBD that are not ours: which are harmless, which are refused, and which are spelled otherwise.

/// An option of DRBD that the file may not set, or may set to no effect.
#[derive(Debug)]
pub(super) struct Foreign {
    /// DRBD's name.
    pub(super) name: &'static str,
    /// What becomes of it.
    pub(super) standing: Standing,
}

/// What becomes of an option of DRBD that is not ours.
#[derive(Debug)]
pub(super) enum Standing {
    /// It has no meaning here, so it is accepted with a warning that says why.
    Meaningless(&'static str),
    /// It has a meaning that this version does not honour, so it is refused.
    NotYet,
    /// It is spelled otherwise here.
    Elsewhere(&'static str),
}

use Standing::{Elsewhere, Meaningless, NotYet};

/// Options of DRBD that are not ours, with what becomes of them.
pub(super) const FOREIGN: [Foreign; 59] = [
    foreign("use-bmbv", Meaningless("there is no kernel block layer to merge requests in")),
    foreign("unplug-watermark", Meaningless("requests are not held back for a watermark")),
    foreign("max-epoch-size", Meaningless("the peer orders writes by sequence, not by epoch")),
    foreign("tcp-cork", Meaningless("packets are sent in batches with one system call")),
    foreign("use-rle", Meaningless("bitmaps are always exchanged in a short form")),
    foreign("transport", Meaningless("the transport is TCP")),
    foreign("load-balance-paths", Meaningless("a connection has one path")),
    foreign("rdma-ctrl-rcvbuf-size", Meaningless("the transport is TCP")),
    foreign("rdma-ctrl-sndbuf-size", Meaningless("the transport is TCP")),
    foreign("socket-check-timeout", Meaningless("`ping-timeout` bounds every check of a socket")),
    foreign("disk-barrier", Meaningless("order is kept by flushes")),
    foreign("disk-drain", Meaningless("order is kept by flushes")),
    foreign("disk-flushes", Meaningless("a flush always reaches the disk")),
    foreign("md-flushes", Meaningless("metadata is always flushed")),
    foreign("resync-rate", Meaningless("a resync has no fixed rate")),
    foreign("cpu-mask", Meaningless("the daemon runs on the processors that the system gives it")),
    foreign("max-io-depth", Meaningless("the initiators' queues bound what is in flight")),
    foreign("minor", Meaningless("there is no kernel device")),
    foreign("device", Meaningless("there is no kernel device")),
    foreign("meta-disk", Elsewhere("metadata = { NODE = \"PATH\" } in [[resource.volume]]")),
    foreign("cram-hmac-alg", Meaningless("nodes always prove the secret with HMAC-SHA-256")),
    foreign("shared-secret", Elsewhere("secret-file in [cluster]")),
    foreign("node-id", Elsewhere("id in [[node]]")),
    foreign("address", Elsewhere("replication in [[node]]")),
    foreign("tls-keyring", Elsewhere("[cluster.tls]")),
    foreign("tls-privkey", Elsewhere("[cluster.tls]")),
    foreign("tls-certificate", Elsewhere("[cluster.tls]")),
    foreign("always-asbp", NotYet),
    foreign("rr-conflict", NotYet),
    foreign("on-congestion", NotYet),
    foreign("congestion-fill", NotYet),
    foreign("congestion-extents", NotYet),
    foreign("csums-alg", NotYet),
    foreign("csums-after-crash-only", NotYet),
    foreign("verify-alg", NotYet),
    foreign("data-integrity-alg", NotYet),
    foreign("allow-two-primaries", NotYet),
    foreign("allow-remote-read", NotYet),
    foreign("fencing", NotYet),
    foreign("resync-after", NotYet),
    foreign("resync-without-replication", NotYet),
    foreign("al-updates", NotYet),
    foreign("c-plan-ahead", NotYet),
    foreign("c-fill-target", NotYet),
    foreign("c-delay-target", NotYet),
    foreign("c-max-rate", NotYet),
    foreign("c-min-rate", NotYet),
    foreign("discard-zeroes-if-aligned", NotYet),
    foreign("disable-write-same", NotYet),
    foreign("rs-discard-granularity", NotYet),
    foreign("discard-granularity", NotYet),
    foreign("on-no-quorum", NotYet),
    foreign("quorum-minimum-redundancy", NotYet),
    foreign("on-no-data-accessible", NotYet),
    foreign("on-suspended-primary-outdated", NotYet),
    foreign("auto-promote-timeout", NotYet),
    foreign("twopc-timeout", NotYet),
    foreign("peer-ack-delay", NotYet),
    foreign("peer-ack-window", NotYet),
];

const fn foreign(name: &'static str, standing: Standing) -> Foreign {
    Foreign { name, standing }
}
