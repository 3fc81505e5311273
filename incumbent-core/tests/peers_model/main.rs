//! Exhaustive models of Raft, Bully and Ring, with the real state machines.
//!
//! Time is counted in ticks. Without a fault a run has one order of events: messages arrive within the tick, in the order
//! in which they were sent, and disks are fast; only which of several peers that are due wakes first is open. Every
//! *deviation* from that, of any kind and at any moment, is tried, up to a number of them in one run (see [`Step`]): a
//! message overtakes others, is late by any time or for ever, comes twice; a peer freezes for any time, crashes and is
//! back after any time or never, has a disk that hangs, gives up its term, is wanted by nobody; the network falls apart in any
//! two parts, for any time. So the claim is: no run up to this horizon with at most so many deviations does harm. Runs with
//! more of them are left to the random simulation (`tests/peers/sim.rs`).
//!
//! What a peer was told of its leadership counts until its deadline or until it is marked invalid, even if it is frozen or
//! has crashed: at no instant two such leaderships.
//!
//! What proves that the models can see: without a majority they must find the partition in which two lead, and tell it.

mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use incumbent_core::peers::bully::Bully;
use incumbent_core::peers::raft::Raft;
use incumbent_core::peers::ring::{Circulation, Ring, RingConfig};
use incumbent_core::peers::{ClaimConfig, Config, Criterion, List};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{Authority, CandidateId};
use stateright::{Checker, HasDiscoveries, Model};

use crate::world::{OVERLAP, Setting, Subject, TICK};

const fn ticks(count: u32) -> Duration {
    Duration::from_nanos(TICK * count as u64)
}

/// The smallest numbers in which everything can happen: trust lasts for 3 of 4 ticks.
const TIMING: PeerTiming =
    PeerTiming { ttl: ticks(4), heartbeat_interval: ticks(1), margin: ticks(1), drift_ppm: 0 };

/// Peers `a`, `b`, …
fn peers(count: usize) -> Vec<Config> {
    let id = |n: usize| CandidateId::new(["a", "b", "c", "d"][n]).expect("a good name");
    let members: BTreeMap<_, _> = (0..count).map(|n| (id(n), 1)).collect();
    let cluster = Authority::new("m");
    let list = List::new(1, members);
    let config = |n| Config { cluster: cluster.clone(), id: id(n), list: list.clone(), timing: TIMING };
    (0..count).map(config).collect()
}

fn setting<P: Subject>(configs: Vec<(Config, P::Config)>) -> Setting<P> {
    Setting {
        configs,
        exclusive: true,
        rates: vec![(1, 1)],
        only_cuts: false,
        quiet: 4,
        horizon: 10,
        deviations: 1,
    }
}

fn raft() -> Setting<Raft> {
    setting(peers(3).into_iter().map(|config| (config.clone(), config)).collect())
}

fn claims(majority: bool) -> impl Fn(Config) -> ClaimConfig {
    move |peers| ClaimConfig { peers, majority, criterion: Criterion::GreatestId }
}

fn bully(majority: bool) -> Setting<Bully> {
    let configs = peers(4).into_iter().map(|config| (config.clone(), claims(majority)(config)));
    let quiet = if majority { 4 } else { 0 };
    Setting { exclusive: majority, quiet, ..setting(configs.collect()) }
}

fn ring(majority: bool) -> Setting<Ring> {
    let configs = peers(4).into_iter().map(|config| {
        let claim = claims(majority)(config.clone());
        (config, RingConfig { claim, circulation: Circulation::Greatest })
    });
    let quiet = if majority { 4 } else { 0 };
    Setting { exclusive: majority, quiet, ..setting(configs.collect()) }
}

/// Visits every state: all that shall happen can, and nothing that must not.
fn holds<P: Subject>(setting: Setting<P>) {
    let shown = setting.to_string();
    let checker = setting.checker().threads(2).spawn_dfs().join();
    eprintln!("{} states, depth {}: {shown}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Looks for the shortest way to two leaders, and tells it.
fn overlaps<P: Subject>(setting: Setting<P>) -> Vec<String> {
    let found = HasDiscoveries::AnyOf([OVERLAP].into());
    let shown = setting.to_string();
    let checker = setting.checker().finish_when(found).spawn_bfs().join();
    eprintln!("{} states, depth {}: {shown}", checker.unique_state_count(), checker.max_depth());
    let path = checker.assert_any_discovery(OVERLAP);
    let told = checker.model().tell(path.into_actions());
    for line in &told {
        eprintln!("{line}");
    }
    told
}

#[test]
fn raft_one_leader_in_a_term_and_no_two_valid_leases() {
    holds(raft());
}

#[test]
fn raft_one_leader_with_a_slow_clock() {
    // Trust of 3 ticks lasts 4 of true time.
    holds(Setting { rates: vec![(3, 4), (1, 1)], ..raft() });
}

#[test]
fn bully_without_a_majority_two_leaders_in_a_partition() {
    let told = overlaps(Setting { only_cuts: true, ..bully(false) });
    assert!(told.iter().any(|line| line.contains("falls apart")), "{told:?}");
}

#[test]
fn bully_with_a_majority_no_two_leaders() {
    holds(Setting { horizon: 11, ..bully(true) });
}

#[test]
fn ring_without_a_majority_two_leaders_in_a_partition() {
    let told = overlaps(Setting { only_cuts: true, ..ring(false) });
    assert!(told.iter().any(|line| line.contains("falls apart")), "{told:?}");
}

#[test]
fn ring_with_a_majority_no_two_leaders() {
    holds(Setting { horizon: 11, ..ring(true) });
}
