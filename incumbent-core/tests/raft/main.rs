//! Raft's election: the sections of the papers, and the order that the types enforce. It is simulated in `tests/peers/sim.rs`.

mod order;
mod paper;
mod support;
