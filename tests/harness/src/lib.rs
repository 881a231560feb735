//! What the tests from outside share: targets as real processes, a cluster of three on loopback,
//! and an initiator that builds its PDUs by hand.
//!
//! Nothing here uses the product's own codecs, so a mistake in them cannot hide itself.

pub mod cluster;
pub mod disk;
pub mod host;
pub mod image;
pub mod load;
pub mod port;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod register;
pub mod target;
