//! Deadlines, deaths and freezes of the guardian, the parent and both.

use std::fs::{self, File};
use std::time::Duration;

use incumbent_guardian::{ExitStatus, GuardianEvent, KillCause, clock};
use libtest_mimic::Trial;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use testkit::Cgroup;

use crate::harness::{
    LONG, Parent, User, descriptors, is_alive, is_stopped, marked, own_cgroup, send, set_deadline, sh,
    ticker, until, until_ticking, users,
};
use crate::parent::Plan;
use crate::test;
use crate::tree::{Tree, freeze, kill_both};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test!(etcd_e3_consul_9788_the_tree_is_dead_at_the_deadline),
        test!(kubernetes_23731_a_renewed_term_goes_on_and_an_ended_one_is_killed_at_once),
        test!(a_lease_that_is_over_starts_nothing),
        test!(a_truncated_lease_file_is_the_end),
        test!(i7_sigkill_of_the_guardian_kills_the_tree),
        test!(i7_sigkill_of_the_parent_kills_the_tree),
        test!(a_frozen_guardian_does_not_save_the_tree_at_the_deadline),
        test!(a_frozen_guardian_does_not_save_the_tree_from_a_kill),
        test!(systemd_stops_every_process_of_a_service_but_the_guardian_goes_on),
        test!(the_death_of_one_guardian_harms_no_other_tree),
        test!(a_frozen_parent_does_not_save_the_tree_at_the_deadline),
        test!(both_frozen_the_guardian_wakes_first_and_no_tick_follows),
        test!(both_frozen_the_parent_wakes_first_and_no_tick_follows),
        test!(both_frozen_and_the_guardian_killed_the_parent_kills_on_waking),
        test!(i7_sigkill_of_both_at_once_kills_the_commands_own_process),
        test!(what_both_left_is_dead_before_the_next_command_starts),
        test!(what_both_left_is_found_by_one_that_has_waited_and_looks_elsewhere),
        test!(stellar_core_883_the_lock_is_free_only_when_all_are_gone),
    ]
}

fn position(events: &[GuardianEvent], wanted: &GuardianEvent) -> usize {
    let found = events.iter().position(|event| event == wanted);
    found.unwrap_or_else(|| panic!("no {wanted:?} in {events:?}"))
}

pub(crate) fn killing(cause: KillCause) -> GuardianEvent {
    GuardianEvent::Killing { cause }
}

fn etcd_e3_consul_9788_the_tree_is_dead_at_the_deadline() {
    for user in users() {
        // Ten seconds of lead are for a busy machine; the kill itself takes some milliseconds.
        let mut tree = Tree::new(LONG, 10_000);
        let mut parent = tree.start(user);
        let before = clock::now();
        parent.order("renew 11000");
        let (event, at) = parent.event();
        assert_eq!(event, killing(KillCause::Deadline));
        assert!(at >= (before + Duration::from_secs(1)).as_nanos(), "killed before its time");
        let mut last = parent.event();
        while last.0 != GuardianEvent::Empty {
            last = parent.event();
        }
        assert!(last.1 < (before + Duration::from_secs(11)).as_nanos(), "killed after the deadline");
        tree.assert_dead();
    }
}

fn kubernetes_23731_a_renewed_term_goes_on_and_an_ended_one_is_killed_at_once() {
    let mut tree = Tree::new(3_000, 100);
    let mut parent = tree.start(User::Own);
    let first_deadline = clock::now() + Duration::from_secs(3);
    while clock::now() < first_deadline {
        parent.order("renew 5000");
        std::thread::sleep(Duration::from_millis(100));
    }
    parent.order(&format!("renew {LONG}"));
    tree.files.iter().for_each(|file| until_ticking(file));
    // Nobody orders a kill: the guardian hears of the end by itself, an hour before the deadline.
    parent.order("end");
    let events = parent.rest();
    assert_eq!(events[0], killing(KillCause::Deadline));
    tree.assert_dead();
}

fn a_lease_that_is_over_starts_nothing() {
    let mut tree = Tree::new(0, 0);
    let files = tree.files.clone();
    let mut parent = Parent::spawn(std::mem::take(&mut tree.plan));
    assert_eq!(parent.rest(), [killing(KillCause::Deadline), GuardianEvent::Empty]);
    assert!(files.iter().all(|file| !file.exists()), "the command ran");
}

fn a_truncated_lease_file_is_the_end() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    File::options().write(true).open(&parent.lease_file).unwrap().set_len(7).unwrap();
    // A truncation is a change like any other, so nobody has to wait for the deadline.
    assert_eq!(parent.rest()[0], killing(KillCause::Deadline));
    tree.assert_dead();
}

fn i7_sigkill_of_the_guardian_kills_the_tree() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(user);
        send(parent.guardian, Signal::KILL);
        let events = parent.rest();
        assert_eq!(events[0], killing(KillCause::GuardianLost));
        position(&events, &GuardianEvent::Exited(ExitStatus::Signal(9)));
        tree.assert_dead();
    }
}

