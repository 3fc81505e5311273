//! A scenario on an algorithm, for people: [`run`] it and look at the [`Report`].

mod scenario;
mod story;
mod theory;
mod timeline;

use std::collections::BTreeMap;

use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::ring::Ring;
use serde::Serialize;

pub use self::scenario::Scenario;
pub use self::story::node_name;
pub use self::theory::{Expected, Theory};
pub use self::timeline::{Leadership, Span, Timeline, Trouble};

use crate::check;
use crate::clock::{MS, Nanos};
use crate::lease::{self, StoreKind};
use crate::outcome::{Outcome, Shown};
use crate::peers;
use crate::plan::{Fault, Kind, Plan};
use crate::random::Random;

/// The lease duration of every scenario. All times scale with it.
pub const TTL_MS: u64 = 1_000;
/// The nodes of a scenario, at most.
pub const NODES_MAX: usize = 64;

/// How the nodes elect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// The Bully algorithm: the greatest peer that is there leads.
    Bully,
    /// Chang and Roberts's election on a ring.
    Ring,
    /// Raft's election among peers.
    Raft,
    /// A lease in a store that judges its end itself.
    Lease,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 4] = [Algorithm::Bully, Algorithm::Ring, Algorithm::Raft, Algorithm::Lease];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Bully => "bully",
            Algorithm::Ring => "ring",
            Algorithm::Raft => "raft",
            Algorithm::Lease => "lease",
        }
    }

    /// Whether a leader may need a majority or not, as it is told.
    pub fn may_do_without_majority(self) -> bool {
        matches!(self, Algorithm::Bully | Algorithm::Ring)
    }
}

/// What is run. The same gives the same report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Setup {
    /// What goes wrong.
    pub scenario: Scenario,
    /// How the nodes elect.
    pub algorithm: Algorithm,
    /// Whether a leader of Bully or Ring needs a majority. Raft's always does; a store decides alone.
    pub majority: bool,
    /// How many nodes there are: 1 to [`NODES_MAX`]; others are taken as the nearest.
    pub nodes: usize,
    /// What all of it follows from.
    pub seed: u64,
}

impl Setup {
    /// Whether it promises that no two lead at one time, as long as clocks keep to what was told of them.
    pub fn excludes(&self) -> bool {
        self.majority || !self.algorithm.may_do_without_majority()
    }
}

/// What a run came to. Times are in milliseconds since its begin.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was run; of several runs the first.
    #[serde(flatten)]
    pub setup: Setup,
    /// How many runs this is the sum of, each with the next seed.
    pub runs: u64,
    /// How long each of them was.
    pub duration_ms: f64,
    /// The lease duration.
    pub ttl_ms: u64,
    /// Terms that began.
    pub elections: u64,
    /// The messages that were sent, by kind.
    pub messages: BTreeMap<&'static str, u64>,
    /// What the papers say of one election; `None` where there is no election among nodes, but a store that each asks.
    pub theory: Option<Theory>,
    /// From the moment the leader was gone, cut off or stood still until another led.
    pub time_to_elect_ms: Times,
    /// How long two or more leaderships were valid at once.
    pub two_leaders_ms: f64,
    /// The runs in which that happened.
    pub runs_with_two_leaders: u64,
    /// Writes of an older leader that the fence refused.
    pub stale_writes_refused: u64,
    /// Writes of an older leader that came after a newer one's and were let in, since they have no token to compare.
    pub stale_writes_let_in: u64,
    /// What happened in the first run, and why, in plain words.
    pub story: String,
    /// Invariants that were broken, in words. Empty, but where the scenario leaves what the nodes were told.
    pub violations: Vec<String>,
    /// What each node did when in the first run.
    #[serde(skip)]
    pub timeline: Timeline,
    #[serde(skip)]
    elected_after_ns: Vec<Nanos>,
}

impl Report {
    /// Adds the figures of another run.
    fn add(&mut self, other: Report) {
        self.runs += other.runs;
        self.elections += other.elections;
        for (kind, count) in other.messages {
            *self.messages.entry(kind).or_default() += count;
        }
        self.elected_after_ns.extend(other.elected_after_ns);
        self.time_to_elect_ms = Times::new(&mut self.elected_after_ns);
        self.two_leaders_ms += other.two_leaders_ms;
        self.runs_with_two_leaders += other.runs_with_two_leaders;
        self.stale_writes_refused += other.stale_writes_refused;
        self.stale_writes_let_in += other.stale_writes_let_in;
        self.violations.extend(other.violations);
    }

