//! Leaders that die, go, freeze and wake.

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use testkit::{Signal, now, run_dir, wait_until};

use crate::LONG;
use crate::process::{Candidate, PATIENCE, SHORT, url};

/// Freezes it, but not inside a commit: then its election would wait for it.
fn freeze(candidate: &Candidate, dir: &Path) {
    loop {
        candidate.proc.signal(Signal::STOP);
        // A stop takes effect when the last thread has come back from the kernel.
        std::thread::sleep(Duration::from_millis(50));
        let locks = ["billing.lock", "billing.record"].map(|name| dir.join(name));
        if locks.iter().all(|lock| File::open(lock).is_ok_and(|lock| lock.try_lock_shared().is_ok())) {
            return;
        }
        candidate.proc.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_killed_leader_is_followed_without_waiting_for_its_lease() {
    let dir = run_dir("killed");
    let url = url(&dir, LONG);
    let mut leader = Candidate::start(&url, "a");
    let (_, mut token) = leader.elected(1);
    let mut took = Vec::new();
    for round in 0..15 {
        let next = Candidate::start(&url, &format!("n{round}"));
        next.line("leader ", 1);
        let killed = now();
        leader.proc.signal(Signal::KILL);
        let (at, newer) = next.elected(1);
        took.push(at.since(killed));
        assert!(newer > token, "{newer} > {token}");
        (leader, token) = (next, newer);
    }
    took.sort();
    println!("from kill to elected: median {:?}, longest {:?}", took[took.len() / 2], took[took.len() - 1]);
    assert!(took[took.len() - 1] < LONG / 2, "{took:?}");
}

#[test]
fn a_leader_that_goes_is_followed_without_waiting_for_its_lease() {
    let dir = run_dir("goes");
    let mut leader = Candidate::start(&url(&dir, LONG), "a");
    leader.elected(1);
    let mut standby = Candidate::start(&url(&dir, LONG), "b");
    standby.line("leader a", 1);
    leader.tell("resign");
    let (at, _) = standby.elected(1);
    assert!(at.since(leader.line("lost Stopped(Resigned)", 1).at) < LONG / 2);
    // And back: the one that resigned stands for election again.
    leader.line("leader b", 1);
    standby.tell("stop");
    leader.elected(2);
    assert!(standby.proc.wait(PATIENCE).success());
}

/// malkuth E6: a leader that was frozen past its lease writes its old record back, and then there are two for ever.
#[test]
fn malkuth_e6_a_frozen_leader_that_wakes_knows_that_it_is_over() {
    let dir = run_dir("frozen");
    let mut old = Candidate::start(&url(&dir, SHORT), "old");
    let (_, token) = old.elected(1);
    let new = Candidate::start(&url(&dir, SHORT), "new");
    new.line("leader old", 1);
    freeze(&old, &dir);
    let (_, newer) = new.elected(1);
    assert!(newer > token);
    old.tell("check");
    old.proc.signal(Signal::CONT);
    // The first check after the wake-up, on a thread that nothing has told anything yet.
    old.line("check over", 1);
    old.line("lost ", 1);
    old.line("leader new", 1);
    sleep(SHORT * 2);
    assert_eq!((new.count("lost "), new.count("elected ")), (0, 1), "{}", new.proc.transcript());
    assert_eq!(old.count("elected "), 1, "{}", old.proc.transcript());
    old.tell("check");
    old.line("check over", 2);
}

/// A frozen leader cannot see that its record was removed, and its work may go on until its lease is over.
#[test]
fn a_record_that_is_removed_while_its_leader_is_frozen_counts_as_held() {
    let dir = run_dir("frozen-removed");
    let old = Candidate::start(&url(&dir, SHORT), "old");
    old.elected(1);
    freeze(&old, &dir);
    fs::remove_file(dir.join("billing.record")).unwrap();
    let removed = now();
    let new = Candidate::start(&url(&dir, SHORT), "new");
    let (elected, _) = new.elected(1);
    assert!(elected.since(removed) >= SHORT, "{:?} is no ttl", elected.since(removed));

    let dir = run_dir("frozen-removed-killed");
    let old = Candidate::start(&url(&dir, LONG), "old");
    old.elected(1);
    freeze(&old, &dir);
    fs::remove_file(dir.join("billing.record")).unwrap();
    let new = Candidate::start(&url(&dir, LONG), "new");
    assert!(wait_until(PATIENCE, || dir.join("billing.record").exists()));
    assert_eq!(new.count("elected "), 0);
    let killed = now();
    old.proc.signal(Signal::KILL);
    let (elected, _) = new.elected(1);
    assert!(elected.since(killed) < LONG / 2, "it need not wait for one that is certainly gone");
}

/// With the directory went what says who may lead. The frozen one still holds its lock, though on a file that has no name any more.
#[test]
fn a_directory_that_is_removed_or_moved_while_its_leader_is_frozen_counts_as_led() {
    let dir = run_dir("frozen-directory-removed");
    let mut old = Candidate::start(&url(&dir, SHORT * 3), "old");
    old.elected(1);
    freeze(&old, &dir);
    fs::remove_dir_all(&dir).unwrap();
    let removed = now();
    // Whoever comes may be less patient than the one that is waited for.
    let new = [SHORT, SHORT * 3].map(|ttl| Candidate::start(&url(&dir, ttl), "new"));
    let elected = || new.iter().map(|one| one.count("elected ")).sum::<usize>();
    assert!(wait_until(PATIENCE, || elected() > 0));
    assert!(now().since(removed) >= SHORT * 3, "{:?} is not its ttl", now().since(removed));
    old.tell("check");
    old.proc.signal(Signal::CONT);
    old.line("check over", 1);

    // The same for one that was moved away.
    let dir = run_dir("frozen-directory-moved");
    let old = Candidate::start(&url(&dir, SHORT), "old");
    old.elected(1);
    freeze(&old, &dir);
    fs::rename(&dir, dir.with_extension("moved")).unwrap();
    let moved = now();
    let (elected, _) = Candidate::start(&url(&dir, SHORT), "new").elected(1);
    assert!(elected.since(moved) >= SHORT, "{:?} is no ttl", elected.since(moved));

    // One that only stood by, or is dead, is in nobody's way.
    let dir = run_dir("frozen-standby-directory-removed");
    let leader = Candidate::start(&url(&dir, LONG), "leader");
    leader.elected(1);
    let standby = Candidate::start(&url(&dir, LONG), "standby");
    standby.line("leader leader", 1);
    freeze(&standby, &dir);
    leader.proc.signal(Signal::KILL);
    leader.proc.wait(PATIENCE);
    fs::remove_dir_all(&dir).unwrap();
    let removed = now();
    let (elected, _) = Candidate::start(&url(&dir, LONG), "new").elected(1);
    assert!(elected.since(removed) < LONG / 2, "{:?}", elected.since(removed));
}

/// kube-leader-election: all who saw the same lease run out were told that they had won.
#[test]
fn of_many_who_saw_the_same_lease_run_out_one_wins() {
    let dir = run_dir("many");
    let old = Candidate::start(&url(&dir, SHORT), "old");
    old.elected(1);
    let many: Vec<_> = (0..6).map(|n| Candidate::start(&url(&dir, SHORT), &format!("n{n}"))).collect();
    for one in &many {
        one.line("leader old", 1);
    }
    freeze(&old, &dir);
    let elected = || many.iter().map(|one| one.count("elected ")).sum::<usize>();
    assert!(wait_until(PATIENCE, || elected() > 0));
    sleep(SHORT);
    assert_eq!(elected(), 1);
}

#[test]
fn two_processes_with_one_id_exclude_each_other_and_say_so() {
    let dir = run_dir("one-id");
    let mut first = Candidate::start(&url(&dir, LONG), "same");
    first.elected(1);
    let second = Candidate::start(&url(&dir, LONG), "same");
    second.line("same id same", 1);
    assert_eq!(second.count("elected "), 0);
    first.tell("stop");
    second.elected(1);
}

/// As with flock(1): what the leader has started keeps the lock, so that a killed leader's work is never joined by another's.
#[test]
fn a_child_that_holds_the_lock_keeps_the_next_one_out() {
    let dir = run_dir("child");
    let mut leader = Candidate::start(&url(&dir, LONG), "a");
    leader.elected(1);
    leader.tell("share");
    let shared = leader.line("shared with ", 1).text;
    let standby = Candidate::start(&url(&dir, LONG), "b");
    standby.line("leader a", 1);
    let killed = now();
    leader.proc.signal(Signal::KILL);
    sleep(Duration::from_secs(1));
    assert_eq!(standby.count("elected "), 0);
    let child = Pid::from_raw(shared["shared with ".len()..].parse().unwrap()).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    let (at, _) = standby.elected(1);
    assert!(at.since(killed) < LONG / 2);
}

/// The next one to come, or to win, takes away what the dead have left.
#[test]
fn what_the_dead_leave_is_swept() {
    let dir = run_dir("swept");
    let mut dead: Vec<_> = (0..4).map(|n| Candidate::start(&url(&dir, LONG), &format!("n{n}"))).collect();
    assert!(wait_until(PATIENCE, || dead.iter().any(|one| one.count("elected ") == 1)));
    for one in &dead {
        assert!(wait_until(PATIENCE, || one.count("elected ") + one.count("leader ") > 0));
    }
    for one in dead.drain(..) {
        one.proc.signal(Signal::KILL);
    }
    let next = Candidate::start(&url(&dir, LONG), "next");
    next.elected(1);
    let alive = || {
        let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|kind| kind == "alive")).count()
    };
    assert!(wait_until(PATIENCE, || alive() == 1), "{} files are left", alive());
}

#[test]
fn whoever_looks_sees_the_living_candidates() {
    let dir = run_dir("looks");
    let url = url(&dir, LONG);
    let leader = Candidate::start(&url, "a");
    leader.elected(1);
    let standby = Candidate::start(&url, "b");
    standby.line("leader a", 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let election = runtime.block_on(incumbent::connect(&url)).unwrap().election("billing");
    let look = || {
        let seen = runtime.block_on(election.observe()).unwrap();
        let ids = seen.candidates.unwrap().into_iter().map(|one| (one.id, one.address.unwrap()));
        (seen.leader.map(|leader| leader.contender.id), ids.collect::<Vec<_>>())
    };
    let here = |ids: &[&str]| ids.iter().map(|id| ((*id).to_owned(), "here".to_owned())).collect::<Vec<_>>();
    assert_eq!(look(), (Some("a".to_owned()), here(&["a", "b"])));
    standby.proc.signal(Signal::KILL);
    standby.proc.wait(PATIENCE);
    assert_eq!(look(), (Some("a".to_owned()), here(&["a"])));
    leader.proc.signal(Signal::KILL);
    leader.proc.wait(PATIENCE);
    assert_eq!(look(), (None, here(&[])));
}
