//! Stores that are frozen, away or told wrong, and records that somebody touches.

use std::time::Duration;

use testkit::{Signal, wait_until};

use super::harness::{SOON, World, code, ended, lives, pid_in, wait_leading};
use super::{JOB, Room, Store, TTL, refused, terms_of};

pub(crate) fn a_store_that_is_frozen_under_a_leader_stops_the_job_in_time<S: Store>() {
    let mut store = S::start_for("10s");
    let room = Room::of(&store);
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = room.run(&["--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    store.pause();
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    store.resume();
    assert!(wait_leading(&a, 2) > first);
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
}

pub(crate) fn a_store_that_is_not_there_is_told_at_once_and_waited_for<S: Store>() {
    let mut store = S::start();
    let room = Room::of(&store);
    store.stop();
    let (status, _, err) = ended(&room.run(&["--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = room.candidate("a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    store.restart();
    wait_leading(&a, 1);
    assert!(room.ask_ok("status", &[]).contains("leader      a\n"));
    // A candidate that cannot reach the store ends at once when it is told to.
    store.stop();
    let b = room.candidate("b");
    b.wait_line(|line| line.starts_with("warning: "), SOON);
    b.signal(Signal::TERM);
    assert_eq!(code(&b), 0);
    let (status, out, err) = room.ask("status", &[]);
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
}

/// A crash that is shorter than the lease costs no term, or, where nobody can tell whether the store has lost writes, no more than that.
pub(crate) fn a_store_that_restarts_within_the_ttl_is_survived<S: Store>() {
    let mut store = S::start_for("30s");
    let room = Room::of(&store);
    let a = room.run(&["--id=a", "--ttl=30s"], JOB);
    let first = wait_leading(&a, 1);
    store.stop();
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("the term is good for another"), SOON);
    store.restart();
    a.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
    if S::RESTART_ENDS_TERMS {
        assert!(wait_leading(&a, 2) > first);
        return;
    }
    let steps = room.world.read("steps-a");
    assert!(wait_until(SOON, || room.world.read("steps-a") > steps), "{}", a.transcript());
    assert_eq!(terms_of(&a), 1, "{}", a.transcript());
}

/// What is wrong with the URL needs no server to be told.
pub(crate) fn a_url_that_cannot_work_is_an_error_at_once<S: Store>() {
    let world = World::new();
    for (url, hint) in S::BAD_URLS {
        refused(&world, url, hint);
    }
}

/// What somebody does to the record of `billing` by hand ends the leader's term and its job; it campaigns again by itself, and its
/// token rises nevertheless. One after the other, on one server.
pub(crate) fn ends_the_term<S: Store>(by_hand: &[fn(&S)]) {
    let store = S::start();
    let room = Room::of(&store);
    let a = room.run(&["--id=a", S::TOUCHED_TTL], JOB);
    let mut last = wait_leading(&a, 1);
    for (terms, by_hand) in (1..).zip(by_hand) {
        let job = pid_in(&room.world.path("pid-a"));
        by_hand(&store);
        a.wait_lines(terms, |line| line.starts_with("lost: "), SOON);
        assert!(wait_until(SOON, || !lives(job)));
        let token = wait_leading(&a, terms + 1);
        assert!(token > last, "{token} after {last}: {}", a.transcript());
        last = token;
    }
}
