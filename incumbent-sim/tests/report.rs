//! Scenarios for people: what each shows, and that it is the same each time.

use incumbent_sim::report::{Algorithm, Report, Scenario, run};

fn all(nodes: usize, seed: u64) -> impl Iterator<Item = Report> {
    let each = move |algorithm| Scenario::ALL.map(move |scenario| run(scenario, algorithm, nodes, seed));
    Algorithm::ALL.into_iter().flat_map(each)
}

#[test]
fn every_scenario_elects_and_within_the_bounds_of_clocks_nobody_overlaps() {
    for report in all(5, 42) {
        let name = format!("{:?} {:?}", report.algorithm, report.scenario);
        eprintln!(
            "{name}: {} elections, {:?}, two leaders {} ms, {} stale writes refused, {:?}",
            report.elections,
            report.time_to_elect_ms,
            report.two_leaders_ms,
            report.stale_writes_refused,
            report.messages
        );
        assert!(report.elections > 0 && !report.timeline.letters.is_empty(), "{name}");
        if report.scenario != Scenario::ClockSkew {
            assert_eq!((report.two_leaders_ms, &report.violations[..]), (0.0, &[][..]), "{name}");
        }
    }
}

#[test]
fn a_crash_of_the_leader_is_followed_by_an_election() {
    for algorithm in Algorithm::ALL {
        let report = run(Scenario::LeaderCrash, algorithm, 5, 1);
        assert!(report.elections >= 8, "{algorithm:?}: {}", report.elections);
        assert!(report.time_to_elect_ms.p50 < report.time_to_elect_ms.p95.map(|p95| p95 + 0.001));
        // Nobody leads before the old lease is over.
        assert!(report.time_to_elect_ms.p50 > Some(500.0), "{algorithm:?} {:?}", report.time_to_elect_ms);
    }
}

#[test]
fn the_same_arguments_give_the_same_report() {
    let shown = |report: Report| format!("{report:?}");
    let both = || all(3, 7).map(shown).collect::<Vec<_>>();
    assert_eq!(both(), both());
    assert_ne!(
        shown(run(Scenario::Partition, Algorithm::Raft, 3, 7)),
        shown(run(Scenario::Partition, Algorithm::Raft, 3, 8))
    );
}
