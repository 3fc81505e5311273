//! Elections among peers: the real protocols of [`incumbent_core::peers`], each peer with a disk and a clock of its own, and
//! what goes wrong between them.

mod options;
mod world;

use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::ring::{Ring, RingConfig};
use incumbent_core::peers::{ClaimConfig, Config, Criterion, Protocol};

pub use self::options::Options;

use self::world::World;
use crate::outcome::{Outcome, Shown};
use crate::plan::Plan;

/// A protocol as the simulator starts it.
pub trait Simulated: Protocol {
    /// A peer that is greater than the leader takes its place when it comes back.
    const TAKES_OVER: bool;

    /// What a peer is told.
    fn configure(common: Config, options: &Options) -> Self::Config;

    /// Nobody votes for a peer whose data is older than its own.
    fn heeds_data(options: &Options) -> bool;
}

impl Simulated for Raft {
    const TAKES_OVER: bool = false;

    fn configure(common: Config, _options: &Options) -> Config {
        common
    }

    fn heeds_data(_options: &Options) -> bool {
        true
    }
}

impl Simulated for Bully {
    const TAKES_OVER: bool = true;

    fn configure(peers: Config, options: &Options) -> ClaimConfig {
        ClaimConfig { peers, majority: options.majority, criterion: options.criterion }
    }

    fn heeds_data(options: &Options) -> bool {
        options.majority && options.criterion == Criterion::MostRecentData
    }
}

impl Simulated for Ring {
    const TAKES_OVER: bool = false;

    fn configure(common: Config, options: &Options) -> RingConfig {
        RingConfig { claim: Bully::configure(common, options), circulation: options.circulation }
    }

    fn heeds_data(options: &Options) -> bool {
        Bully::heeds_data(options)
    }
}

/// Runs a plan to its end.
pub fn run<P: Simulated>(plan: &Plan<Options>, shown: Shown) -> Outcome {
    World::<P>::new(plan, shown).run()
}
