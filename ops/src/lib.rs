//! What operators touch: configuration, command line, status, events, metrics.

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod events;
pub mod quantity;
pub mod status;
