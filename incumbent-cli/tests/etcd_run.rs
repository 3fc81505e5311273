//! The command on a real etcd: take-overs, lost leases, outages, refusals, and clients of another kind.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::{Cgroup, Etcd, Line, Proc, Signal, Stream, Version};

use harness::{SOON, World, children_of, code, ended, lives, pid_in, send};

const TTL: &str = "--ttl=5s";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn etcd() -> Etcd {
    Etcd::single(Version::V3_5).fast().start().expect("etcd starts")
}

fn candidate(world: &World, etcd: &Etcd, id: &str) -> Proc {
    world.run(&["--on", &etcd.url(), &format!("--id={id}"), TTL], JOB)
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
    let (world, etcd) = (World::new(), etcd());
    let a = world.run(&["--on", &etcd.url(), "--id=a", "--ttl=1h"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &etcd.url(), "--id=b", "--ttl=1h"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, etcd) = (World::new(), etcd());
        let a = candidate(&world, &etcd, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &etcd, "b");
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

/// The lease runs out whoever is frozen, and nothing but the successor's guardian is left to kill the old job.
#[test]
fn what_frozen_keepers_left_is_dead_before_the_successor_on_their_machine_starts() {
    let apart = [Cgroup::new(), Cgroup::new()];
    if apart.iter().any(Option::is_none) {
        return;
    }
    let (world, etcd) = (World::new(), etcd());
    let run = |id: &str, apart: &Option<Cgroup>| {
        world.run_in(apart.as_ref(), &["--on", &etcd.url(), &format!("--id={id}"), TTL], JOB)
    };
    let a = run("a", &apart[0]);
    let first = wait_leading(&a, 1);
    let b = run("b", &apart[1]);
    wait_standby(&b);
    let job = pid_in(&world.path("pid-a"));
    let guardian = children_of(a.pid())[0];
    send(guardian, Signal::STOP);
    a.signal(Signal::STOP);
    assert!(lives(job), "then this test shows nothing");
    assert!(wait_leading(&b, 1) > first);
    assert!(!lives(job), "the old job lives on");
    send(guardian, Signal::CONT);
    a.signal(Signal::CONT);
    wait_standby(&a);
}

/// etcd E3: the child of `etcdctl lock` ran on for six seconds and more beside the new holder.
#[test]
fn a_lease_that_is_revoked_by_hand_kills_the_job_at_once() {
    let (world, etcd) = (World::new(), etcd());
    let a = world.run(&["--on", &etcd.url(), "--id=a", "--ttl=60s"], JOB);
    let first = wait_leading(&a, 1);
    let job = pid_in(&world.path("pid-a"));
    let leases = etcd.etcdctl_ok(&["lease", "list"]);
    for lease in leases.lines().skip(1) {
        etcd.etcdctl_ok(&["lease", "revoke", lease.trim()]);
    }
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    assert!(wait_leading(&a, 2) > first, "it campaigns again by itself");
}

#[test]
fn a_key_that_is_deleted_by_hand_kills_the_job_at_once() {
    let (world, etcd) = (World::new(), etcd());
    let a = world.run(&["--on", &etcd.url(), "--id=a", "--ttl=60s"], JOB);
    let first = wait_leading(&a, 1);
    etcd.etcdctl_ok(&["del", "--prefix", "billing/"]);
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(wait_leading(&a, 2) > first);
}

#[test]
fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, mut etcd) = (World::new(), etcd());
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &etcd.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    etcd.pause(0);
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    etcd.resume(0);
    assert!(wait_leading(&a, 2) > first);
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
}

