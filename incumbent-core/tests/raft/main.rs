//! Raft's election: the sections of the papers, the order that the types enforce, and a random simulation.

mod order;
mod paper;
mod sim;
mod support;
