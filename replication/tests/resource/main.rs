//! The core from outside, step by step, where the simulation's dice would take long to come to it.

mod roles;
mod slow_disk;
mod world;
