//! The backing store: one replica's file or block device, read and written without blocking its shard.
//!
//! ```text
//! let ring = Ring::probe(engine);                     // once per process: is io_uring allowed here?
//! ring.block_on(shard);                               // each shard's thread
//! let (backing, found) = Backing::open(&config)?;     // blocks; on any thread
//! let disk = Disk::start(backing, mailbox, latencies); // on the shard; answers are pushed as Input::Disk
//! disk.submit(op, request);
//! disk.drain().await;                                 // nothing is in flight
//! disk.close().await;                                 // and the file is unlocked
//! ```
//!
//! Two engines do the work, chosen per backing: the shard's `io_uring` for files and devices that can
//! do `O_DIRECT`; a few threads for the rest, and everywhere `io_uring` is forbidden. Both run the same
//! operations.

mod allocation;
mod backing;
mod blocking;
mod buffer;
mod creation;
mod driver;
mod error;
mod guard;
mod handle;
mod in_flight;
mod layout;
mod operation;
mod ring;
mod signature;
mod steps;
#[cfg(test)]
mod tests;
mod uring;

pub use backing::{Backing, labelled_size};
pub use buffer::{ALIGNMENT, Buffer, KEPT_MAX};
pub use error::OpenError;
pub use handle::{Access, Disk};
pub use layout::{HEAD_LEN, LabelError, PEERS_MAX, metadata_len};
pub use ring::{ENGINE_VARIABLE, Engine, EngineError, Ring};

use std::path::PathBuf;

use block::BlockSize;
use bytes::Bytes;

/// What the configuration says of one replica's backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The file or block device of the data area.
    pub path: PathBuf,
    /// The size of the data area, in bytes; whole blocks.
    pub size: u64,
    /// Where the metadata is.
    pub metadata: Metadata,
    /// The block size that the volume is exported with.
    pub block_size: BlockSize,
}

/// Where a replica's metadata is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Behind the data area.
    Internal,
    /// In a file or device of its own.
    External(PathBuf),
}

/// What was found in a backing that is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No superblock and not a byte of data was ever written: a sparse file, known to be zeros.
    Fresh,
    /// Data of which nothing is known: no superblock was ever written, but the file occupies space, or it is a
    /// device that `metadata create` made ours.
    Data,
    /// The first [`HEAD_LEN`] bytes of the metadata area, which the replication core wrote.
    Superblocks(Bytes),
}
