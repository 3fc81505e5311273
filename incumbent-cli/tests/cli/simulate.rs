//! `simulate`: figures, the page, and what is refused.

use serde_json::Value;

use crate::harness::World;

const ALGORITHMS: [&str; 4] = ["bully", "ring", "raft", "lease"];
const SCENARIOS: [&str; 6] =
    ["leader-crash", "partition", "flapping", "slow-network", "frozen-leader", "clock-skew"];

fn json(world: &World, arguments: &[&str]) -> Value {
    let (code, out, err) = world.output(&[&["simulate", "--json"], arguments].concat());
    assert!((code, err.as_str()) == (0, "") || arguments.contains(&"clock-skew"), "{code} {err}");
    serde_json::from_str(&out).expect("one line of JSON")
}

#[test]
fn every_algorithm_runs_every_scenario_and_only_those_without_a_majority_may_split() {
    let world = World::new();
    for algorithm in ALGORITHMS {
        for scenario in SCENARIOS {
            let report = json(&world, &["--algorithm", algorithm, "--scenario", scenario, "--nodes=5"]);
            assert_eq!((&report["v"], &report["seed"], &report["runs"]), (&1.into(), &1.into(), &1.into()));
            assert!(report["elections"].as_u64() > Some(0), "{report}");
            assert!(report["messages"].as_object().is_some_and(|kinds| !kinds.is_empty()), "{report}");
            assert!(report["time_to_elect_ms"]["p95"].as_f64() > Some(0.0), "{report}");
            assert!(report["stale_writes_refused"].is_u64(), "{report}");
            let split = report["two_leaders_ms"].as_f64().expect("a number") > 0.0;
            assert!(!split || ["bully", "ring"].contains(&algorithm) || scenario == "clock-skew", "{report}");
            assert!(split || scenario != "partition" || !["bully", "ring"].contains(&algorithm), "{report}");
        }
    }
    for algorithm in ["bully", "ring"] {
        let report = json(&world, &["--algorithm", algorithm, "--majority", "--scenario=partition"]);
        assert_eq!((&report["two_leaders_ms"], &report["majority"]), (&0.0.into(), &true.into()));
    }
}

#[test]
fn one_seed_says_the_same_in_every_process() {
    let world = World::new();
    let run = |seed: &str| world.output(&["simulate", "--compare", "--scenario=partition", "--seed", seed]);
    let (first, again) = (run("7"), run("7"));
    assert_eq!(first, again);
    assert_eq!((first.0, first.2.as_str()), (0, ""));
    assert_ne!(first.1, run("8").1);
    for name in ["Bully", "Ring", "Raft", "Lease"] {
        assert!(first.1.contains(name), "{}", first.1);
    }
}

#[test]
fn runs_are_added_up_without_a_bar_where_nobody_sees_it() {
    let world = World::new();
    let report = json(&world, &["--algorithm=bully", "--nodes=3", "--scenario=partition", "--runs=20"]);
    assert_eq!((&report["runs"], &report["runs_with_two_leaders"]), (&20.into(), &20.into()));
    let compared = json(&world, &["--compare", "--nodes=3"]);
    assert_eq!(compared["reports"].as_array().map(Vec::len), Some(4), "{compared}");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_does() {
    let world = World::new();
    for (arguments, hint) in [
        (&[][..], "--algorithm"),
        (&["--algorithm=paxos"], "bully, ring, raft, lease"),
        (&["--algorithm=raft", "--scenario=flood"], "partition"),
        (&["--algorithm=raft", "--compare"], "cannot be used with"),
        (&["--algorithm=raft", "--majority"], "--majority is for bully and ring"),
        (&["--compare", "--nodes=0"], "a whole number from 1 to 64"),
        (&["--compare", "--nodes=65"], "a whole number from 1 to 64"),
        (&["--compare", "--nodes=seven"], "a whole number from 1 to 64"),
        (&["--compare", "--seed=-1"], "--seed"),
        (&["--compare", "--runs=0"], "1..=100000"),
    ] {
        let (code, out, err) = world.output(&[&["simulate"], arguments].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(hint), "{arguments:?}: {err}");
    }
    let (code, out, err) = world.output(&["simulate", "--compare", "--html=nowhere/report.html"]);
    assert_eq!((code, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("nowhere/report.html") && err.contains("--html"), "{err}");
}

/// Every element that is opened is closed, in order.
#[track_caller]
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = page.strip_prefix("<!doctype html>").expect("a doctype");
    let (before, rest) = body.split_once("<style>").expect("a style");
    let (style, after) = rest.split_once("</style>").expect("its end");
    assert!(!style.contains('<'));
    for tag in before.split('<').skip(1).chain(after.split('<').skip(1)) {
        let (tag, text) = tag.split_once('>').expect("an end of the tag");
        assert!(!text.contains('>'), "{text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().expect("a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "<{tag}>");
        } else if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn the_page_stands_alone_and_shows_why_bully_splits_and_raft_does_not() {
    let world = World::new();
    let arguments = ["simulate", "--compare", "--scenario=partition", "--html=report.html"];
    let (code, out, err) = world.output(&arguments);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let page = world.read("report.html");
    assert_well_formed(&page);
    for outside in ["http:", "https:", "//", "src=", "href=", "@import", "<script", "<link", "url(\""] {
        assert!(!page.contains(outside), "{outside}");
    }
    for wanted in ["lang=\"en\"", "<main>", "<h1>", "prefers-color-scheme: dark", "@media print"] {
        assert!(page.contains(wanted), "{wanted}");
    }
    // A picture without words is none for those who do not see it.
    let pictures = page.matches("role=\"img\" aria-labelledby").count();
    assert_eq!((pictures, page.matches("<desc ").count()), (8, 8));
    let (before_raft, raft_and_lease) = page.split_once("id=\"alg2\"").expect("Raft is the third");
    assert!(before_raft.contains("class=\"overlap-edge\" x=") && before_raft.contains(">two lead: "));
    assert!(before_raft.contains("Bully asks for no majority"));
    assert!(!raft_and_lease.contains("class=\"overlap-edge\" x="));
    assert!(raft_and_lease.contains("A leader needs 4 of 7 nodes"));
    assert!(page.contains("incumbent simulate --compare --scenario partition --nodes 7 --seed 1"));
    // The same again, in the place of the first.
    assert_eq!(world.output(&arguments).0, 0);
    assert_eq!(world.read("report.html"), page);
}

/// Neither many nodes nor one break the page.
#[test]
fn the_page_is_whole_at_the_bounds() {
    let world = World::new();
    for (nodes, scenario) in [("1", "leader-crash"), ("2", "slow-network"), ("64", "flapping")] {
        let arguments =
            ["simulate", "--compare", "--nodes", nodes, "--scenario", scenario, "--html=page.html"];
        let (code, _, err) = world.output(&arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{nodes}");
        assert_well_formed(&world.read("page.html"));
    }
}
