//! How nodes reach each other: one authenticated TCP connection, the *link*, per resource and pair of nodes.
//!
//! Both ends dial. [`listener`] takes calls on the control runtime, [`meet`] authenticates either end, `task`
//! runs on the resource's shard and keeps one link, and [`connection`] moves its packets.
//!
//! # Which connection is kept
//! When both ends dialled, or a peer comes back before its death was noticed, there is more than one connection.
//! The node with the lower id decides, alone, so that both ends agree: once both have authenticated each other,
//! the node with the higher id says *ready*, and the link is the connection on which the other says *open*.
//!
//! | the lower id has a link | of the same run of the peer's process | and it answers a ping within `ping-timeout` | then |
//! |---|---|---|---|
//! | no | | | the new connection is opened |
//! | yes | no | | the peer has restarted: the new connection replaces the old |
//! | yes | yes | no | the old connection is dead: the new one replaces it |
//! | yes | yes | yes | the new connection is closed as a duplicate |
//!
//! The node with the higher id takes whichever connection is opened, and drops the one it had. For the resource,
//! the old link is always lost before the new one is there.
//!
//! # When a peer counts as gone
//! After `ping-int` of silence (1 s) a ping is sent; after another `ping-timeout` (500 ms) without a sign of life the
//! link is lost: a peer that died, was stopped or was cut off is noticed within 1.5 s. A peer that takes nothing of
//! what is queued for it is dropped after `timeout` (6 s), and so does the kernel with bytes that nobody
//! acknowledges. A peer that leaves a change, a flush or a read unanswered is dropped after `ko-count` times that (42 s).

pub mod connection;
mod handle;
pub mod listener;
pub mod meet;
mod task;
#[cfg(test)]
mod tests;
mod unanswered;

use std::{io, sync::Arc, time::Duration};

use ops::{
    config::{Address, NetOptions},
    metrics::{Counters, Latencies},
};
use replication::{
    NodeId,
    authenticate::{Identity, Secret},
};

pub use handle::Peer;
pub use listener::{Directory, Listener};

/// The times and bounds of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `ping-int`: silence after which the peer is asked for a sign of life.
    pub ping_interval: Duration,
    /// `ping-timeout`: how long it may take to give one.
    pub ping_timeout: Duration,
    /// `timeout`: how long it may take nothing of what is queued for it.
    pub timeout: Duration,
    /// `timeout` times `ko-count`: how long it may leave a change, a flush or a read unanswered.
    pub answer_timeout: Duration,
    /// `connect-int`: the longest pause between two attempts to connect.
    pub connect_interval: Duration,
    /// Queued bytes from which on the link counts as congested.
    pub congested_bytes: usize,
    /// Queued bytes at which the peer is given up. What initiators may have in flight stays far below; a peer
    /// that asks for data and takes none does not.
    pub queue_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&NetOptions::default())
    }
}

impl From<&NetOptions> for Options {
    fn from(net: &NetOptions) -> Self {
        Self {
            ping_interval: net.ping_int,
            ping_timeout: net.ping_timeout,
            timeout: net.timeout,
            answer_timeout: match net.ko_count {
                0 => Duration::MAX,
                count => net.timeout.saturating_mul(count),
            },
            connect_interval: net.connect_int,
            congested_bytes: CONGESTED_BYTES,
            queue_bytes_max: QUEUE_BYTES_MAX,
        }
    }
}

/// What a link is for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Who this node is.
    pub identity: Arc<Identity>,
    /// The resource's name.
    pub resource: String,
    /// The other node.
    pub peer: NodeId,
    /// Its name, for logs.
    pub peer_name: String,
    /// Where it listens. A host name is looked up for each call anew.
    pub address: Address,
    /// Times and bounds.
    pub options: Options,
    /// Where the times of what the peer is asked are recorded.
    pub latencies: Arc<Latencies>,
    /// Where meetings are counted.
    pub counters: Arc<Counters>,
}

/// Makes this node's identity, for as long as the process lives.
///
/// # Errors
/// When the system has no random bytes.
pub fn identity(cluster: &str, node: NodeId, secret: Secret) -> io::Result<Arc<Identity>> {
    let instance = getrandom::u64().map_err(io::Error::other)?;
    Ok(Arc::new(Identity { cluster: cluster.to_owned(), node, instance, secret }))
}

const CONGESTED_BYTES: usize = 1 << 20;
const QUEUE_BYTES_MAX: usize = 256 << 20;
