//! Faults of the runner itself: frozen and killed parents and guardians, disks that are full.

use std::time::Duration;

use testkit::{Cgroup, Proc, Signal, now};

use crate::frozen::wait_until_started;
use crate::harness::{SOON, World, children_of, code, ended, guardian, lives, pid_in, send};
use crate::standby::token;

/// In a script: no other run of this user finds what this one leaves, not that of another test either.
const UNLINK: &str = "rm -f \"${INCUMBENT_LEASE_FILE%.lease}.cgroup\"; ";

/// Says so if another runs beside it, and notes with each step that it still runs.
const JOB: &str = "exec 9>>only; flock -n 9 || { echo OVERLAP; exit 99; }; echo $$ > \"pid-$INCUMBENT_ID\"; \
                   echo \"leading $INCUMBENT_TOKEN\"; cp \"$INCUMBENT_LEASE_FILE\" \"lease-$INCUMBENT_ID\"; \
                   echo \"$INCUMBENT_LEASE_FILE\" > \"lease-path-$INCUMBENT_ID\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

pub(crate) fn candidate(world: &World, id: &str, ttl: &str) -> Proc {
    world.run(&["--on=file:store", &format!("--id={id}"), &format!("--ttl={ttl}")], JOB)
}

/// A process that is frozen while it writes the record holds the election's lock until it wakes, as the backend says.
pub(crate) fn freeze_outside_of_a_commit(process: &Proc, world: &World) {
    loop {
        process.signal(Signal::STOP);
        if code(&world.shell("flock -n store/billing.lock true")) == 0 {
            return;
        }
        process.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// E6: malkuth's frozen leader woke up and led beside its successor.
#[test]
fn a_leader_that_was_frozen_past_its_lease_cannot_do_harm() {
    let world = World::new();
    let a = candidate(&world, "a", "5s");
    let first = token(&a);
    let b = candidate(&world, "b", "5s");
    b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
    let job = pid_in(&world.path("pid-a"));
    freeze_outside_of_a_commit(&a, &world);
    let second = token(&b);
    assert!(second > first);
    assert!(!lives(job), "the frozen leader's job lives on");
    let steps = world.read("steps-a");
    a.signal(Signal::CONT);
    // Awake, it learns that its term is over and stands by again.
    a.wait_line(|line| line.starts_with("standby: billing is led by b"), SOON);
    assert_eq!(world.read("steps-a"), steps, "it took a step after the successor began");
    assert_eq!(a.lines().iter().filter(|line| line.text.starts_with("leading ")).count(), 1);
    // What the job would have been told by a copy of its lease file: the deadline in it has passed.
    let mut check = world.incumbent(&["check"]);
    check.env("INCUMBENT_LEASE_FILE", world.path("lease-a"));
    assert_eq!(code(&Proc::spawn(check)), 1);
    b.signal(Signal::TERM);
    let third =
        a.wait_lines(2, |line| line.starts_with("leading ") || line == "OVERLAP", SOON).remove(1).text;
    assert!(
        third.strip_prefix("leading ").and_then(|token| token.parse::<u64>().ok()) > Some(second),
        "{third}"
    );
}

#[test]
fn the_job_dies_with_a_killed_parent() {
    let world = World::new();
    let a = candidate(&world, "a", "1h");
    token(&a);
    let (job, guardian) = (pid_in(&world.path("pid-a")), guardian(&a));
    a.signal(Signal::KILL);
    assert!(testkit::wait_until(SOON, || !lives(job) && !lives(guardian)));
    let lease_file = world.read("lease-path-a").trim().to_owned();
    assert!(testkit::wait_until(SOON, || !std::path::Path::new(&lease_file).exists()), "{lease_file}");
}

/// The parent kills the tree before anything else, then gives up the term: others may do better.
#[test]
fn the_job_dies_with_a_killed_guardian_and_a_new_term_begins() {
    let world = World::new();
    let a = candidate(&world, "a", "5s");
    let first = token(&a);
    let (job, guardian) = (pid_in(&world.path("pid-a")), guardian(&a));
    send(guardian, Signal::KILL);
    a.wait_line(|line| line.starts_with("killing: the guardian of sh died"), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    let again =
        a.wait_lines(2, |line| line.starts_with("leading ") || line == "OVERLAP", SOON).remove(1).text;
    assert!(
        again.strip_prefix("leading ").and_then(|token| token.parse::<u64>().ok()) > Some(first),
        "{again}"
    );
    assert_eq!(a.try_wait(), None);
}

/// While it stands by, a guardian that was started beforehand may die: nothing depends on it yet.
#[test]
fn a_guardian_that_dies_beforehand_is_replaced() {
    let world = World::new();
    let a = candidate(&world, "a", "1h");
    token(&a);
    let b = candidate(&world, "b", "1h");
    b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
    send(guardian(&b), Signal::KILL);
    assert!(testkit::wait_until(SOON, || children_of(b.pid()).is_empty()));
    a.signal(Signal::TERM);
    token(&b);
}

/// A guardian that is frozen does not keep the job alive past the deadline: the parent kills, too.
#[test]
fn a_frozen_guardian_does_not_let_the_job_outlive_its_drain() {
    let world = World::new();
    let script =
        "trap '' TERM; echo $$ > pid; echo \"leading $INCUMBENT_TOKEN\"; while :; do sleep 0.05; done";
    let a = world.run(&["--on=file:store", "--ttl=1h", "-v"], script);
    wait_until_started(&a);
    let (job, guardian) = (pid_in(&world.path("pid")), guardian(&a));
    send(guardian, Signal::STOP);
    a.signal(Signal::TERM);
    a.wait_line(|line| line.starts_with("stopping:"), SOON);
    std::thread::sleep(Duration::from_millis(300));
    a.signal(Signal::TERM);
    let (code, _, err) = ended(&a);
    assert_eq!(code, 128 + 9, "{err}");
    assert!(!lives(job) && !lives(guardian));
    assert!(err.ends_with("released: billing\n"), "{err}");
}

/// Both killed at once: nobody is left to kill the tree, so its last process, wherever it went, keeps the lock, and
/// nobody takes over before the lease runs out.
#[test]
fn a_tree_that_outlives_both_its_keepers_keeps_the_lock() {
    let world = World::new();
    let script = "setsid sh -c 'echo $$ > orphan; exec sleep 600' & until [ -s orphan ]; do sleep 0.01; done; \
                  echo $$ > main; echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    let script = &(UNLINK.to_owned() + script);
    // Apart, since the guardian of any other run beside it would kill what is left.
    let apart = Cgroup::new();
    let a = world.run_in(apart.as_ref(), &["--on=file:store", "--id=a", "--ttl=1h"], script);
    token(&a);
    let b = world.run(&["--on=file:store", "--id=b", "--ttl=1h"], "echo \"leading $INCUMBENT_TOKEN\"");
    b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
    let (main, orphan) = (pid_in(&world.path("main")), pid_in(&world.path("orphan")));
    let guardian = guardian(&a);
    // Frozen first, so that neither sees the other die.
    send(guardian, Signal::STOP);
    a.signal(Signal::STOP);
    send(guardian, Signal::KILL);
    a.signal(Signal::KILL);
    assert!(testkit::wait_until(SOON, || !lives(main)));
    std::thread::sleep(Duration::from_secs(1));
    assert!(lives(orphan), "then this test shows nothing");
    assert!(!b.lines().iter().any(|line| line.text.starts_with("leading ")), "{}", b.transcript());
    send(orphan, Signal::KILL);
    token(&b);
}

/// Both killed at once, and the lease runs out: the successor's guardian kills what is left before its own command starts.
/// Without cgroups only the command's own process is sure to be dead.
#[test]
fn what_both_killed_keepers_left_is_dead_before_the_successor_starts() {
    let world = World::new();
    let script = "exec 9>>only; flock -n 9 || { echo OVERLAP; exit 99; }; \
                  setsid sh -c 'echo $$ > \"orphan-$INCUMBENT_ID\"; exec sleep 600' & \
                  until [ -s \"orphan-$INCUMBENT_ID\" ]; do sleep 0.01; done; echo $$ > \"pid-$INCUMBENT_ID\"; \
                  echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    let apart = [Cgroup::new(), Cgroup::new()];
    let run = |id: &str, apart: &Option<Cgroup>| {
        world.run_in(apart.as_ref(), &["--on=file:store", &format!("--id={id}"), "--ttl=5s"], script)
    };
    let a = run("a", &apart[0]);
    let first = token(&a);
    let b = run("b", &apart[1]);
    b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
    let (main, orphan) = (pid_in(&world.path("pid-a")), pid_in(&world.path("orphan-a")));
    let guardian = guardian(&a);
    send(guardian, Signal::STOP);
    freeze_outside_of_a_commit(&a, &world);
    assert!(lives(main) && lives(orphan), "then this test shows nothing");
    send(guardian, Signal::KILL);
    a.signal(Signal::KILL);
    assert!(testkit::wait_until(SOON, || !lives(main)));
    if apart.iter().all(Option::is_some) {
        let begun = b.wait_line(|line| line.starts_with("leading ") || line == "OVERLAP", SOON).text;
        assert!(!lives(orphan));
        let second = begun.strip_prefix("leading ").and_then(|token| token.parse::<u64>().ok());
        assert!(second > Some(first), "{begun}");
    } else {
        send(orphan, Signal::KILL);
    }
}

/// Both frozen: nobody can kill the job, but it can see for itself that its term is over. Awake, they kill what is left.
#[test]
fn a_job_whose_keepers_are_frozen_sees_the_end_of_its_term_itself() {
    let world = World::new();
    let script = "echo \"leading $INCUMBENT_TOKEN\"; setsid sh -c 'echo $$ > orphan; exec sleep 600' & \
                  while \"$INCUMBENT\" check; do sleep 0.05; done; echo stopped; sleep 600";
    let script = &(UNLINK.to_owned() + script);
    let run = |id: &str| world.run(&["--on=file:store", &format!("--id={id}"), "--ttl=5s"], script);
    let a = run("a");
    let first = token(&a);
    let orphan = pid_in(&world.path("orphan"));
    let guardian = guardian(&a);
    freeze_outside_of_a_commit(&a, &world);
    send(guardian, Signal::STOP);
    a.wait_line(|line| line == "stopped", SOON);
    let b = run("b");
    assert!(token(&b) > first);
    send(guardian, Signal::CONT);
    a.signal(Signal::CONT);
    assert!(testkit::wait_until(SOON, || !lives(orphan)));
    a.wait_line(|line| line.starts_with("standby: billing is led by b"), SOON);
}

/// A state directory that is a file, or cannot be made, or has no room: a clear error at once.
#[test]
fn a_state_directory_that_cannot_be_used_is_a_clear_error() {
    let world = World::new();
    std::fs::write(world.path("file"), "").expect("a file");
    for on in ["file:file", "file:/proc/nowhere/incumbent"] {
        let begun = now();
        let (code, out, err) = ended(&world.run(&["--on", on], "echo started"));
        assert_eq!((code, out.as_str()), (125, ""), "{on}: {err}");
        assert!(err.starts_with("error: "), "{err}");
        assert!(now().since(begun) < SOON, "{on}: not at once");
    }
}
