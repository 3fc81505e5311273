//! Candidates on plain threads, on the memory backend.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use incumbent::blocking::{self, Shutdown};
use incumbent::{Election, Leadership, StopReason};

fn election(name: &str, ttl_ms: u64) -> Election {
    let url = format!("memory:blocking-{name}?ttl={ttl_ms}ms");
    blocking::connect(&url).expect("memory is always there").election("billing")
}

fn stopped_within(leadership: &Leadership, patience: Duration) -> Option<StopReason> {
    testkit::wait_until(patience, || leadership.is_stopping().is_some());
    leadership.is_stopping().map(|stopping| stopping.reason)
}

#[test]
fn work_runs_on_the_calling_thread_and_may_borrow_from_it() {
    let election = election("borrow", 2000);
    let here = thread::current().id();
    let mut calls = Vec::new();
    let token = blocking::run(election.candidate("a"), |leadership| {
        calls.push(thread::current().id());
        leadership.token()
    })
    .unwrap();
    assert_eq!(calls, [here]);
    assert!(token.is_some());
    let later = blocking::run(election.candidate("a"), |leadership| leadership.token()).unwrap();
    assert!(later > token, "a new grant is a new term with a new token: {token:?} {later:?}");
}

#[test]
fn what_is_async_can_be_waited_for_without_a_runtime() {
    let election = election("wait", 2000);
    blocking::run(election.candidate("a"), |leadership| blocking::wait(leadership.checkpoint().put(b"42")))
        .unwrap()
        .unwrap();
    let left = blocking::wait(election.checkpoint().unwrap().get()).unwrap();
    assert_eq!(left.as_deref(), Some(&b"42"[..]));
}

#[test]
fn shutdown_drains_while_the_term_is_still_valid() {
    let election = election("drain", 600);
    let (shutdown, from_elsewhere) = (Shutdown::new(), Shutdown::new());
    let (leads, led) = mpsc::channel();
    let stop = shutdown.clone();
    let stopper = thread::spawn(move || {
        led.recv().unwrap();
        stop.begin();
    });
    let output = blocking::run_until(election.candidate("a"), &shutdown, |leadership| {
        leads.send(()).unwrap();
        let told = stopped_within(&leadership, Duration::from_secs(20));
        // Longer than the ttl: only a renewal while draining keeps it valid.
        thread::sleep(Duration::from_millis(1200));
        (told, leadership.is_valid())
    });
    assert_eq!(output.unwrap(), Some((Some(StopReason::Shutdown), true)));
    stopper.join().unwrap();
    // Released: the next one need not wait until a lease has run out.
    blocking::run_until(election.candidate("b"), &from_elsewhere, |_| ()).unwrap().unwrap();
}

#[test]
fn shutdown_ends_a_standby_and_one_that_comes_late() {
    let election = election("standby", 2000);
    let (done, wait) = mpsc::channel::<()>();
    let (leads, led) = mpsc::channel();
    let leader = election.candidate("leader");
    let leader = thread::spawn(move || {
        blocking::run(leader, |_| {
            leads.send(()).unwrap();
            let _ = wait.recv();
        })
        .unwrap();
    });
    led.recv().unwrap();
    let shutdown = Shutdown::new();
    let (candidate, stop) = (election.candidate("standby"), shutdown.clone());
    let standby = thread::spawn(move || blocking::run_until(candidate, &stop, |_| ()).unwrap());
    thread::sleep(Duration::from_millis(100));
    shutdown.begin();
    assert_eq!(standby.join().unwrap(), None);
    assert_eq!(blocking::run_until(election.candidate("late"), &shutdown, |_| ()).unwrap(), None);
    drop(done);
    leader.join().unwrap();
}

#[test]
fn work_that_was_told_to_resign_is_called_again_in_a_new_term() {
    let election = election("resign", 600);
    let mut tokens = Vec::new();
    let reason = blocking::run(election.candidate("a"), |leadership| {
        tokens.push(leadership.token());
        if tokens.len() > 1 {
            return None;
        }
        leadership.resign();
        stopped_within(&leadership, Duration::from_secs(20))
    })
    .unwrap();
    assert_eq!(reason, None, "the output of the term that was given up is dropped");
    assert_eq!(tokens.len(), 2);
    assert!(tokens[0] < tokens[1]);
}

/// The thread cannot be stopped, so the lease must not be released under it: the term is over, and the next leader comes when
/// the lease has run out.
#[test]
fn work_that_overruns_its_drain_finds_its_term_over_and_is_not_released() {
    let election = election("overrun", 1000);
    let shutdown = Shutdown::new();
    let candidate = election.candidate("a").drain(Some(Duration::from_millis(100)));
    let output = blocking::run_until(candidate, &shutdown, |leadership| {
        shutdown.begin();
        let over = testkit::wait_until(Duration::from_secs(20), || !leadership.is_valid());
        assert!(over, "the drain has a bound");
        let held = blocking::wait(election.observe()).unwrap().leader;
        assert_eq!(
            held.map(|leader| leader.contender.id).as_deref(),
            Some("a"),
            "not released under the work"
        );
        leadership.check()
    });
    assert_eq!(output.unwrap(), None);
    blocking::run(election.candidate("b"), |_| ()).unwrap();
}

#[test]
fn work_that_panics_leaves_a_lease_that_runs_out() {
    let election = election("panic", 500);
    let candidate = election.candidate("a");
    let panicked =
        thread::spawn(move || blocking::run(candidate, |_| panic!("the work of this test panics"))).join();
    assert!(panicked.is_err());
    blocking::run(election.candidate("b"), |_| ()).unwrap();
}
