//! Elections without a store: the processes elect among themselves, over `raft://NAME?peers=…`, `bully://` or
//! `ring://`.
//!
//! A candidate of such an election is one of the peers. Peers that only vote are [`Voter`]s. What a peer has promised stands in a
//! folder that [`init`] makes once.

pub use crate::backend::peers::public::{Listing, Voter, add, init, init_to_join, read_anything, remove};
