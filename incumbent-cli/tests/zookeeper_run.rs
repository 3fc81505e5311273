//! The command on a real ZooKeeper: take-overs, lost sessions, outages and refusals.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::zookeeper::{Hand, Version};
use testkit::{Line, Proc, Signal, Stream, Zookeeper};

use harness::{SOON, World, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn zookeeper() -> Zookeeper {
    Zookeeper::single(Version::V3_9).start().expect("ZooKeeper starts")
}

fn candidate(world: &World, zookeeper: &Zookeeper, id: &str) -> Proc {
    world.run(&["--on", &zookeeper.url(), &format!("--id={id}"), TTL], JOB)
}

fn is_leading(line: &str) -> bool {
    line.starts_with("leading ")
}

#[track_caller]
fn token(line: &Line) -> u64 {
    line.text["leading ".len()..].parse().expect("a token")
}

#[track_caller]
fn wait_leading(process: &Proc, terms: usize) -> u64 {
    token(&process.wait_lines(terms, is_leading, SOON)[terms - 1])
}

#[track_caller]
fn wait_standby(process: &Proc) {
    process.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
}

/// Deletes the leader's node, or ends its session.
fn by_hand(zookeeper: &Zookeeper, session: bool) {
    let mut hand = zookeeper.hand();
    let leader = format!("/billing/{}", hand.children("/billing").first().expect("somebody leads"));
    if session {
        let owner = hand.get(&leader).expect("somebody leads").owner;
        Hand::end_session(&zookeeper.endpoints()[0], owner);
    } else {
        hand.delete(&leader);
    }
}

/// LINBIT/k8s-await-election #26: after SIGTERM the next one leads at once, not after the lease.
#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, zookeeper) = (World::new(), zookeeper());
    let a = world.run(&["--on", &zookeeper.url(), "--id=a", "--ttl=10s"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &zookeeper.url(), "--id=b", "--ttl=10s"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, zookeeper) = (World::new(), zookeeper());
        let a = candidate(&world, &zookeeper, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &zookeeper, "b");
        wait_standby(&b);
        a.signal(signal);
        assert!(wait_leading(&b, 1) > first);
        assert!(!lives(job), "the old job lives on");
        if signal == Signal::STOP {
            let steps = world.read("steps-a");
            a.signal(Signal::CONT);
            wait_standby(&a);
            assert_eq!(world.read("steps-a"), steps, "it took a step after the successor began");
        }
    }
}

/// Curator #692: the leader's own node is deleted by an operator, or its session ended.
#[test]
fn curator_171_a_node_or_session_that_is_ended_by_hand_kills_the_job_at_once() {
    for session in [false, true] {
        let (world, zookeeper) = (World::new(), zookeeper());
        let a = world.run(&["--on", &zookeeper.url(), "--id=a", "--ttl=10s"], JOB);
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        by_hand(&zookeeper, session);
        a.wait_line(|line| line.starts_with("lost: "), SOON);
        assert!(testkit::wait_until(SOON, || !lives(job)));
        assert!(wait_leading(&a, 2) > first, "it campaigns again by itself");
    }
}

#[test]
fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, mut zookeeper) = (World::new(), zookeeper());
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &zookeeper.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    zookeeper.pause(0);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    zookeeper.resume(0);
    assert!(wait_leading(&a, 2) > first);
}

