//! What initiators and hosts speak, as bytes and state machines without I/O.

#![forbid(unsafe_code)]

pub mod iscsi;
pub mod scsi;
