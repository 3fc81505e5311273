//! Three machines' worth of processes that elect among themselves, by each algorithm.

#[expect(dead_code, reason = "the tests of Raft use more of it")]
mod peers;
#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "peers have no server that the scenarios could use"
)]
mod scenarios;

use testkit::{Proc, Signal, wait_until};

use peers::Peers;
use scenarios::harness::{SOON, code, ended, wait_leading, wait_standby};
use scenarios::{JOB, refused, terms_of};

#[test]
fn raft_elects() {
    three_elect("raft", "");
}

#[test]
fn bully_elects_by_majority() {
    three_elect("bully", "&majority=true");
}

#[test]
fn a_ring_elects_by_majority() {
    three_elect("ring", "&majority=true");
}

#[test]
fn a_ring_that_collects_elects_by_majority() {
    three_elect("ring", "&majority=true&variant=collect");
}

/// One is killed and comes back, the next one is told to go; who only asks is told of it all.
fn three_elect(scheme: &'static str, parameters: &str) {
    let peers = Peers::electing(scheme, parameters, &["a", "b", "c"], "2s");
    let mut all: Vec<_> = ["a", "b", "c"].map(|name| (name, peers.candidate(name, &[], JOB))).into();
    let (killed, leader) = take_leader(&mut all);
    let first = wait_leading(&leader, 1);
    all.iter().for_each(|(_, other)| wait_standby(other));
    let status = || {
        let (code, out, err) = peers.world.output(&["status", "billing", "--on", &peers.url(), "--json"]);
        assert_eq!(code, 0, "{out}{err}");
        serde_json::from_str::<serde_json::Value>(&out).expect("JSON")
    };
    let answer = status();
    assert_eq!((&answer["leader"]["id"], &answer["leader"]["token"]), (&killed.into(), &first.into()));
    assert_eq!(answer["candidates"].as_array().map(Vec::len), Some(3), "{answer}");
    let observer = Proc::spawn(peers.world.incumbent(&["observe", "billing", "--on", &peers.url()]));
    let observed = |name: &str| {
        observer.wait_line(|line| line.starts_with(&format!("billing is led by {name} ")), SOON);
    };
    observed(killed);
    leader.signal(Signal::KILL);
    let (name, leader) = take_leader(&mut all);
    let second = wait_leading(&leader, 1);
    assert!(second > first, "{second} after {first}");
    observed(name);
    let back = peers.candidate(killed, &[], JOB);
    let (leader, second) = if scheme == "bully" && killed > name {
        // The greatest takes its place again: nobody keeps it from a bully.
        let third = wait_leading(&back, 1);
        assert!(third > second, "{third} after {second}");
        all.push((name, leader));
        (back, third)
    } else {
        wait_standby(&back);
        all.push((killed, back));
        (leader, second)
    };
    let led: Vec<usize> = all.iter().map(|(_, other)| terms_of(other)).collect();
    leader.signal(Signal::TERM);
    assert_eq!(code(&leader), 128 + 15);
    let next = || all.iter().zip(&led).find(|((_, other), led)| terms_of(other) > **led);
    assert!(wait_until(SOON, || next().is_some()), "nobody leads");
    let ((name, leader), led) = next().expect("one leads");
    let third = wait_leading(leader, led + 1);
    assert!(third > second, "{third} after {second}");
    observed(name);
}

/// The one that leads, once one does.
fn take_leader(all: &mut Vec<(&'static str, Proc)>) -> (&'static str, Proc) {
    assert!(wait_until(SOON, || all.iter().any(|(_, process)| terms_of(process) > 0)), "nobody leads");
    let place = all.iter().position(|(_, process)| terms_of(process) > 0).expect("one leads");
    all.remove(place)
}

/// Without a majority nobody is excluded by those who cannot hear him, and nothing runs unless that is accepted.
#[test]
fn without_a_majority_run_refuses_until_two_leaders_are_allowed() {
    for scheme in ["bully", "ring"] {
        let peers = Peers::electing(scheme, "", &["a", "b", "c"], "2s");
        refused(&peers.world, &peers.url_of("a"), "--allow-split-brain");
        let (status, out, err) = peers.world.output(&["doctor", "--on", &peers.url_of("a")]);
        assert!(out.contains("run refuses it unless told --allow-split-brain"), "{status} {out}{err}");
        let allowed = |name| peers.candidate(name, &["--allow-split-brain"], JOB);
        let a = allowed("a");
        a.wait_line(|line| line.starts_with("warning: two commands may run at one time"), SOON);
        // Nobody else is there, so it leads, and has no token.
        a.wait_line(|line| line == "leading ", SOON);
        let on = peers.url();
        let (status, out, err) = peers.world.output(&["status", "billing", "--on", &on, "--json"]);
        assert_eq!(status, 0, "{out}{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!((&answer["leader"]["id"], &answer["leader"]["token"]), (&"a".into(), &().into()));
        let (status, _, err) = peers.world.output(&["resign", "billing", "--on", &on]);
        assert_ne!(status, 0);
        assert!(err.contains("no tokens"), "{err}");
        // A greater one that comes takes over, on a ring only if it was not told in time that somebody leads.
        let b = allowed("b");
        let stands_by = |process: &Proc| {
            process.lines().iter().any(|line| line.text.starts_with("standby: billing is led by "))
        };
        assert!(wait_until(SOON, || terms_of(&b) == 1 || (scheme == "ring" && stands_by(&b))));
        let (leader, other) = if terms_of(&b) == 1 { (&b, &a) } else { (&a, &b) };
        wait_standby(other);
        let before = terms_of(other);
        leader.signal(Signal::TERM);
        assert_eq!(code(leader), 128 + 15);
        assert!(wait_until(SOON, || terms_of(other) == before + 1), "{}", other.transcript());
    }
}

/// Who has older data than a majority never leads; who keeps the data says so in a file.
#[test]
fn whose_data_is_older_does_not_lead() {
    for (scheme, parameters) in [
        ("raft", ""),
        ("bully", "&majority=true&criterion=most-recent-data"),
        ("ring", "&majority=true&criterion=most-recent-data"),
    ] {
        let peers = Peers::electing(scheme, parameters, &["a", "b", "c"], "2s");
        let versions = [("a", 15), ("b", 17), ("c", 17)];
        let with_file = |name: &str| {
            let file = peers.world.path(&format!("version-{name}"));
            format!("{}&data_version_file={}", peers.url_of(name), file.display())
        };
        let run = |name: &str| {
            peers.world.run(&["--on", &with_file(name), &format!("--id={name}"), "--ttl=2s"], JOB)
        };
        if scheme != "raft" {
            let (status, _, err) = ended(&peers.candidate("a", &[], JOB));
            assert_eq!(status, 125);
            assert!(err.contains("needs data_version_file="), "{err}");
        }
        refused(&peers.world, &with_file("a"), "cannot be read");
        for (name, version) in versions {
            std::fs::write(peers.world.path(&format!("version-{name}")), format!("{version}\n"))
                .expect("written");
        }
        let [a, b, c] = versions.map(|(name, _)| run(name));
        assert!(wait_until(SOON, || terms_of(&b) + terms_of(&c) > 0), "{}", b.transcript());
        wait_standby(&a);
        // What is written later counts: it has caught up, and more, when the leader goes.
        std::fs::write(peers.world.path("version-a"), "18").expect("written");
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(terms_of(&a), 0, "{}", a.transcript());
        let leader = if terms_of(&c) > terms_of(&b) { &c } else { &b };
        leader.signal(Signal::TERM);
        assert!(wait_until(SOON, || terms_of(&a) == 1), "{}", a.transcript());
    }
}
