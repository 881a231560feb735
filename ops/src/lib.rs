//! What operators touch: configuration, command line, status, events, metrics, and the API that joins them.

#![forbid(unsafe_code)]

pub mod admin;
pub mod cli;
pub mod config;
pub mod events;
pub mod metrics;
pub mod quantity;
pub mod status;