#[test]
fn a_store_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut zookeeper) = (World::new(), zookeeper());
    zookeeper.stop(0);
    let (status, _, err) = ended(&world.run(&["--on", &zookeeper.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &zookeeper, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    zookeeper.restart(0);
    wait_leading(&a, 1);
}

/// What is wrong with the URL needs no server to be told.
#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    for (url, hint) in [
        ("zookeeper://", "needs a host"),
        ("zookeeper://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("zookeeper://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("zookeeper://127.0.0.1:1?password_file=/no/such/file", "password_file= needs a user"),
        ("zookeeper://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("zookeeper://me@127.0.0.1:1", "a user needs a password"),
        ("zookeeper://127.0.0.1:1/a/../b", "the prefix can hold no"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

/// ZooKeeper takes any password; the node that a user has created is closed to the others.
#[test]
fn a_missing_right_is_fatal_before_the_first_term_and_named() {
    let (world, zookeeper) = (World::new(), zookeeper());
    let endpoint = &zookeeper.endpoints()[0];
    let owner = world.run(&["--on", &format!("zookeeper://me:right@{endpoint}/team"), TTL], "exit 5");
    assert_eq!(code(&owner), 5, "{}", owner.transcript());
    for login in ["", "me:wrong@", "nobody:right@"] {
        let url = format!("zookeeper://{login}{endpoint}/team");
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{login}: {err}");
        assert!(err.contains("the right ") && err.contains(" is missing"), "{err}");
        assert!(!err.contains("wrong"), "a password is shown: {err}");
    }
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let zookeeper = Zookeeper::single(Version::V3_9).client_auth().start().expect("ZooKeeper");
    let a = world.run(&["--on", &zookeeper.url()], "exit 5");
    assert_eq!(code(&a), 5, "{}", a.transcript());
    let other = testkit::Certificates::make(&world.path(""));
    let secure = zookeeper.url();
    let host = secure.split('?').next().expect("a URL");
    let ca = zookeeper.certificates().expect("certificates").ca.display().to_string();
    for (url, hint) in [
        (format!("{host}?tls=on&ca={}", other.ca.display()), "its certificate is not accepted"),
        (format!("{}?tls=on&ca={ca}", plain(&zookeeper)), "does not speak TLS"),
        (format!("{host}?tls=on&ca={ca}"), "refused the TLS connection"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
    // A server closes such a connection without a word, as it does for other reasons too.
    let a = world.run(&["--on", &format!("{host}?tls=off"), TTL], JOB);
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("TLS"), SOON);
}

fn plain(zookeeper: &Zookeeper) -> String {
    format!("zookeeper://{}", zookeeper.endpoints()[0])
}

#[test]
fn a_transfer_passes_over_candidates_that_stand_before_the_target() {
    let (world, zookeeper) = (World::new(), zookeeper());
    let a = candidate(&world, &zookeeper, "a");
    wait_leading(&a, 1);
    let others = ["b", "c", "d"].map(|id| {
        let candidate = candidate(&world, &zookeeper, id);
        wait_standby(&candidate);
        candidate
    });
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &zookeeper.url(), "--to=d"]);
    assert_eq!(status, 0, "{out}{err}");
    wait_leading(&others[2], 1);
    let (status, out, _) = world.output(&["status", "billing", "--on", &zookeeper.url(), "--json"]);
    assert_eq!(status, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["leader"]["id"], "d", "{out}");
    // The old leader stays away for a while.
    assert!(answer["candidates"].as_array().map(Vec::len) >= Some(3), "{out}");
    let (status, out, err) = world.output(&["resign", "billing", "--on", &zookeeper.url()]);
    assert_eq!(status, 0, "{out}{err}");
}

/// A checkpoint outlives its leader, and `observe` and `doctor` know the store.
#[test]
fn a_checkpoint_is_handed_on_and_the_store_is_shown() {
    let (world, zookeeper) = (World::new(), zookeeper());
    let on = format!("{}/team/a", plain(&zookeeper));
    let put = world.run(&["--on", &on, TTL], "echo kept | \"$INCUMBENT\" checkpoint put");
    assert_eq!(code(&put), 0, "{}", put.transcript());
    let get = world.run(&["--on", &on, TTL], "\"$INCUMBENT\" checkpoint get");
    let (status, out, err) = ended(&get);
    assert_eq!((status, out.as_str()), (0, "kept\n"), "{err}");
    let (status, out, err) = world.output(&["doctor", "--on", &on]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("zookeeper"), "{out}");
    let mut hand = zookeeper.hand();
    assert_eq!(
        hand.children("/team/a/.incumbent").len(),
        2,
        "what is not a candidate stands beside the elections"
    );
}
