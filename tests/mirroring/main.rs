//! Three nodes as real processes on loopback: what was written through one is on the other, whatever happens.
//!
//! Promises P1, P2, P3, P4, P5, P7, P9, P10, P11, P12 and P14 of docs/promises.md, seen from outside.

mod chaos;
mod cluster;
mod disks;
mod failing_disk;
mod hung_disk;
mod modes;
mod outages;
mod power;
mod quorum;
mod replicas;
mod resync;
mod roles;
mod site;
mod split;
mod strangers;
