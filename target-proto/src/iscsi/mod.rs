//! iSCSI, both sides, without I/O (RFC 7143, with the additions of RFC 7144).
//!
//! A connection starts as a [`login::Login`] and, once both sides agree, becomes a [`connection::Connection`]. Bytes
//! go in, effects and an [`pdu::Output`] come out; sockets, clocks and the SCSI device server are the caller's.

pub mod chap;
pub mod connection;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod pdu;
mod task;
pub mod text;
mod window;

pub use task::TaskId;
