//! The lease elections: the real [`Elector`](incumbent_core::Elector) of every candidate, models of stores, and what goes wrong
//! between them.
//!
//! A run begins with faults. Then a random core of the candidates is healed, the others stay broken for good, and the core
//! must have a leader in time (I5), which stays (I6).

mod adapter;
mod candidate;
mod options;
mod queue;
mod record;
mod session;
mod store;
mod world;

pub use self::options::{Options, StoreKind};

use self::world::World;
use crate::outcome::{Outcome, Shown};
use crate::plan::Plan;

/// Runs a plan to its end.
pub fn run(plan: &Plan<Options>, shown: Shown) -> Outcome {
    World::new(plan, shown).run()
}
