//! Evenkeel's daemon and command line.

fn main() {}
