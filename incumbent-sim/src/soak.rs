//! Many runs, added up.

use std::collections::BTreeMap;
use std::ops::Range;

use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::ring::Ring;
use serde::Serialize;

use crate::check::{Sometimes, Violation};
use crate::lease::{self, StoreKind};
use crate::outcome::{Counts, Outcome, Shown};
use crate::peers;
use crate::plan::Plan;

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Electors on a store; `None`: each seed chooses one.
    Lease(Option<StoreKind>),
    /// Raft's election.
    Raft,
    /// The Bully algorithm; each seed chooses the criterion.
    Bully {
        /// Whether a leader needs one.
        majority: bool,
    },
    /// On a ring; each seed chooses the criterion, and what goes around.
    Ring {
        /// Whether a leader needs one.
        majority: bool,
    },
}

impl Subject {
    /// All of them.
    pub fn all() -> [Subject; 16] {
        let on = |store| Subject::Lease(Some(store));
        [
            Subject::Lease(None),
            on(StoreKind::Lease),
            on(StoreKind::Record),
            on(StoreKind::Replica),
            on(StoreKind::SilentReplica),
            on(StoreKind::Queue),
            on(StoreKind::DeposedLeader),
            on(StoreKind::LyingRenewals),
            on(StoreKind::ReapedEarly),
            on(StoreKind::StaleReads),
            on(StoreKind::CounterRestarts),
            Subject::Raft,
            Subject::Bully { majority: false },
            Subject::Bully { majority: true },
            Subject::Ring { majority: false },
            Subject::Ring { majority: true },
        ]
    }

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Lease(None) => "electors",
            Subject::Lease(Some(store)) => store.name(),
            Subject::Raft => "raft",
            Subject::Bully { majority: false } => "bully",
            Subject::Bully { majority: true } => "bully-majority",
            Subject::Ring { majority: false } => "ring",
            Subject::Ring { majority: true } => "ring-majority",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Subject> {
        Subject::all().into_iter().find(|subject| subject.name() == name)
    }

    /// Runs what follows from `seed`.
    pub fn run(self, seed: u64, shown: Shown) -> Outcome {
        match self {
            Subject::Lease(store) => lease::run(&Plan::<lease::Options>::new(seed, store), shown),
            _ => self.run_peers(&self.plan_of_peers(seed), shown),
        }
    }

    fn plan_of_peers(self, seed: u64) -> Plan<peers::Options> {
        let split = matches!(self, Subject::Bully { majority: false } | Subject::Ring { majority: false });
        Plan::<peers::Options>::new(seed, !split)
    }

    fn run_peers(self, plan: &Plan<peers::Options>, shown: Shown) -> Outcome {
        match self {
            Subject::Bully { .. } => peers::run::<Bully>(plan, shown),
            Subject::Ring { .. } => peers::run::<Ring>(plan, shown),
            _ => peers::run::<Raft>(plan, shown),
        }
    }

    /// The options that `seed` draws, in words.
    pub fn options(self, seed: u64) -> String {
        match self {
            Subject::Lease(store) => format!("{:?}", Plan::<lease::Options>::new(seed, store).options),
            _ => format!("{:?}", self.plan_of_peers(seed).options),
        }
    }

    /// A small plan that breaks what `seed` breaks: its faults in words, and its trace.
    pub fn shrink(self, seed: u64) -> (String, Outcome) {
        match self {
            Subject::Lease(store) => small(&Plan::<lease::Options>::new(seed, store), lease::run),
            _ => small(&self.plan_of_peers(seed), |plan, shown| self.run_peers(plan, shown)),
        }
    }
}

fn small<O: Clone + std::fmt::Debug>(
    plan: &Plan<O>,
    run: impl Fn(&Plan<O>, Shown) -> Outcome,
) -> (String, Outcome) {
    let rule = run(plan, Shown::Nothing).violations.first().map(|violation| violation.rule);
    let fails = |plan: &Plan<O>| {
        let violations = run(plan, Shown::Nothing).violations;
        violations.iter().find(|violation| Some(violation.rule) == rule).map(|violation| violation.at)
    };
    let small = crate::shrink::shrink(plan, fails);
    (format!("{:#?}", small.faults), run(&small, Shown::Steps))
}

/// Runs `seeds` on so many threads, each run in one of them alone, and tells `progress` of each that is done, with its simulated
/// seconds. One seed in a hundred is run twice: its trace must be the same.
pub fn run(subject: Subject, seeds: Range<u64>, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Sum {
    let lane = |first: u64| {
        let mut sum = Sum::default();
        for seed in (seeds.start + first..seeds.end).step_by(threads.max(1)) {
            let outcome = subject.run(seed, Shown::Nothing);
            if seed % 100 == 0 && subject.run(seed, Shown::Nothing).hash != outcome.hash {
                let what = "two runs of one seed differ".to_owned();
                sum.violations.insert(seed, Violation { rule: "I10", at: 0, what });
            }
            progress(outcome.counts.seconds);
            sum.add(seed, outcome);
        }
        sum
    };
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        let lanes: Vec<_> =
            (0..threads.max(1) as u64).map(|first| scope.spawn(move || lane(first))).collect();
        for lane in lanes {
            sum.merge(lane.join().expect("no run panics"));
        }
    });
    sum
}

/// The sum of many runs.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// How many.
    pub runs: u64,
    /// How often what happened.
    pub counts: Counts,
    /// How often the interesting did.
    pub sometimes: Sometimes,
    /// What must not have happened, by seed: the first of each run.
    pub violations: BTreeMap<u64, Violation>,
}

impl Sum {
    /// Adds the outcome of `seed`.
    pub fn add(&mut self, seed: u64, mut outcome: Outcome) {
        self.runs += 1;
        self.counts += outcome.counts;
        self.sometimes += outcome.sometimes;
        if !outcome.violations.is_empty() {
            self.violations.insert(seed, outcome.violations.swap_remove(0));
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: Sum) {
        self.runs += other.runs;
        self.counts += other.counts;
        self.sometimes += other.sometimes;
        self.violations.extend(other.violations);
    }

    /// Simulated hours.
    pub fn hours(&self) -> f64 {
        self.counts.seconds as f64 / 3_600.0
    }
}
