//! Several candidates: who waits, who takes over, and that never two jobs run.

use std::time::Duration;

use testkit::{Proc, Signal, Stream, now};

use crate::harness::{SOON, World, code, ended, lives, pid_in};

/// A job that says so if another runs beside it: it takes a lock that its whole tree holds.
const JOB: &str = "exec 9>>only; flock -n 9 || { echo OVERLAP; exit 99; }; \
                   echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";

fn candidate(world: &World, id: &str, options: &[&str]) -> Proc {
    let id = format!("--id={id}");
    world.run(&[&["--on=file:store", &id], options].concat(), JOB)
}

#[track_caller]
pub(crate) fn token(process: &Proc) -> u64 {
    let line = process.wait_line(|line| line.starts_with("leading ") || line == "OVERLAP", SOON).text;
    line.strip_prefix("leading ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[track_caller]
fn wait_standby(process: &Proc) {
    process.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
}

/// The lease is an hour long: only the lock of the dead leader's tree can tell so soon.
#[test]
fn a_standby_takes_over_from_a_killed_leader_without_waiting_for_the_lease() {
    let world = World::new();
    let a = candidate(&world, "a", &["--ttl=1h"]);
    let first = token(&a);
    let b = candidate(&world, "b", &["--ttl=1h"]);
    wait_standby(&b);
    let job = pid_in(&world.path("pid-a"));
    a.signal(Signal::KILL);
    let second = token(&b);
    assert!(second > first, "{second} after {first}");
    assert!(!lives(job), "the dead leader's job lives on");
}

/// agent-sandbox PR #1249: a gap of one ttl at each roll-out.
#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let world = World::new();
    let a = candidate(&world, "a", &["--ttl=1h"]);
    let first = token(&a);
    let b = candidate(&world, "b", &["--ttl=1h"]);
    wait_standby(&b);
    a.signal(Signal::TERM);
    let second = token(&b);
    assert!(second > first);
    assert_eq!(code(&a), 128 + 15);
}

/// What the drain needs it gets: the successor waits for the last process of the tree.
#[test]
fn nobody_leads_while_the_old_job_drains() {
    let world = World::new();
    let script = "exec 9>>only; flock -n 9 || exit 99; trap 'sleep 7; echo drained; exit 0' TERM; echo ready; \
                  while :; do sleep 0.05; done";
    let a = world.run(&["--on=file:store", "--id=a", "--ttl=4s"], script);
    a.wait_line(|line| line == "ready", SOON);
    let b = candidate(&world, "b", &["--ttl=4s"]);
    wait_standby(&b);
    a.signal(Signal::TERM);
    token(&b);
    assert!(a.text(Stream::Out).contains("drained"), "{}", a.transcript());
    assert_eq!(code(&a), 0);
}

/// k/k #22775: equal ids, as with host networking. They exclude each other, and both are told.
#[test]
fn two_processes_with_one_id_exclude_each_other_and_are_told() {
    let world = World::new();
    let a = candidate(&world, "same", &["--ttl=1h"]);
    let first = token(&a);
    let b = candidate(&world, "same", &["--ttl=1h"]);
    let warned =
        b.wait_line(|line| line.starts_with("warning: another process campaigns for billing as same"), SOON);
    assert!(warned.text.contains("give each its own --id"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(b.text(Stream::Out), "", "two jobs of one id");
    a.signal(Signal::TERM);
    assert!(token(&b) > first);
}

#[test]
fn no_wait_and_wait_timeout_give_up_with_codes_of_their_own() {
    let world = World::new();
    let a = candidate(&world, "a", &[]);
    token(&a);
    let (code, out, err) = ended(&candidate(&world, "b", &["--no-wait"]));
    assert_eq!((code, out.as_str()), (123, ""), "{err}");
    assert!(err.contains("standby: billing is led by a (token "), "{err}");
    assert!(err.ends_with("ended: another leads billing, and --no-wait was given\n"), "{err}");
    let begun = now();
    let (code, out, err) = ended(&candidate(&world, "c", &["--wait-timeout=1s"]));
    assert_eq!((code, out.as_str()), (124, ""), "{err}");
    assert!(now().since(begun) >= Duration::from_secs(1));
    assert!(err.contains("error: billing was not won within 1 s\n"), "{err}");
    assert!(a.try_wait().is_none(), "the leader is not disturbed");
}

#[test]
fn no_wait_leads_where_nobody_does() {
    let world = World::new();
    for options in [&["--on=file:store", "--no-wait"][..], &["--on=file:store", "--wait-timeout=20s"]] {
        assert_eq!(code(&world.run(options, "exit 6")), 6, "also over a record that was released");
    }
}

/// A standby that is told to stop is no error: c-r #3535.
#[test]
fn a_standby_that_is_told_to_stop_ends_at_once_and_cleanly() {
    let world = World::new();
    let a = candidate(&world, "a", &["--ttl=1h"]);
    token(&a);
    let b = candidate(&world, "b", &["--ttl=1h"]);
    wait_standby(&b);
    b.signal(Signal::TERM);
    let (code, out, err) = ended(&b);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.ends_with("ended: b no longer stands for billing\n"), "{err}");
    assert!(a.try_wait().is_none());
}

/// The record is the authority: without it nobody can know who leads, so the leader stops at once.
#[test]
fn a_leader_whose_record_is_deleted_kills_its_job_and_campaigns_again() {
    let world = World::new();
    let a = candidate(&world, "a", &[]);
    let first = token(&a);
    let job = pid_in(&world.path("pid-a"));
    std::fs::remove_file(world.path("store/billing.record")).expect("a record");
    let lines = a.wait_lines(2, |line| line.starts_with("leading ") || line == "OVERLAP", SOON);
    let second: u64 =
        lines[1].text.strip_prefix("leading ").and_then(|token| token.parse().ok()).expect("a token");
    assert!(second > first);
    assert!(!lives(job));
    assert!(a.text(Stream::Err).contains("lost: "), "{}", a.transcript());
}

/// It was told as if another led.
#[test]
fn a_record_that_a_directory_takes_the_place_of_is_told_as_what_it_is() {
    let world = World::new();
    let a = candidate(&world, "a", &["--ttl=5s"]);
    token(&a);
    let record = world.path("store/billing.record");
    std::fs::remove_file(&record).expect("a record");
    std::fs::create_dir(&record).expect("a folder");
    let wanted = "billing.record is a directory, not a plain file; move it away; ";
    a.wait_line(|line| line.starts_with("warning: ") && line.contains(wanted), SOON);
    assert!(!a.text(Stream::Err).contains("another leads"), "{}", a.transcript());
    // Whoever comes is told at once.
    let (code, _, err) = ended(&candidate(&world, "b", &["--ttl=5s"]));
    assert_eq!(code, 125, "{err}");
    assert!(err.contains("is a directory, not a plain file; move it away"), "{err}");
    std::fs::remove_dir(&record).expect("a folder");
    a.wait_lines(2, |line| line.starts_with("leading "), SOON);
}

/// A record that nobody can read counts as held for one ttl, and it is told why nothing happens meanwhile.
#[test]
fn a_record_that_is_garbage_is_waited_for_and_told_of() {
    let world = World::new();
    assert_eq!(code(&world.run(&["--on=file:store"], "exit 0")), 0);
    std::fs::write(world.path("store/billing.record"), "garbage").expect("a file");
    let begun = now();
    let (code, out, err) = ended(&world.run(&["--on=file:store", "--ttl=3s"], "echo led"));
    assert_eq!((code, out.as_str()), (0, "led\n"), "{err}");
    assert!(now().since(begun) >= Duration::from_secs(3), "{err}");
    assert!(err.starts_with("warning: the record counts as held for one ttl, because "), "{err}");
}

/// A newer release wrote it: it is left as it is, and the operator is told.
#[test]
fn a_record_of_a_newer_format_is_an_error_at_once() {
    let world = World::new();
    assert_eq!(code(&world.run(&["--on=file:store"], "exit 0")), 0);
    let path = world.path("store/billing.record");
    let newer = std::fs::read_to_string(&path).expect("a record").replace("\"v\":1", "\"v\":99");
    std::fs::write(&path, &newer).expect("a file");
    let (code, out, err) = ended(&world.run(&["--on=file:store"], "echo led"));
    assert_eq!((code, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("newer than") && err.contains("update this program"), "{err}");
    assert_eq!(std::fs::read_to_string(&path).expect("a record"), newer, "it was changed");
}