#[test]
fn a_store_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut etcd) = (World::new(), etcd());
    etcd.stop(0);
    let (status, _, err) = ended(&world.run(&["--on", &etcd.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &etcd, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    etcd.restart(0);
    wait_leading(&a, 1);
    // A standby, or a candidate that cannot reach the store, ends at once when it is told to.
    etcd.stop(0);
    let b = candidate(&world, &etcd, "b");
    b.wait_line(|line| line.starts_with("warning: "), SOON);
    b.signal(Signal::TERM);
    assert_eq!(code(&b), 0);
    let (status, out, err) = world.output(&["status", "billing", "--on", &etcd.url()]);
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
}

/// What is wrong with the URL needs no server to be told.
#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    for (url, hint) in [
        ("etcd://", "needs a host"),
        ("etcd://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("etcd://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("etcd://127.0.0.1:1?password_file=/no/such/file", "password_file= needs a user"),
        ("etcd://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("etcd://me@127.0.0.1:1", "a user needs a password"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let (world, etcd) =
        (World::new(), Etcd::single(Version::V3_5).fast().auth("me", "right").start().expect("etcd"));
    let endpoint = &etcd.endpoints()[0];
    for login in ["", "me:wrong@", "nobody:right@"] {
        let url = format!("etcd://{login}{endpoint}");
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{login}: {err}");
        assert!(!err.contains("wrong"), "a password is shown: {err}");
    }
}

/// The command needs the password to ask the store, and gets it where only its own user can read it.
#[test]
fn a_password_reaches_the_command_and_no_process_list() {
    let world = World::new();
    let etcd = Etcd::single(Version::V3_5).fast().auth("me", "hunter2").start().expect("etcd");
    let script = "echo kept | \"$INCUMBENT\" checkpoint put && \"$INCUMBENT\" checkpoint get && echo ready; \
                  \"$INCUMBENT\" check && exec sleep 600";
    let mut command = world.incumbent(&["run", "billing", "-vv", "--", "sh", "-c", script]);
    command.env("INCUMBENT_ON", etcd.url());
    let process = Proc::spawn(command);
    process.wait_line(|line| line == "ready", SOON);
    let mut pids = vec![process.pid()];
    while let Some(pid) = pids.pop() {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!arguments.contains("hunter2"), "{arguments:?}");
        pids.extend(children_of(pid));
    }
    process.signal(Signal::TERM);
    let (_, out, err) = ended(&process);
    assert_eq!(out, "kept\nready\n", "{err}");
    assert!(!err.contains("hunter2"), "{err}");
    let (_, _, err) = world.output(&["status", "billing", "--on", &etcd.url()]);
    assert!(err.contains("warning: the password in --on can be read by every user"), "{err}");
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let etcd = Etcd::single(Version::V3_5).fast().tls().start().expect("etcd");
    assert_eq!(code(&world.run(&["--on", &etcd.url()], "exit 5")), 5);
    let endpoint = &etcd.endpoints()[0];
    let other = testkit::Certificates::make(&world.path(""));
    for url in [format!("etcd://{endpoint}"), format!("etcd://{endpoint}?tls=on&ca={}", other.ca.display())] {
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains("error: "), "{err}");
    }
}

/// `etcdctl elect` shares the election; it obeys nobody.
#[test]
fn clients_of_another_kind_are_shown_and_cannot_be_asked() {
    let (world, etcd) = (World::new(), etcd());
    let on = etcd.url();
    let mut elect = etcd.etcdctl_command();
    elect.args(["elect", "billing", "foreign-1"]);
    let foreign = Proc::spawn(elect);
    foreign.wait_line(|line| line == "foreign-1", SOON);
    let a = candidate(&world, &etcd, "a");
    a.wait_line(
        |line| line.starts_with("standby: billing is led by foreign-1 (a client of another kind"),
        SOON,
    );
    let (status, out, _) = world.output(&["status", "billing", "--on", &on]);
    assert_eq!(status, 0);
    assert!(out.contains("leader      foreign-1 (a client of another kind)"), "{out}");
    for arguments in
        [&["resign", "billing", "--on", &on][..], &["transfer", "billing", "--on", &on, "--to=a"]]
    {
        let (status, _, err) = world.output(arguments);
        assert_eq!(status, 1);
        assert!(err.contains("cannot be asked to go"), "{err}");
    }
    foreign.signal(Signal::INT);
    wait_leading(&a, 1);

    let mut elect = etcd.etcdctl_command();
    elect.args(["elect", "billing", "foreign-2"]);
    let foreign = Proc::spawn(elect);
    let queued =
        || etcd.etcdctl_ok(&["get", "--prefix", "billing/", "--print-value-only"]).contains("foreign-2");
    assert!(testkit::wait_until(SOON, queued));
    let b = candidate(&world, &etcd, "b");
    wait_standby(&b);
    let (status, _, err) = world.output(&["transfer", "billing", "--on", &on, "--to=b"]);
    assert_eq!(status, 1);
    assert!(err.contains("before b stand clients of another kind") && err.contains("foreign-2"), "{err}");
    drop(foreign);
}

#[test]
fn a_transfer_passes_over_candidates_that_stand_before_the_target() {
    let (world, etcd) = (World::new(), etcd());
    let a = candidate(&world, &etcd, "a");
    wait_leading(&a, 1);
    let others = ["b", "c", "d"].map(|id| {
        let candidate = candidate(&world, &etcd, id);
        wait_standby(&candidate);
        candidate
    });
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &etcd.url(), "--to=d"]);
    assert_eq!(status, 0, "{out}{err}");
    wait_leading(&others[2], 1);
    let (status, out, _) = world.output(&["status", "billing", "--on", &etcd.url(), "--json"]);
    assert_eq!(status, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["leader"]["id"], "d", "{out}");
    // The old leader stays away for a while.
    assert!(answer["candidates"].as_array().map(Vec::len) >= Some(3), "{out}");
}
