//! Whole clusters of replication cores in one thread, from one seed, held to the promises.
//!
//! The cores are those that the daemon links. The world around them is simulated: disks with volatile caches, links
//! that delay, break and are cut one way or both ways, nodes that crash, lose power and come back, operators, and
//! initiators that give up and go to another node. `SIM_TRACE=1` prints what happens.

#![forbid(unsafe_code)]

mod bookkeeping;
mod check;
mod client;
mod converge;
mod disk;
mod history;
mod judge;
mod nemesis;
mod network;
mod node;
mod random;
mod run;
mod scenario;
mod split;
mod trace;
mod verdict;
mod world;

pub use bookkeeping::{Crash, run_crash};
pub use disk::Disk;
pub use history::{Access, Fault, FlushPoint, History, Operation};
pub use random::Random;
pub use run::{run, run_adopted};
pub use scenario::{Class, Kind, Scenario};
pub use verdict::{Broken, Failure, Promise, Report, Sum};
pub use world::World;
