//! The file backend under faults that need root, or a tracer: a full disk, and a freeze inside a commit.

#[cfg(test)]
mod faults;
#[cfg(test)]
#[path = "../file/process.rs"]
mod process;
