//! A scenario on an algorithm, for people: [`run`] it and look at the [`Report`].

use std::collections::BTreeMap;

use incumbent_core::peers::raft::Raft;
use serde::Serialize;

use crate::check;
use crate::clock::{MS, Nanos};
use crate::lease::{self, StoreKind};
use crate::outcome::{Letter, Outage, Outcome};
use crate::peers;
use crate::plan::{Fault, Kind, Plan, Whom};
use crate::random::Random;

/// The lease duration of every scenario. All times scale with it.
pub const TTL_MS: u64 = 1_000;
/// The nodes of a scenario, at most.
pub const NODES_MAX: usize = 64;

/// How the nodes elect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// A lease in a store that judges its end itself.
    Lease,
    /// Raft's election among peers.
    Raft,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 2] = [Algorithm::Lease, Algorithm::Raft];
}

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

    /// The rate of each clock.
    fn rates_ppm(self, nodes: usize) -> Vec<i64> {
        let skewed = self == Scenario::ClockSkew;
        (0..nodes).map(|node| if skewed { [-200_000, 0, 200_000][node % 3] } else { 0 }).collect()
    }

    fn faults(self, random: &mut Random, nodes: usize, until: Nanos) -> Vec<Fault> {
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

/// What a run of a scenario came to. Times are in milliseconds since its begin.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What went wrong.
    pub scenario: Scenario,
    /// How the nodes elect.
    pub algorithm: Algorithm,
    /// How many nodes there are.
    pub nodes: usize,
    /// What all of it follows from.
    pub seed: u64,
    /// How long the run was.
    pub duration_ms: f64,
    /// The lease duration.
    pub ttl_ms: u64,
    /// Terms that began.
    pub elections: u64,
    /// The messages that were sent, by kind.
    pub messages: BTreeMap<&'static str, u64>,
    /// From the moment the leader was gone, cut off or stood still until another led.
    pub time_to_elect_ms: Times,
    /// How long two or more leaderships were valid at once.
    pub two_leaders_ms: f64,
    /// Writes of an older leader that the fence refused.
    pub stale_writes_refused: u64,
    /// Invariants that were broken, in words. Empty, but where the scenario leaves what the nodes were told.
    pub violations: Vec<String>,
    /// What each node did when.
    pub timeline: Timeline,
}

/// The distribution of some times; `None` if there are none.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// How many.
    pub count: usize,
    /// The median.
    pub p50: Option<f64>,
    /// 95 of 100 are not longer.
    pub p95: Option<f64>,
}

impl Times {
    fn new(mut times: Vec<Nanos>) -> Times {
        times.sort_unstable();
        let rank = |share: usize| times.get((times.len() * share).div_ceil(100).saturating_sub(1));
        let ms = |share| rank(share).map(|time| in_ms(*time));
        Times { count: times.len(), p50: ms(50), p95: ms(95) }
    }
}

/// What each node did when. The nodes are numbered from 0; the store, if there is one, has the number after the last.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// The leaderships, in the order in which they began.
    pub leaderships: Vec<Leadership>,
    /// When two or more were valid at once.
    pub overlaps: Vec<Span>,
    /// When which node was down, frozen, or cut off.
    pub outages: Vec<Outage>,
    /// The messages.
    pub letters: Vec<Letter>,
}

/// One term of one leader: while a check of it says *valid*.
#[derive(Clone, Debug, Serialize)]
pub struct Leadership {
    /// Whose.
    pub node: usize,
    /// Its token; `None` if the algorithm has none.
    pub token: Option<u64>,
    /// From when to when.
    #[serde(flatten)]
    pub span: Span,
}

/// A time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    /// Its begin.
    pub from_ms: f64,
    /// Its end.
    pub until_ms: f64,
}

fn in_ms(at: Nanos) -> f64 {
    at as f64 / MS as f64
}

/// Runs `scenario` on `algorithm` with `nodes` nodes (1 to [`NODES_MAX`], others are taken as the nearest) for a simulated
/// 100 s. The same arguments give the same report.
pub fn run(scenario: Scenario, algorithm: Algorithm, nodes: usize, seed: u64) -> Report {
    let nodes = nodes.clamp(1, NODES_MAX);
    let end = 100 * TTL_MS * MS;
    let mut random = Random::new(seed);
    let faults = scenario.faults(&mut random, nodes, end);
    let rates_ppm = scenario.rates_ppm(nodes);
    let outcome = match algorithm {
        Algorithm::Raft => {
            let options = peers::Options::plain(nodes, TTL_MS, rates_ppm);
            peers::run::<Raft>(&Plan { seed, options, faults, heal_at_ns: end, end_at_ns: end }, true)
        }
        Algorithm::Lease => {
            let faults = faults.into_iter().map(|fault| match fault.kind {
                Kind::Split => Fault { kind: Kind::CutBoth, ..fault },
                _ => fault,
            });
            let options = lease::Options::plain(StoreKind::Lease, nodes, TTL_MS, rates_ppm);
            let faults = faults.collect();
            lease::run(&Plan { seed, options, faults, heal_at_ns: end, end_at_ns: end }, true)
        }
    };
    report(scenario, algorithm, nodes, seed, end, outcome)
}

fn report(
    scenario: Scenario,
    algorithm: Algorithm,
    nodes: usize,
    seed: u64,
    end: Nanos,
    outcome: Outcome,
) -> Report {
    let span = |from, until| Span { from_ms: in_ms(from), until_ms: in_ms(until) };
    let leaderships = outcome.holds.iter().zip(&outcome.owners).filter(|(hold, _)| hold.from < hold.until);
    Report {
        scenario,
        algorithm,
        nodes,
        seed,
        duration_ms: in_ms(end),
        ttl_ms: TTL_MS,
        elections: outcome.counts.elections,
        messages: outcome.messages,
        time_to_elect_ms: Times::new(outcome.elected_after_ns),
        two_leaders_ms: in_ms(check::overlapping_time(&outcome.holds)),
        stale_writes_refused: outcome.sometimes.stale_refused,
        violations: outcome.violations.iter().map(ToString::to_string).collect(),
        timeline: Timeline {
            leaderships: leaderships
                .map(|(hold, node)| Leadership {
                    node: *node,
                    token: hold.token,
                    span: span(hold.from, hold.until),
                })
                .collect(),
            overlaps: check::overlapping_spans(&outcome.holds)
                .into_iter()
                .map(|(from, until)| span(from, until))
                .collect(),
            outages: outcome.picture.outages,
            letters: outcome.picture.letters,
        },
    }
}
