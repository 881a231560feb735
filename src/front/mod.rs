//! Front ends: connections of initiators, and the listener that accepts them.

pub mod catalog;
mod discovery;
pub mod iscsi;
pub mod listener;
pub mod sessions;
