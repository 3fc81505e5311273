//! The command on a real Redis: take-overs, lost records, outages, refusals, hand-over on request.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::{Line, Proc, Redis, Signal, Stream};

use harness::{SOON, World, children_of, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn redis() -> Redis {
    Redis::single().start().expect("redis starts")
}

fn candidate(world: &World, redis: &Redis, id: &str) -> Proc {
    world.run(&["--on", &redis.url(), &format!("--id={id}"), TTL], JOB)
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

/// A record that somebody may have deleted is waited for; one that was released is not. So tests with a long ttl begin here.
fn released(world: &World, redis: &Redis) {
    let first = world.run(&["--on", &redis.url(), "--ttl=1s"], "exit 0");
    assert_eq!(code(&first), 0);
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, redis) = (World::new(), redis());
    released(&world, &redis);
    let a = world.run(&["--on", &redis.url(), "--id=a", "--ttl=1h"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &redis.url(), "--id=b", "--ttl=1h"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, redis) = (World::new(), redis());
        let a = candidate(&world, &redis, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &redis, "b");
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

#[test]
fn a_record_that_is_deleted_by_hand_kills_the_job_at_the_next_renewal() {
    for by_hand in [&["DEL", "billing"][..], &["FLUSHALL"], &["SET", "billing", "mine"]] {
        let (world, redis) = (World::new(), redis());
        let a = candidate(&world, &redis, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        redis.cli_ok(by_hand);
        a.wait_line(|line| line.starts_with("lost: "), SOON);
        assert!(testkit::wait_until(SOON, || !lives(job)));
        assert!(wait_leading(&a, 2) > first, "it campaigns again by itself");
    }
}

#[test]
fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, redis) = (World::new(), redis());
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &redis.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    redis.pause();
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    redis.resume();
    assert!(wait_leading(&a, 2) > first);
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
}

#[test]
fn a_store_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut redis) = (World::new(), redis());
    redis.stop();
    let (status, _, err) = ended(&world.run(&["--on", &redis.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &redis, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    redis.restart();
    wait_leading(&a, 1);
    let (status, out, err) = world.output(&["status", "billing", "--on", &redis.url()]);
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("leader      a"), "{out}");
}

#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    for (url, hint) in [
        ("redis://", "needs a host"),
        ("redis://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("rediss://127.0.0.1:1?tls=off", "means TLS"),
        ("redis://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("redis://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("redis://me@127.0.0.1:1", "a user needs a password"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let world = World::new();
    let redis = Redis::single()
        .flags(&["--requirepass", "right"])
        .user("me", "right", "~* &* +@all")
        .start()
        .expect("redis");
    let endpoint = redis.endpoint();
    for (login, hint) in [
        ("", "password_file="),
        ("me:wrong@", "check user and password"),
        ("nobody:right@", "check user and password"),
        (":wrong@", "check user and password"),
    ] {
        let url = format!("redis://{login}{endpoint}");
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{login}: {err}");
        assert!(err.contains(hint), "{login}: {err}");
        assert!(!err.contains("wrong"), "a password is shown: {err}");
    }
    assert_eq!(code(&world.run(&["--on", &format!("redis://:right@{endpoint}"), "--ttl=1s"], "exit 5")), 5);
}

/// The command needs the password to ask the store, and gets it where only its own user can read it.
#[test]
fn a_password_reaches_the_command_and_no_process_list() {
    let world = World::new();
    let redis = Redis::single().user("me", "hunter2", "~* &* +@all").start().expect("redis");
    let script = "echo kept | \"$INCUMBENT\" checkpoint put && \"$INCUMBENT\" checkpoint get && echo ready; \
                  \"$INCUMBENT\" check && exec sleep 600";
    let mut command = world.incumbent(&["run", "billing", "--ttl=3s", "-vv", "--", "sh", "-c", script]);
    command.env("INCUMBENT_ON", redis.url());
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
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let redis = Redis::single().tls().start().expect("redis");
    assert_eq!(code(&world.run(&["--on", &redis.url(), "--ttl=1s"], "exit 5")), 5);
    let endpoint = redis.endpoint();
    let other = testkit::Certificates::make(&world.path(""));
    let plain = Redis::single().start().expect("redis");
    for (url, hint) in [
        (format!("redis://{endpoint}"), "it speaks TLS only"),
        (format!("rediss://{endpoint}?ca={}", other.ca.display()), "check ca="),
        (format!("rediss://{}", plain.endpoint()), "does not speak TLS"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
    let strict = Redis::single().client_auth().start().expect("redis");
    assert_eq!(code(&world.run(&["--on", &strict.url(), "--ttl=1s"], "exit 5")), 5);
    let without = strict.url().split("&cert=").next().expect("a URL").to_owned();
    let (status, _, err) = ended(&world.run(&["--on", &without, TTL], JOB));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("check cert= and key="), "{err}");
}

#[test]
fn a_transfer_and_a_resignation_are_obeyed() {
    let (world, redis) = (World::new(), redis());
    let on = redis.url();
    let a = candidate(&world, &redis, "a");
    wait_leading(&a, 1);
    let [b, c] = ["b", "c"].map(|id| {
        let candidate = candidate(&world, &redis, id);
        wait_standby(&candidate);
        candidate
    });
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &on, "--to=c"]);
    assert_eq!(status, 0, "{out}{err}");
    wait_leading(&c, 1);
    let (status, out, _) = world.output(&["status", "billing", "--on", &on, "--json"]);
    assert_eq!(status, 0);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["leader"]["id"], "c", "{out}");
    let (status, out, err) = world.output(&["resign", "billing", "--on", &on]);
    assert_eq!(status, 0, "{out}{err}");
    // Whoever resigned stays away for a while; the other two may lead.
    assert!(testkit::wait_until(SOON, || [&a, &b].iter().any(|candidate| {
        let terms = if std::ptr::eq(*candidate, &a) { 2 } else { 1 };
        candidate.lines().iter().filter(|line| is_leading(&line.text)).count() >= terms
    })));
}

#[test]
fn observers_are_told() {
    let (world, redis) = (World::new(), redis());
    let observe = Proc::spawn(world.incumbent(&["observe", "billing", "--on", &redis.url()]));
    let a = candidate(&world, &redis, "a");
    wait_leading(&a, 1);
    observe.wait_line(|line| line.contains("led by a") || line.contains(" a "), SOON);
    a.signal(Signal::TERM);
    code(&a);
    observe.wait_line(|line| line.contains("nobody"), SOON);
}
