//! What goes wrong, again and again, to show something.

use serde::Serialize;

use super::TTL_MS;
use crate::clock::{MS, Nanos};
use crate::plan::{Fault, Kind, Whom};
use crate::random::Random;

/// What goes wrong, again and again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// The leader's process is killed, and started again later.
    LeaderCrash,
    /// The network falls into two parts; every other time the leader is in the smaller one. Candidates of a store are cut off
    /// from it.
    Partition,
    /// The last node, which has the greatest id, is cut off and comes back, over and over.
    Flapping,
    /// Messages are slow, and many are lost.
    SlowNetwork,
    /// The leader stands still, and wakes up after another may have been elected.
    FrozenLeader,
    /// Every other clock runs by a fifth too slow or too fast, far beyond what the nodes were told, and the leader is cut off.
    ClockSkew,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 6] = [
        Scenario::LeaderCrash,
        Scenario::Partition,
        Scenario::Flapping,
        Scenario::SlowNetwork,
        Scenario::FrozenLeader,
        Scenario::ClockSkew,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::LeaderCrash => "leader-crash",
            Scenario::Partition => "partition",
            Scenario::Flapping => "flapping",
            Scenario::SlowNetwork => "slow-network",
            Scenario::FrozenLeader => "frozen-leader",
            Scenario::ClockSkew => "clock-skew",
        }
    }

    /// What goes wrong, in a sentence.
    pub fn summary(self) -> &'static str {
        match self {
            Scenario::LeaderCrash => "The leader's process is killed, and started again later.",
            Scenario::Partition => {
                "The network falls into two parts that do not hear each other, and is mended later. Every other time the leader is in \
                 the smaller part. Where the nodes elect in a store, one is cut off from it instead."
            }
            Scenario::Flapping => "The node with the greatest id is cut off and comes back, over and over.",
            Scenario::SlowNetwork => "Messages take up to a quarter of a lease, and three in ten are lost.",
            Scenario::FrozenLeader => {
                "The leader stands still for twice as long as its lease lasts, and wakes up after another may have been elected."
            }
            Scenario::ClockSkew => {
                "Two of three clocks run by a fifth too slow or too fast, far beyond what the nodes were told, and the leader is cut off."
            }
        }
    }

    /// Whether all that goes wrong is what the algorithms are made for.
    pub fn is_within_bounds(self) -> bool {
        self != Scenario::ClockSkew
    }

    /// The rate of each clock.
    pub(super) fn rates_ppm(self, nodes: usize) -> Vec<i64> {
        let skewed = self == Scenario::ClockSkew;
        (0..nodes).map(|node| if skewed { [-200_000, 0, 200_000][node % 3] } else { 0 }).collect()
    }

    pub(super) fn faults(self, random: &mut Random, nodes: usize, until: Nanos) -> Vec<Fault> {
        let ttl = TTL_MS * MS;
        let (kind, apart, lasts) = match self {
            Scenario::LeaderCrash => (Kind::Crash, 8 * ttl, 4 * ttl),
            Scenario::Partition => (Kind::Split, 8 * ttl, 4 * ttl),
            Scenario::Flapping => (Kind::CutBoth, 2 * ttl, ttl),
            Scenario::SlowNetwork => (Kind::Storm, 8 * ttl, 4 * ttl),
            Scenario::FrozenLeader => (Kind::Freeze, 8 * ttl, 2 * ttl),
            Scenario::ClockSkew => (Kind::CutBoth, 8 * ttl, 4 * ttl),
        };
        let mut faults = Vec::new();
        let mut at = 4 * ttl + random.below(ttl);
        while at + lasts + 2 * ttl < until {
            let whom = match self {
                Scenario::Partition if faults.len() % 2 == 1 => {
                    Whom::Node(random.below(nodes as u64) as usize)
                }
                Scenario::Flapping => Whom::Node(nodes - 1),
                _ => Whom::Leader,
            };
            // The storm of this scenario delays by a quarter of the ttl.
            let dice = if self == Scenario::SlowNetwork { 1 } else { random.word() };
            faults.push(Fault { at_ns: at, lasts_ns: lasts, kind, whom, dice });
            at += apart + random.below(ttl);
        }
        faults
    }
}
