//! The words that every front end and the replication share.
//!
//! An initiator's SCSI task or a host's NVMe command becomes one [`Command`]; what became of it is one
//! [`Status`]. Both count in bytes from the start of the volume, always on whole logical blocks, so that no
//! layer below the protocols needs to know the block size.

#![forbid(unsafe_code)]

mod command;
mod extent;
mod payload;

pub use command::{Command, CommandId, Failure, Run, Status, VolumeNumber};
pub use extent::{BlockSize, Extent, Lba};
pub use payload::Payload;
