//! Evenkeel's command line.

fn main() {}
