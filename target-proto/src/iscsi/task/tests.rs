//! Data out of its place, and in it.
