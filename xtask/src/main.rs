//! The project's own commands: test, bench, soak.

fn main() {}