fn i7_sigkill_of_the_parent_kills_the_tree() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(user);
        let guardian = parent.guardian;
        parent.send(Signal::KILL);
        parent.wait();
        until("the guardian has done its work", || !is_alive(guardian));
        tree.assert_dead();
        assert!(!parent.lease_file.exists(), "the lease file of a dead writer is left behind");
    }
}

fn a_frozen_guardian_does_not_save_the_tree_at_the_deadline() {
    for user in users() {
        let mut tree = Tree::new(LONG, 1_000);
        let mut parent = tree.start(user);
        freeze(parent.guardian);
        parent.order("renew 1500");
        let events = parent.rest();
        assert_eq!(events[0], killing(KillCause::Deadline));
        tree.assert_dead();
        until("the guardian is dead", || !is_alive(parent.guardian));
    }
}

fn a_frozen_guardian_does_not_save_the_tree_from_a_kill() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(user);
        freeze(parent.guardian);
        parent.order("kill");
        assert_eq!(parent.rest()[0], killing(KillCause::Requested));
        tree.assert_dead();
    }
}

fn systemd_stops_every_process_of_a_service_but_the_guardian_goes_on() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::TSTP, Signal::USR1] {
        send(parent.guardian, signal);
    }
    tree.files.iter().for_each(|file| until_ticking(file));
    parent.order(&format!("signal {}", Signal::TERM.as_raw()));
    let status = ExitStatus::Signal(Signal::TERM.as_raw());
    assert_eq!(parent.rest(), [GuardianEvent::Exited(status), GuardianEvent::Empty]);
    tree.assert_dead();
}

fn the_death_of_one_guardian_harms_no_other_tree() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let other = tree.dir.path().join("other");
        // Also a child that the parent had before, in a session of its own, as after `setsid daemon & exec incumbent`.
        let older = tree.dir.path().join("older");
        tree.plan.bystander = Some(sh(&ticker(&other)));
        tree.plan.older_child = Some(["setsid".into()].into_iter().chain(sh(&ticker(&older))).collect());
        let mut parent = tree.start(user);
        until_ticking(&other);
        until_ticking(&older);
        send(parent.guardian, Signal::KILL);
        while parent.event().0 != GuardianEvent::Empty {}
        tree.assert_dead();
        until_ticking(&other);
        until_ticking(&older);
        marked(&older).into_iter().for_each(|pid| send(pid, Signal::KILL));
    }
}

fn a_frozen_parent_does_not_save_the_tree_at_the_deadline() {
    for user in users() {
        let mut tree = Tree::new(LONG, 1_000);
        let mut parent = tree.start(user);
        freeze(parent.pid());
        set_deadline(&parent.lease_file, Duration::from_millis(1_500));
        until("the tree is dead", || tree.pids().is_empty());
        assert!(is_stopped(parent.pid()));
        tree.assert_dead();
        parent.send(Signal::CONT);
        let events = parent.rest();
        position(&events, &killing(KillCause::Deadline));
    }
}

/// Freezes parent, guardian and tree past the deadline.
fn frozen_past_the_deadline(user: User) -> (Tree, Parent, u64) {
    let mut tree = Tree::new(LONG, 0);
    let parent = tree.start(user);
    freeze(parent.guardian);
    freeze(parent.pid());
    tree.freeze();
    set_deadline(&parent.lease_file, Duration::from_millis(100));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!tree.pids().is_empty(), "the tree died of something else");
    let total = tree.total();
    (tree, parent, total)
}

fn both_frozen_the_guardian_wakes_first_and_no_tick_follows() {
    for user in users() {
        let (tree, mut parent, total) = frozen_past_the_deadline(user);
        send(parent.guardian, Signal::CONT);
        until("the tree is dead", || tree.pids().is_empty());
        assert_eq!(tree.total(), total, "user code ran after the guardian woke");
        tree.assert_dead();
        parent.send(Signal::CONT);
        parent.rest();
        assert_eq!(tree.total(), total);
    }
}

fn both_frozen_the_parent_wakes_first_and_no_tick_follows() {
    for user in users() {
        let (tree, mut parent, total) = frozen_past_the_deadline(user);
        parent.send(Signal::CONT);
        parent.rest();
        assert_eq!(tree.total(), total, "user code ran after the parent woke");
        tree.assert_dead();
    }
}

fn both_frozen_and_the_guardian_killed_the_parent_kills_on_waking() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(user);
        freeze(parent.pid());
        freeze(parent.guardian);
        send(parent.guardian, Signal::KILL);
        until("the guardian is dead", || !is_alive(parent.guardian));
        parent.send(Signal::CONT);
        let events = parent.rest();
        assert_eq!(events[0], killing(KillCause::GuardianLost));
        tree.assert_dead();
    }
}

/// Elsewhere the grandchild is killed with the others by the first guardian that comes along.
fn i7_sigkill_of_both_at_once_kills_the_commands_own_process() {
    for user in users() {
        let apart = Cgroup::new().filter(|_| user == User::Own);
        let mut tree = Tree::new(LONG, 0);
        tree.plan.cgroup = apart.as_ref().map(|cgroup| cgroup.path().into());
        let mut parent = tree.start(user);
        let threads = fs::read_dir(format!("/proc/{}/task", parent.guardian)).unwrap().count();
        assert_eq!(
            threads, 1,
            "the kernel tells of the death of the thread that forked, not of the process's"
        );
        kill_both(&mut parent);
        until("the command's own process is dead", || !is_alive(tree.main));
        until_ticking(&tree.files[2]);
        until("the rest is dead", || {
            tree.pids().into_iter().for_each(|pid| send(pid, Signal::KILL));
            tree.pids().is_empty()
        });
    }
}

