//! The command on a real PostgreSQL: take-overs, interference by hand, outages, refusals.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use testkit::{Line, PgBouncer, PoolMode, Postgres, Proc, Signal, Stream};

use harness::{SOON, World, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn postgres() -> Postgres {
    Postgres::options().start().expect("PostgreSQL starts")
}

fn candidate(world: &World, url: &str, id: &str) -> Proc {
    world.run(&["--on", url, &format!("--id={id}"), TTL], JOB)
}

#[track_caller]
fn token(line: &Line) -> u64 {
    line.text["leading ".len()..].parse().expect("a token")
}

#[track_caller]
fn wait_leading(process: &Proc, terms: usize) -> u64 {
    token(&process.wait_lines(terms, |line| line.starts_with("leading "), SOON)[terms - 1])
}

#[track_caller]
fn wait_standby(process: &Proc) {
    process.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
}

/// LINBIT/k8s-await-election #26: after SIGTERM the next one leads at once, not after the lease.
#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, postgres) = (World::new(), postgres());
    let bouncer = PgBouncer::start(&postgres, PoolMode::Transaction).expect("PgBouncer starts");
    for url in [postgres.url(), postgres.url_at(&bouncer.addr())] {
        // Makes the record, and waits for one ttl as it is new.
        assert_eq!(code(&world.run(&["--on", &url, "--ttl=1s"], "exit 0")), 0);
        let a = world.run(&["--on", &url, "--id=a", "--ttl=60s"], JOB);
        let first = wait_leading(&a, 1);
        let b = world.run(&["--on", &url, "--id=b", "--ttl=60s"], JOB);
        wait_standby(&b);
        a.signal(Signal::TERM);
        assert!(wait_leading(&b, 1) > first);
        assert_eq!(code(&a), 128 + 15);
        assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
        b.signal(Signal::TERM);
        code(&b);
    }
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    let (world, postgres) = (World::new(), postgres());
    for signal in [Signal::KILL, Signal::STOP] {
        let a = candidate(&world, &postgres.url(), "a");
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path("pid-a"));
        let b = candidate(&world, &postgres.url(), "b");
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

/// CURATOR-171: a record that is deleted or overwritten by hand ends the term; another is waited for.
#[test]
fn a_record_that_is_touched_by_hand_kills_the_job() {
    let (world, postgres) = (World::new(), postgres());
    let a = candidate(&world, &postgres.url(), "a");
    let mut last = wait_leading(&a, 1);
    for (terms, by_hand) in [
        (2, "DELETE FROM incumbent.record"),
        (3, "UPDATE incumbent.record SET body = 'something'"),
        (4, "UPDATE incumbent.record SET token = token + 1000000"),
        (5, "TRUNCATE incumbent.record"),
    ] {
        postgres.psql(by_hand);
        let token = wait_leading(&a, terms);
        assert!(token > last, "{by_hand}: {token} after {last}");
        last = token;
    }
}

#[test]
fn a_server_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut postgres) = (World::new(), postgres());
    let url = postgres.url();
    postgres.stop();
    let (status, _, err) = ended(&world.run(&["--on", &url, "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &url, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    postgres.restart();
    wait_leading(&a, 1);
    drop(a);

    // A crash that is shorter than the lease is survived.
    let b = world.run(&["--on", &url, "--id=b", "--ttl=60s"], JOB);
    wait_leading(&b, 1);
    postgres.kill();
    b.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    postgres.restart();
    b.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
    let steps = world.read("steps-b");
    assert!(testkit::wait_until(SOON, || world.read("steps-b") > steps), "{}", b.transcript());
    assert_eq!(
        b.lines().iter().filter(|line| line.text.starts_with("leading ")).count(),
        1,
        "{}",
        b.transcript()
    );
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let (world, postgres) = (World::new(), postgres());
    let addr = postgres.addr();
    for (login, hint) in [
        ("app:hunter2", "check user and password"),
        ("nobody:hunter2", "check user and password"),
        ("app", "it wants a password"),
    ] {
        let url = format!("postgres://{login}@{addr}/app");
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{login}: {err}");
        assert!(err.contains(hint) && !err.contains("hunter2"), "{login}: {err}");
    }
    let (status, _, err) = ended(&world.run(&["--on", &format!("{}x", postgres.url()), TTL], JOB));
    assert_eq!(status, 125);
    assert!(err.contains("database \"appx\" does not exist; create it"), "{err}");
}

#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    for (url, hint) in [
        ("postgres://", "needs a host"),
        ("postgres://127.0.0.1", "needs a user"),
        ("postgres://u@127.0.0.1/a/b", "schema="),
        ("postgres://u@127.0.0.1?sslmode=prefer", "verify-full or disable"),
        ("postgres://u@127.0.0.1?sslmode=require&tls=on", "leave one out"),
        ("postgresql://u@127.0.0.1?schma=x", "did you mean schema?"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let postgres = Postgres::options().tls().start().expect("PostgreSQL starts");
    assert_eq!(code(&world.run(&["--on", &postgres.url(), "--ttl=1s"], "exit 5")), 5);
    let url = postgres.url();
    let (plain, _) = url.split_once('?').expect("parameters");
    let other = testkit::Certificates::make(&world.path(""));
    for (url, hint) in [
        (format!("{plain}?tls=off"), "use tls=on"),
        (format!("{plain}?tls=on&ca={}", other.ca.display()), "its certificate is not accepted"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{err}");
    }
    let plain = Postgres::options().start().expect("PostgreSQL starts");
    let url = format!("{}?tls=on&ca={}", plain.url(), other.ca.display());
    let (status, _, err) = ended(&world.run(&["--on", &url, TTL], JOB));
    assert_eq!(status, 125);
    assert!(err.contains("it does not speak TLS"), "{err}");
}

#[test]
fn an_operator_sees_who_leads_and_hands_over() {
    let (world, postgres) = (World::new(), postgres());
    let on = postgres.url();
    let a = candidate(&world, &on, "a");
    let first = wait_leading(&a, 1);
    let b = candidate(&world, &on, "b");
    wait_standby(&b);
    let observer = Proc::spawn(world.incumbent(&["observe", "billing", "--on", &on]));
    observer.wait_line(|line| line.contains(&first.to_string()), SOON);
    let (status, out, err) = world.output(&["transfer", "billing", "--on", &on, "--to=b"]);
    assert_eq!(status, 0, "{out}{err}");
    let second = wait_leading(&b, 1);
    assert!(second > first);
    observer.wait_line(|line| line.contains(&second.to_string()), SOON);
    // Until then it stays away, and who resigns may well be back first.
    wait_standby(&a);
    let (status, _, err) = world.output(&["resign", "billing", "--on", &on]);
    assert_eq!(status, 0, "{err}");
    wait_leading(&a, 2);
    let (status, out, err) = world.output(&["doctor", "--on", &on]);
    assert_eq!(status, 0, "{out}{err}");
}

/// Those who may not make tables run on what an administrator made for them, with no other right.
#[test]
fn the_printed_schema_and_its_rights_are_enough() {
    let (world, postgres) = (World::new(), postgres());
    postgres.psql("CREATE ROLE clerk LOGIN PASSWORD 'app-password'; REVOKE ALL ON DATABASE app FROM PUBLIC");
    postgres.psql("GRANT CONNECT ON DATABASE app TO clerk; REVOKE ALL ON SCHEMA public FROM PUBLIC");
    let url = postgres.url().replace("app:app-password@", "clerk:app-password@") + "?schema=o%22ps";
    let (status, _, err) = ended(&world.run(&["--on", &url, TTL], JOB));
    assert_eq!(status, 125);
    assert!(err.contains("`incumbent doctor --print-schema`"), "{err}");
    for _ in 0..2 {
        let (status, schema, err) = world.output(&["doctor", "--print-schema", "--on", &url]);
        assert_eq!(status, 0, "{err}");
        postgres.psql(&schema);
    }
    let a = candidate(&world, &url, "a");
    let first = wait_leading(&a, 1);
    let b = candidate(&world, &url, "b");
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert!(!b.text(Stream::Err).contains("notifications do not come through"), "{}", b.transcript());
}
