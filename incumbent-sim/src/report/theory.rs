//! How many messages an election takes by the papers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Algorithm;

/// How many messages of a kind one election takes: at best and at worst, on a network that loses nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Expected {
    /// Where all goes well.
    pub best: u64,
    /// Where the worst of all peers begins, or all do.
    pub worst: u64,
}

impl Expected {
    const fn exactly(count: u64) -> Expected {
        Expected { best: count, worst: count }
    }
}

/// What the papers say of one election among so many nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Theory {
    /// By kind. What keeps a leader in its place, and what the papers do without, is not among them.
    pub messages: BTreeMap<&'static str, Expected>,
    /// The kinds together.
    pub total: Expected,
    /// The formulas, and where they are from.
    pub source: &'static str,
}

impl Theory {
    /// Bully and Ring as of incumbent-core's `tests/peers/counts.rs`, which checks them for up to 64 peers.
    pub(super) fn new(algorithm: Algorithm, majority: bool, nodes: usize) -> Option<Theory> {
        let n = nodes as u64;
        let others = n - 1;
        let pairs = n * others / 2;
        let (kinds, source): (Vec<(&'static str, Expected)>, _) = match (algorithm, majority) {
            (Algorithm::Bully, false) => (
                vec![
                    ("election", Expected { best: 0, worst: pairs }),
                    ("answer", Expected { best: 0, worst: pairs }),
                    ("coordinator", Expected::exactly(others)),
                ],
                "Garcia-Molina 1982: n−1 if the greatest begins, n²−1 if the smallest does",
            ),
            (Algorithm::Bully, true) => (
                vec![
                    ("election", Expected { best: others, worst: n * others }),
                    ("answer", Expected { best: others, worst: n * others }),
                    ("coordinator", Expected::exactly(others)),
                ],
                "Garcia-Molina 1982, but whoever begins asks everybody, for a majority: 3(n−1) to (2n+1)(n−1)",
            ),
            (Algorithm::Ring, _) => (
                vec![
                    ("election", Expected { best: 2 * n - 1, worst: n * (n + 1) / 2 }),
                    ("elected", Expected::exactly(n)),
                ],
                "Chang and Roberts 1979, all begin: 2n−1 to n(n+1)/2, then n to tell who is elected; hops are not confirmed",
            ),
            (Algorithm::Raft, _) => (
                vec![
                    ("pre-vote", Expected::exactly(others)),
                    ("pre-vote answer", Expected::exactly(others)),
                    ("vote", Expected::exactly(others)),
                    ("vote answer", Expected::exactly(others)),
                ],
                "Ongaro and Ousterhout 2014, with pre-vote, one candidate and no split vote: 4(n−1)",
            ),
            (Algorithm::Lease, _) => return None,
        };
        let sum = |of: fn(&Expected) -> u64| kinds.iter().map(|(_, expected)| of(expected)).sum();
        let total = Expected { best: sum(|expected| expected.best), worst: sum(|expected| expected.worst) };
        Some(Theory { messages: kinds.into_iter().collect(), total, source })
    }
}
