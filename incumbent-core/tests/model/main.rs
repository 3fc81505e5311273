//! An exhaustive model: every order of events up to a horizon, with the real elector and the real record protocol.
//!
//! Two candidates contend for one record. Messages may be late, lost or doubled, processes may be frozen at any moment
//! and for any time, one may die, one may be asked to resign, hints may come at any moment, and the two clocks may run at
//! different rates. Time is counted in ticks. The claim is the strong form of *at most one leader*: whoever believes
//! in itself, frozen or not, still holds the record, so nobody else can have been granted anything.
//!
//! What proves that the model can see: anchored at the response instead of the send, or with clocks whose rates differ
//! by more than the margin covers, it must find two leaders.

mod node;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use incumbent_core::Timing;
use stateright::{Checker, HasDiscoveries, Model};

use crate::node::Anchor;
use crate::world::{OVERLAP, Setting};

const fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count)
}

/// The smallest numbers in which everything can happen: trust lasts for 3 of 4 ticks, so a clock may run at 3/4 of the
/// other's rate; an answer may take 2 ticks.
const TIMING: Timing = Timing {
    ttl: ticks(4),
    renew_interval: ticks(1),
    renew_spacing: Duration::ZERO,
    call_timeout: ticks(3),
    retry_pause: ticks(1),
    backoff_max: ticks(1),
    grace: ticks(1),
    margin: ticks(1),
    slack: ticks(0),
    drain: None,
    drift_ppm: 0,
};

/// Any two faults, within a time in which a second term may end as well.
const EQUAL_CLOCKS: Setting =
    Setting { timing: TIMING, anchor: Anchor::Send, rates: [(1, 1), (1, 1)], horizon: 8, faults: 2 };

/// Visits every state: all that shall happen can, and nothing that must not.
fn holds(setting: Setting) {
    let checker = setting.clone().checker().threads(2).spawn_dfs().join();
    eprintln!("{} states, depth {}: {setting:?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Looks for the shortest way to two leaders.
fn overlaps(setting: Setting) {
    let found = HasDiscoveries::AllOf(BTreeSet::from([OVERLAP]));
    let checker = setting.clone().checker().finish_when(found).spawn_bfs().join();
    eprintln!("{} states, depth {}: {setting:?}", checker.unique_state_count(), checker.max_depth());
    eprintln!("{:?}", checker.assert_any_discovery(OVERLAP).into_actions());
}

#[test]
fn one_leader_with_equal_clocks() {
    holds(EQUAL_CLOCKS);
}

/// Any three faults, within a time in which a second term may begin.
#[test]
fn one_leader_with_three_faults() {
    holds(Setting { faults: 3, horizon: 5, ..EQUAL_CLOCKS });
}

#[test]
fn one_leader_with_a_slow_clock() {
    holds(Setting { rates: [(3, 4), (1, 1)], horizon: 7, ..EQUAL_CLOCKS });
}

#[test]
fn one_leader_with_a_fast_clock() {
    holds(Setting { rates: [(4, 3), (1, 1)], horizon: 6, ..EQUAL_CLOCKS });
}

/// The mistake of client-go and others (E1, kubernetes #44887). It takes what E1 took: an answer that is late, then a
/// leader that cannot renew.
#[test]
fn two_leaders_when_anchored_at_the_response() {
    overlaps(Setting { anchor: Anchor::Response, ..EQUAL_CLOCKS });
}

#[test]
fn two_leaders_when_a_clock_is_slower_than_the_margin_covers() {
    overlaps(Setting { rates: [(2, 3), (1, 1)], faults: 1, ..EQUAL_CLOCKS });
}

#[test]
fn two_leaders_when_a_clock_is_faster_than_the_margin_covers() {
    overlaps(Setting { rates: [(5, 3), (1, 1)], faults: 1, ..EQUAL_CLOCKS });
}
