//! Scenarios for people: what each shows, and that it is the same each time.

use incumbent_sim::report::{Algorithm, Report, Scenario, Setup, run, run_many};

fn setup(scenario: Scenario, algorithm: Algorithm, majority: bool, nodes: usize, seed: u64) -> Setup {
    Setup { scenario, algorithm, majority, nodes, seed }
}

/// Bully and Ring also with a majority.
const WAYS: [(Algorithm, bool); 6] = [
    (Algorithm::Bully, false),
    (Algorithm::Bully, true),
    (Algorithm::Ring, false),
    (Algorithm::Ring, true),
    (Algorithm::Raft, true),
    (Algorithm::Lease, true),
];

fn all(nodes: usize, seed: u64) -> impl Iterator<Item = Report> {
    let each = move |(algorithm, majority)| {
        Scenario::ALL.map(move |scenario| run(setup(scenario, algorithm, majority, nodes, seed)))
    };
    WAYS.into_iter().flat_map(each)
}

#[test]
fn every_scenario_elects_and_where_one_leads_nobody_overlaps() {
    for report in all(5, 42).chain(all(7, 1)) {
        let name = format!("{:?}", report.setup);
        eprintln!(
            "{name}: {} elections, {:?}, two leaders {} ms, {} stale writes refused, {} let in, {:?} messages each, {:?}\n  {}",
            report.elections,
            report.time_to_elect_ms,
            report.two_leaders_ms,
            report.stale_writes_refused,
            report.stale_writes_let_in,
            report.messages_per_election(),
            report.messages,
            report.story,
        );
        assert!(report.elections > 0 && !report.timeline.letters.is_empty(), "{name}");
        assert!(!report.setup.excludes() || report.stale_writes_let_in == 0, "{name}");
        if report.setup.scenario.is_within_bounds() {
            assert_eq!(report.violations, [""; 0], "{name}");
            assert!(!report.setup.excludes() || report.two_leaders_ms == 0.0, "{name}");
        }
    }
}

/// What the page has to show.
#[test]
fn a_partition_splits_bully_and_ring_and_neither_raft_nor_a_majority() {
    for (algorithm, majority) in WAYS {
        let report = run(setup(Scenario::Partition, algorithm, majority, 7, 1));
        let split = report.two_leaders_ms > 0.0;
        assert_eq!(split, !report.setup.excludes(), "{algorithm:?} {majority}: {}", report.story);
        assert_eq!(split, report.story.contains("So two led at once for"), "{}", report.story);
        assert_eq!(split, !report.timeline.overlaps.is_empty());
    }
}

#[test]
fn a_story_names_few_and_counts_many() {
    let story = |nodes| run(setup(Scenario::Partition, Algorithm::Bully, false, nodes, 1)).story;
    assert!(story(7).starts_with("node-1, node-2 and node-7 were cut off at"), "{}", story(7));
    assert!(story(64).starts_with("node-64 and 24 others were cut off at"), "{}", story(64));
    assert!(story(2).starts_with("node-2 was cut off at"), "{}", story(2));
}

#[test]
fn raft_has_never_two_leaders_over_many_seeds() {
    for scenario in Scenario::ALL.into_iter().filter(|scenario| scenario.is_within_bounds()) {
        let mut done = 0;
        let sum = run_many(setup(scenario, Algorithm::Raft, true, 5, 100), 40, || done += 1);
        assert_eq!((sum.runs, done), (40, 40));
        assert_eq!((sum.runs_with_two_leaders, sum.two_leaders_ms), (0, 0.0), "{scenario:?}");
        assert_eq!(sum.violations, [""; 0]);
    }
    let bully = run_many(setup(Scenario::Partition, Algorithm::Bully, false, 5, 100), 40, || {});
    assert_eq!(bully.runs_with_two_leaders, 40, "each partition splits it");
}

#[test]
fn a_crash_of_the_leader_is_followed_by_an_election() {
    for (algorithm, majority) in WAYS {
        let report = run(setup(Scenario::LeaderCrash, algorithm, majority, 5, 1));
        assert!(report.elections >= 8, "{algorithm:?}: {}", report.elections);
        assert!(report.time_to_elect_ms.p50 < report.time_to_elect_ms.p95.map(|p95| p95 + 0.001));
        // Nobody leads before the old lease is over.
        assert!(report.time_to_elect_ms.p50 > Some(500.0), "{algorithm:?} {:?}", report.time_to_elect_ms);
        // One is dead, and several begin: not quite what the papers count.
        if let (Some(took), Some(theory)) = (report.messages_per_election(), &report.theory) {
            assert!(took <= 2.0 * theory.total.worst as f64, "{algorithm:?}: {took} messages, {theory:?}");
        }
    }
}

/// Without faults, by the papers. Each node notices by itself, so that several may begin.
#[test]
fn the_theory_is_that_of_the_papers() {
    let of = |algorithm, majority, nodes| {
        let theory = run(setup(Scenario::Flapping, algorithm, majority, nodes, 3)).theory;
        theory.map(|theory| (theory.total.best, theory.total.worst))
    };
    for (algorithm, majority, nodes, best, worst) in [
        (Algorithm::Bully, false, 7, 6, 48),
        (Algorithm::Bully, false, 64, 63, 64 * 64 - 1),
        (Algorithm::Bully, true, 7, 18, 90),
        (Algorithm::Ring, false, 7, 13 + 7, 28 + 7),
        (Algorithm::Ring, true, 2, 3 + 2, 3 + 2),
        (Algorithm::Raft, true, 5, 16, 16),
    ] {
        assert_eq!(of(algorithm, majority, nodes), Some((best, worst)), "{algorithm:?} {majority} {nodes}");
    }
    assert_eq!(of(Algorithm::Lease, true, 5), None);
}

#[test]
fn the_same_arguments_give_the_same_report() {
    let shown = |report: Report| format!("{report:?}");
    let both = || all(3, 7).map(shown).collect::<Vec<_>>();
    assert_eq!(both(), both());
    let raft = |seed| shown(run(setup(Scenario::Partition, Algorithm::Raft, true, 3, seed)));
    assert_ne!(raft(7), raft(8));
}
