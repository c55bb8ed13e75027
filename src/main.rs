//! Picks a subcommand and returns an exit code.

fn main() {}
