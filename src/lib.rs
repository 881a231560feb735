//! Evenkeel's shells: what owns sockets, disks, clocks and threads. What they do is decided by the pure crates.
//!
//! Start reading at [`daemon`]; `docs/architecture.md` draws the route of a write.

pub mod admin;
pub mod client;
pub mod commands;
pub mod configuration;
pub mod daemon;
pub mod demo;
pub mod disk;
pub mod front;
pub mod half_open;
pub mod initiator;
pub mod local;
pub mod peer;
pub mod quota;
pub mod serve;
pub mod shard;
pub mod volume;
