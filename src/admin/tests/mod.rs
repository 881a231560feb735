//! The admin socket, `/metrics` and the command line's client, against a node whose resource is a puppet.

mod api;
mod events;
mod scrape;
mod socket;
mod world;