fn what_both_left_is_dead_before_the_next_command_starts() {
    // In cgroups apart, so that only the link beside the lease file leads from one to the other.
    let (Some(first), Some(second)) = (Cgroup::new(), Cgroup::new()) else { return };
    let mut tree = Tree::new(LONG, 0);
    let dir = tree.dir.path().to_owned();
    let only = format!("exec 9>>{}; flock -n 9 || echo OVERLAP; ", dir.join("only").display());
    let script = only.clone() + tree.plan.argv[2].to_str().unwrap();
    tree.plan.argv = sh(&script);
    tree.plan.cgroup = Some(first.path().into());
    let mut parent = tree.start(User::Own);
    let mut guarded = Tree::new(LONG, 0);
    guarded.plan.dir = dir.clone();
    guarded.plan.cgroup = Some(first.path().into());
    let mut other = guarded.start(User::Own);
    kill_both(&mut parent);
    until_ticking(&tree.files[2]);

    let argv = sh(&(only + "echo first"));
    let cgroup = Some(second.path().into());
    let mut next = Parent::spawn(Plan { dir: dir.clone(), argv, cgroup, lease_ms: LONG, ..Plan::default() });
    next.started();
    assert_eq!(next.rest(), [GuardianEvent::Exited(ExitStatus::Code(0)), GuardianEvent::Empty]);
    assert_eq!(next.output, ["first"]);
    tree.assert_dead();

    // Whoever has a guardian is left alone.
    guarded.files.iter().for_each(|file| until_ticking(file));
    let links = || {
        let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        entries.filter_map(|path| fs::read_link(path).ok()).collect::<Vec<_>>()
    };
    assert_eq!(links(), [own_cgroup(guarded.main).unwrap()]);
    other.order("kill");
    other.rest();
    // It is removed after the guardian has told that nothing is left.
    until("the link is removed", || links().is_empty());
}

/// As where one run came from a login and the other from cron: their lease files lie in different places.
fn what_both_left_is_found_by_one_that_has_waited_and_looks_elsewhere() {
    let Some(apart) = Cgroup::new() else { return };
    let mut tree = Tree::new(LONG, 0);
    tree.plan.cgroup = Some(apart.path().into());
    let mut parent = tree.start(User::Own);
    let elsewhere = tempfile::tempdir().unwrap();
    let (dir, argv, cgroup) = (elsewhere.path().into(), sh("exit 3"), Some(apart.path().into()));
    let mut next =
        Parent::spawn(Plan { dir, argv, cgroup, lease_ms: LONG, standby: true, ..Plan::default() });
    kill_both(&mut parent);
    until_ticking(&tree.files[2]);
    next.order("start");
    next.started();
    assert_eq!(next.rest(), [GuardianEvent::Exited(ExitStatus::Code(3)), GuardianEvent::Empty]);
    tree.assert_dead();
}

fn stellar_core_883_the_lock_is_free_only_when_all_are_gone() {
    // Apart, since the next guardian beside it would kill the tree.
    let apart = Cgroup::new();
    let mut tree = Tree::new(LONG, 0);
    tree.plan.cgroup = apart.as_ref().map(|cgroup| cgroup.path().into());
    let lock = tree.dir.path().join("lock");
    tree.plan.lock = Some(lock.clone());
    let mut parent = tree.start(User::Own);
    let guardian_holds = descriptors(parent.guardian).into_iter().any(|fd| {
        fs::read_link(format!("/proc/{}/fd/{fd}", parent.guardian)).is_ok_and(|target| target == lock)
    });
    assert!(guardian_holds, "the guardian does not hold the lock");
    let lock = File::open(lock).unwrap();
    let free = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();

    let cgroup = tree.pids().into_iter().find_map(own_cgroup);

    // Parent and guardian die at once, so nobody is left to kill: the kernel still knows who holds the lock.
    kill_both(&mut parent);
    assert!(!tree.pids().is_empty() && !free(), "the lock is free while the tree lives");

    let pids = tree.lasting_pids();
    let (last, others) = pids.split_last().unwrap();
    others.iter().for_each(|pid| send(*pid, Signal::KILL));
    until("one is left", || others.iter().all(|pid| !is_alive(*pid)));
    assert!(!free(), "the lock is free while the grandchild lives");
    send(*last, Signal::KILL);
    until("the lock is free", free);

    // Nobody could tidy up, so the next guardian does.
    let argv = sh("exit 0");
    let dir = tree.dir.path().into();
    Parent::spawn(Plan { dir, argv, lease_ms: LONG, ..Plan::default() }).rest();
    until("the cgroup is removed", || cgroup.as_ref().is_none_or(|cgroup| !cgroup.exists()));
}
