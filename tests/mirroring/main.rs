//! Three nodes as real processes on loopback: what was written through one is on the other, whatever happens.
//!
//! Promises P1, P4, P7 and P11 of docs/promises.md, seen from outside.

mod cluster;
mod modes;
mod outages;
mod roles;
