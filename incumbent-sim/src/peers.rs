//! Elections among peers: the real protocols of [`incumbent_core::peers`], each peer with a disk and a clock of its own, and
//! what goes wrong between them.

mod options;
mod world;

use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::{Config, Protocol};

pub use self::options::Options;

use self::world::World;
use crate::outcome::Outcome;
use crate::plan::Plan;

/// A protocol as the simulator starts it.
pub trait Simulated: Protocol {
    /// What a peer is told. With `majority`, a leader needs one.
    fn configure(common: Config, majority: bool) -> Self::Config;
}

impl Simulated for Raft {
    fn configure(common: Config, _majority: bool) -> Config {
        common
    }
}

/// Runs a plan to its end; with `shown` every step is told in [`Outcome::trace`], and the picture is drawn.
pub fn run<P: Simulated>(plan: &Plan<Options>, shown: bool) -> Outcome {
    World::<P>::new(plan, shown).run()
}
