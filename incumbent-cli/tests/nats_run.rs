//! The command on a real NATS: take-overs, lost records, outages, refusals, hand-over on request.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Line, Nats, NatsVersion, Proc, Signal, Stream};

use harness::{SOON, World, children_of, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn nats() -> Nats {
    Nats::single(NatsVersion::V2_10).start().expect("nats starts")
}

fn candidate(world: &World, nats: &Nats, id: &str) -> Proc {
    world.run(&["--on", &nats.url(), &format!("--id={id}"), TTL], JOB)
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
fn released(world: &World, nats: &Nats) {
    let first = world.run(&["--on", &nats.url(), "--ttl=1s"], "exit 0");
    assert_eq!(code(&first), 0);
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, nats) = (World::new(), nats());
    released(&world, &nats);
    let a = world.run(&["--on", &nats.url(), "--id=a", "--ttl=1h"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &nats.url(), "--id=b", "--ttl=1h"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, nats) = (World::new(), nats());
        let a = candidate(&world, &nats, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &nats, "b");
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

/// Deleted, purged, removed from the stream or overwritten: whatever it was, the next term has a greater token.
#[test]
fn a_record_that_is_meddled_with_kills_the_job_at_the_next_renewal() {
    let by_hand: [fn(&Nats); 4] = [
        |nats| nats.delete(Nats::BUCKET, "billing"),
        |nats| {
            nats.put(Nats::BUCKET, "billing", &[("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")], b"");
        },
        |nats| drop(nats.api(&format!("STREAM.PURGE.KV_{}", Nats::BUCKET), &Value::Null)),
        |nats| {
            nats.put(Nats::BUCKET, "billing", &[], b"mine");
        },
    ];
    for meddle in by_hand {
        let (world, nats) = (World::new(), nats());
        let a = candidate(&world, &nats, "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        meddle(&nats);
        a.wait_line(|line| line.starts_with("lost: "), SOON);
        assert!(testkit::wait_until(SOON, || !lives(job)));
        assert!(wait_leading(&a, 2) > first, "it campaigns again by itself");
    }
}

/// The token order of the old bucket is void, and nobody says that it is not.
#[test]
fn a_bucket_that_is_made_anew_ends_the_term() {
    let (world, nats) = (World::new(), nats());
    let a = candidate(&world, &nats, "a");
    wait_leading(&a, 1);
    let job = pid_in(&world.path("pid-a"));
    nats.api(&format!("STREAM.DELETE.KV_{}", Nats::BUCKET), &Value::Null);
    nats.make_bucket(Nats::BUCKET, &json!({})).expect("a bucket");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    wait_leading(&a, 2);
}

#[test]
fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, mut nats) = (World::new(), nats());
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &nats.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    nats.pause(0);
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    nats.resume(0);
    assert!(wait_leading(&a, 2) > first);
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
}

#[test]
fn a_store_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut nats) = (World::new(), nats());
    nats.stop(0);
    let (status, _, err) = ended(&world.run(&["--on", &nats.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &nats, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    nats.restart(0);
    wait_leading(&a, 1);
    let (status, out, err) = world.output(&["status", "billing", "--on", &nats.url()]);
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("leader      a"), "{out}");
}

#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    for (url, hint) in [
        ("nats://", "needs a host and a bucket"),
        ("nats://127.0.0.1:1", "needs a bucket"),
        ("nats://127.0.0.1:1/a.b", "no bucket of NATS"),
        ("nats://127.0.0.1:1/b/c..d", "no prefix"),
        ("nats://127.0.0.1:1/b?tsl=on", "did you mean tls?"),
        ("nats://127.0.0.1:1/b?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("nats://127.0.0.1:1/b?token_file=/no/such/file", "cannot read token_file=/no/such/file"),
        ("nats://127.0.0.1:1/b?creds_file=/etc/hostname", "holds no JWT of a user with its seed"),
        ("nats://127.0.0.1:1/b?token_file=/etc/hostname&nkey_file=/etc/hostname", "one login is enough"),
        ("nats://me@127.0.0.1:1/b?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("nats://s3cr3t@127.0.0.1:1/b", "token_file="),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn doctor_says_what_a_bucket_with_one_replica_means() {
    let (world, nats) = (World::new(), nats());
    let (status, out, err) = world.output(&["doctor", "--on", &nats.url()]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(format!("{out}{err}").contains("the bucket elections has one replica"), "{out}{err}");
}

/// nats-server #3653, #4162: the server lets records expire at uneven times. A bucket in which they do, or that forgets in another
/// way, or that nobody made, is refused with the reason.
#[test]
fn nats_3653_a_bucket_that_cannot_hold_elections_is_refused_before_the_first_term() {
    let world = World::new();
    let nats = nats();
    let buckets = [
        ("memory", json!({"storage": "memory"}), "kept in memory"),
        ("ageing", json!({"max_age": 60_000_000_000_u64, "duplicate_window": 60_000_000_000_u64}), "max_age"),
        ("rolling", json!({"max_bytes": 100_000, "discard": "old"}), "throws old records away"),
        ("mirror", json!({"mirror": {"name": "KV_elections"}, "subjects": []}), "is a mirror"),
    ];
    for (bucket, changes, _) in &buckets {
        nats.make_bucket(bucket, changes).expect("a bucket");
    }
    let missing = ("missing", Value::Null, "nats kv add missing");
    for (bucket, _, hint) in [missing].iter().chain(&buckets) {
        let url = format!("nats://{}/{bucket}", nats.endpoints()[0]);
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{bucket}: {err}");
        assert!(err.contains(hint), "{bucket}: {err}");
    }
}

/// nats-server #4320: 2.9.10 acknowledges up to eight writes of one revision, if the bucket has replicas.
#[test]
fn nats_4320_an_old_server_is_refused_with_replicas_and_taken_without() {
    let world = World::new();
    let nats = Nats::cluster(&[NatsVersion::V2_9; 3]).start().expect("nats starts");
    let (status, out, err) = ended(&world.run(&["--on", &nats.url(), TTL], JOB));
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("2.9.10") && err.contains("upgrade every server to 2.10.27"), "{err}");
    drop(nats);
    let single = Nats::single(NatsVersion::V2_9).start().expect("nats starts");
    assert_eq!(code(&world.run(&["--on", &single.url(), "--ttl=1s"], "exit 5")), 5);
}

/// One member that was not upgraded is enough to be refused, whichever of them one is connected to.
#[test]
fn nats_4320_one_old_member_is_enough_to_be_refused() {
    let world = World::new();
    let versions = [NatsVersion::V2_10, NatsVersion::V2_10, NatsVersion::V2_9];
    let nats = Nats::cluster(&versions).start().expect("nats starts");
    let url = nats.url_of(&nats.endpoints()[..1]);
    let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("the server n2 is nats-server 2.9.10"), "{err}");
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let world = World::new();
    let nats = Nats::single(NatsVersion::V2_10).user("me", "right", "").start().expect("nats");
    let endpoint = &nats.endpoints()[0];
    for (login, hint) in [
        ("", "password_file="),
        ("me:wrong@", "check user and password"),
        ("nobody:right@", "check user and password"),
    ] {
        let url = format!("nats://{login}{endpoint}/{}", Nats::BUCKET);
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{login}: {err}");
        assert!(err.contains(hint), "{login}: {err}");
        assert!(!err.contains("wrong"), "a password is shown: {err}");
    }
    assert_eq!(code(&world.run(&["--on", &nats.url(), "--ttl=1s"], "exit 5")), 5);
}

/// The command needs the password to ask the store, and gets it where only its own user can read it.
#[test]
fn a_password_reaches_the_command_and_no_process_list() {
    let world = World::new();
    let nats = Nats::single(NatsVersion::V2_10).user("me", "hunter2", "").start().expect("nats");
    let script = "echo kept | \"$INCUMBENT\" checkpoint put && \"$INCUMBENT\" checkpoint get && echo ready; \
                  \"$INCUMBENT\" check && exec sleep 600";
    let mut command = world.incumbent(&["run", "billing", "--ttl=3s", "-vv", "--", "sh", "-c", script]);
    command.env("INCUMBENT_ON", nats.url());
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
    let secured = Nats::single(NatsVersion::V2_10).tls().start().expect("nats");
    assert_eq!(code(&world.run(&["--on", &secured.url(), "--ttl=1s"], "exit 5")), 5);
    let named = format!("{}&server_name=localhost", secured.url());
    assert_eq!(code(&world.run(&["--on", &named, "--ttl=1s"], "exit 5")), 5);
    let endpoint = format!("{}/{}", secured.endpoints()[0], Nats::BUCKET);
    let other = testkit::Certificates::make(&world.path(""));
    let plain = nats();
    for (url, hint) in [
        (format!("nats://{endpoint}"), "it speaks TLS only"),
        (format!("nats://{endpoint}?ca={}", other.ca.display()), "check ca="),
        (format!("{}&server_name=elsewhere.example", secured.url()), "server_name="),
        (format!("{}?tls=on", plain.url()), "does not speak TLS"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
    let strict = Nats::single(NatsVersion::V2_10).client_auth().start().expect("nats");
    assert_eq!(code(&world.run(&["--on", &strict.url(), "--ttl=1s"], "exit 5")), 5);
    let without = strict.url().split("&cert=").next().expect("a URL").to_owned();
    let (status, _, err) = ended(&world.run(&["--on", &without, TTL], JOB));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("check cert= and key="), "{err}");
}

#[test]
fn a_transfer_and_a_resignation_are_obeyed() {
    let (world, nats) = (World::new(), nats());
    let on = nats.url();
    let a = candidate(&world, &nats, "a");
    wait_leading(&a, 1);
    let [b, c] = ["b", "c"].map(|id| {
        let candidate = candidate(&world, &nats, id);
        wait_standby(&candidate);
        candidate
    });
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &on, "--to=c"]);
    assert_eq!(status, 0, "{out}{err}");
    wait_leading(&c, 1);
    let (status, out, _) = world.output(&["status", "billing", "--on", &on, "--json"]);
    assert_eq!(status, 0);
    let answer: Value = serde_json::from_str(&out).expect("JSON");
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
    let (world, nats) = (World::new(), nats());
    let observe = Proc::spawn(world.incumbent(&["observe", "billing", "--on", &nats.url()]));
    let a = candidate(&world, &nats, "a");
    wait_leading(&a, 1);
    observe.wait_line(|line| line.contains("led by a") || line.contains(" a "), SOON);
    a.signal(Signal::TERM);
    code(&a);
    observe.wait_line(|line| line.contains("nobody"), SOON);
}
