//! Tasks of the incumbent workspace.

fn main() {}
