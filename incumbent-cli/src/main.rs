//! Leader election from the command line: run a job on exactly one replica.

fn main() {}
