//! Elections without a store: the peers elect among themselves.

pub mod raft;