    /// How many messages of those kinds that [`Theory`] counts one election took.
    pub fn messages_per_election(&self) -> Option<f64> {
        let counted = self.theory.as_ref()?.messages.keys().filter_map(|kind| self.messages.get(kind));
        Some(counted.sum::<u64>() as f64 / (self.elections as f64).max(1.0))
    }
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
    fn new(times: &mut [Nanos]) -> Times {
        times.sort_unstable();
        let rank = |share: usize| times.get((times.len() * share).div_ceil(100).saturating_sub(1));
        let ms = |share| rank(share).map(|time| in_ms(*time));
        Times { count: times.len(), p50: ms(50), p95: ms(95) }
    }
}

fn in_ms(at: Nanos) -> f64 {
    at as f64 / MS as f64
}

/// Runs it for a simulated 100 s.
pub fn run(setup: Setup) -> Report {
    run_shown(setup, Shown::Picture)
}

/// Runs it with so many seeds (at least one), the given one and those after it, and adds the figures up. Each run that is
/// done is told.
pub fn run_many(setup: Setup, runs: u64, mut progress: impl FnMut()) -> Report {
    let mut sum = run(setup);
    progress();
    for number in 1..runs {
        let seed = setup.seed.wrapping_add(number);
        sum.add(run_shown(Setup { seed, ..setup }, Shown::Nothing));
        progress();
    }
    sum
}

fn run_shown(setup: Setup, shown: Shown) -> Report {
    let setup = Setup { nodes: setup.nodes.clamp(1, NODES_MAX), majority: setup.excludes(), ..setup };
    let Setup { scenario, algorithm, majority, nodes, seed } = setup;
    let end = 100 * TTL_MS * MS;
    let mut faults = scenario.faults(&mut Random::new(seed), nodes, end);
    let rates_ppm = scenario.rates_ppm(nodes);
    let outcome = if algorithm == Algorithm::Lease {
        for fault in faults.iter_mut().filter(|fault| fault.kind == Kind::Split) {
            fault.kind = Kind::CutBoth;
        }
        let options = lease::Options::plain(StoreKind::Lease, nodes, TTL_MS, rates_ppm);
        let plan = Plan { seed, options, faults: faults.clone(), heal_at_ns: end, end_at_ns: end };
        lease::run(&plan, shown)
    } else {
        let options = peers::Options { majority, ..peers::Options::plain(nodes, TTL_MS, rates_ppm) };
        let plan = Plan { seed, options, faults: faults.clone(), heal_at_ns: end, end_at_ns: end };
        match algorithm {
            Algorithm::Bully => peers::run::<Bully>(&plan, shown),
            Algorithm::Ring => peers::run::<Ring>(&plan, shown),
            _ => peers::run::<Raft>(&plan, shown),
        }
    };
    report(setup, end, &faults, outcome)
}

fn report(setup: Setup, end: Nanos, faults: &[Fault], outcome: Outcome) -> Report {
    let two_leaders_ms = in_ms(check::overlapping_time(&outcome.holds));
    let mut elected_after_ns = outcome.elected_after_ns;
    let timeline = Timeline::new(&outcome.holds, &outcome.owners, faults, outcome.picture);
    Report {
        runs: 1,
        duration_ms: in_ms(end),
        ttl_ms: TTL_MS,
        elections: outcome.counts.elections,
        messages: outcome.messages,
        theory: Theory::new(setup.algorithm, setup.majority, setup.nodes),
        time_to_elect_ms: Times::new(&mut elected_after_ns),
        elected_after_ns,
        two_leaders_ms,
        runs_with_two_leaders: u64::from(two_leaders_ms > 0.0),
        stale_writes_refused: outcome.sometimes.stale_refused,
        stale_writes_let_in: outcome.stale_let_in,
        story: story::tell(&setup, &timeline),
        violations: outcome.violations.iter().map(ToString::to_string).collect(),
        timeline,
        setup,
    }
}
