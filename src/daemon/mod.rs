//! The daemon: starts shards, resources, peers and listeners in order, and stops them in reverse.

mod node;
pub mod secrets;

pub use node::{Node, Resource, portal_group};
