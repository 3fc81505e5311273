//! The command on a real Consul: take-overs, lost sessions, outages, refusals.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::{Consul, Line, Proc, Signal, Stream};

use harness::{SOON, World, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
const KEY: &str = "billing/.lock";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn consul() -> Consul {
    Consul::single().start().expect("Consul starts")
}

fn candidate(world: &World, consul: &Consul, id: &str) -> Proc {
    world.run(&["--on", &consul.url(), &format!("--id={id}"), TTL], JOB)
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

/// LINBIT/k8s-await-election #26: after SIGTERM the next one leads at once, not after the lease.
#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, consul) = (World::new(), consul());
    let a = world.run(&["--on", &consul.url(), "--id=a", "--ttl=1h"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &consul.url(), "--id=b", "--ttl=1h"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, consul) = (World::new(), consul());
        let a = candidate(&world, &consul, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &consul, "b");
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

/// consul_9788, consul_1290: the child of `consul lock` ran on for 90 s beside the new holder.
#[test]
fn consul_9788_a_session_that_is_destroyed_by_hand_kills_the_job_at_once() {
    let (world, consul) = (World::new(), consul());
    let a = world.run(&["--on", &consul.url(), "--id=a", "--ttl=60s"], JOB);
    let first = wait_leading(&a, 1);
    let job = pid_in(&world.path("pid-a"));
    let session = consul.holder(KEY).expect("a leads");
    consul.call("PUT", &format!("/v1/session/destroy/{session}"), "");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    assert!(wait_leading(&a, 2) > first, "it campaigns again by itself");
}

/// consul_6793: a node that is deregistered takes its sessions with it.
#[test]
fn consul_6793_a_node_that_is_deregistered_kills_the_job_at_once() {
    let (world, consul) = (World::new(), consul());
    let a = world.run(&["--on", &consul.url(), "--id=a", "--ttl=60s"], JOB);
    let first = wait_leading(&a, 1);
    consul.call("PUT", "/v1/catalog/deregister", "{\"Node\":\"incumbent\"}");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(wait_leading(&a, 2) > first, "it registers the node again");
}

#[test]
fn a_key_that_is_deleted_by_hand_kills_the_job_at_once() {
    let (world, consul) = (World::new(), consul());
    let a = world.run(&["--on", &consul.url(), "--id=a", "--ttl=60s"], JOB);
    let first = wait_leading(&a, 1);
    consul.call("DELETE", "/v1/kv/billing?recurse", "");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(wait_leading(&a, 2) > first);
}

#[test]
fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, mut consul) = (World::new(), consul());
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &consul.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    consul.pause(0);
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    consul.resume(0);
    assert!(wait_leading(&a, 2) > first);
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
}

#[test]
fn a_store_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut consul) = (World::new(), consul());
    consul.stop(0);
    let (status, _, err) = ended(&world.run(&["--on", &consul.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &consul, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    consul.restart(0);
    wait_leading(&a, 1);
}

/// consul_6793, consul_20424: a session with a check, or on the node of an agent or a server, ends when those fail.
#[test]
fn consul_6793_a_session_has_no_check_and_its_node_no_agent() {
    let (world, consul) = (World::new(), consul());
    let a = candidate(&world, &consul, "a");
    wait_leading(&a, 1);
    let sessions = consul.call("GET", "/v1/session/list", "");
    let sessions: serde_json::Value = serde_json::from_str(&sessions).expect("JSON");
    for session in sessions.as_array().expect("a list") {
        assert_eq!(session["Node"], "incumbent", "{session}");
        for checks in ["Checks", "NodeChecks", "ServiceChecks"] {
            assert!(session[checks].as_array().is_none_or(Vec::is_empty), "{session}");
        }
        assert_eq!(
            (&session["LockDelay"], &session["Behavior"]),
            (&0.into(), &"release".into()),
            "{session}"
        );
    }
    let checks = consul.call("GET", "/v1/health/node/incumbent", "");
    assert_eq!(checks, "[]", "nothing watches the node");
}

/// consul_1172: what a lost machine costs is said before it happens.
#[test]
fn consul_1172_doctor_says_what_a_crash_costs() {
    let (world, consul) = (World::new(), consul());
    let (status, out, err) = world.output(&["doctor", "--on", &consul.url(), "--json"]);
    assert_eq!(status, 0, "{out}{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let consequences = answer["consequences"].as_array().expect("a list");
    let crash = consequences.iter().find(|figure| figure["key"] == "crash_failover_max").expect("the figure");
    // Twice the ttl of 15 s by itself, and as long again if the servers change their leader.
    assert!(crash["ms"].as_u64() >= Some(60_000), "{crash}");
}

#[test]
fn a_transfer_reaches_the_candidate_that_is_named() {
    let (world, consul) = (World::new(), consul());
    let a = candidate(&world, &consul, "a");
    wait_leading(&a, 1);
    let others = ["b", "c", "d"].map(|id| {
        let candidate = candidate(&world, &consul, id);
        wait_standby(&candidate);
        candidate
    });
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &consul.url(), "--to=d"]);
    assert_eq!(status, 0, "{out}{err}");
    wait_leading(&others[2], 1);
    let (status, out, _) = world.output(&["status", "billing", "--on", &consul.url(), "--json"]);
    assert_eq!(status, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["leader"]["id"], "d", "{out}");
    let (status, out, err) = world.output(&["resign", "billing", "--on", &consul.url()]);
    assert_eq!(status, 0, "{out}{err}");
    let others_lead =
        || others[..2].iter().any(|process| process.lines().iter().any(|line| is_leading(&line.text)));
    assert!(testkit::wait_until(SOON, || others_lead()
        || a.lines().iter().filter(|line| is_leading(&line.text)).count() > 1));
}

#[test]
fn a_checkpoint_reaches_the_successor() {
    let (world, consul) = (World::new(), consul());
    let job = "\"$INCUMBENT\" checkpoint get; echo \"from $INCUMBENT_ID\" | \"$INCUMBENT\" checkpoint put; \
               echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    let a = world.run(&["--on", &consul.url(), "--id=a", TTL], job);
    wait_leading(&a, 1);
    let b = world.run(&["--on", &consul.url(), "--id=b", TTL], job);
    wait_standby(&b);
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
    assert!(b.text(Stream::Out).starts_with("from a\n"), "{}", b.transcript());
}
