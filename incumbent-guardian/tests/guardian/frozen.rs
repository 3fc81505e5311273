//! A guardian that is frozen while nothing has to be killed, and a parent that notices.

use std::fs;
use std::path::Path;
use std::time::Duration;

use incumbent_guardian::{ExitStatus, GuardianEvent, KillCause, clock};
use libtest_mimic::Trial;
use rustix::process::Signal;
use testkit::Cgroup;

use crate::faults::killing;
use crate::harness::{LONG, Parent, User, is_alive, send, set_deadline, sh, until, until_ticking, users};
use crate::parent::Plan;
use crate::test;
use crate::tree::{Tree, freeze};

/// Longer than a silent guardian is waited for.
const LONG_SILENCE: Duration = Duration::from_secs(7);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test!(a_frozen_guardian_is_noticed_while_the_command_runs),
        test!(a_guardian_in_a_frozen_cgroup_is_noticed),
        test!(a_frozen_guardian_does_not_hide_the_end_of_the_command),
        test!(a_signal_reaches_the_command_of_a_frozen_guardian),
        test!(a_launcher_that_was_stopped_is_woken_to_become_the_command),
        test!(a_launcher_that_does_not_wake_is_given_up),
        test!(a_guardian_that_is_frozen_before_the_start_starts_nothing),
        test!(parent_and_guardian_frozen_together_go_on_when_they_wake),
        test!(a_guardian_that_is_frozen_for_a_moment_goes_on),
        test!(what_frozen_keepers_left_is_dead_before_the_next_command_starts),
        test!(what_frozen_keepers_hold_in_a_good_term_is_left_alone),
    ]
}

const SILENT: GuardianEvent = GuardianEvent::Killing { cause: KillCause::GuardianSilent };
const KILLED: GuardianEvent = GuardianEvent::Exited(ExitStatus::Signal(9));

fn a_frozen_guardian_is_noticed_while_the_command_runs() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(user);
        freeze(parent.guardian);
        let frozen = clock::now();
        assert_eq!(parent.rest(), [SILENT, KILLED, GuardianEvent::Empty]);
        let took = clock::now().since(frozen);
        assert!(
            took < Duration::from_secs(30),
            "noticed after {took:?}, and it is about 5 s on an idle machine"
        );
        tree.assert_dead();
        until("the guardian is dead", || !is_alive(parent.guardian));
    }
}

fn a_guardian_in_a_frozen_cgroup_is_noticed() {
    let Some(freezer) = Cgroup::new() else { return };
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    fs::write(freezer.path().join("cgroup.procs"), parent.guardian.to_string()).unwrap();
    fs::write(freezer.path().join("cgroup.freeze"), "1").unwrap();
    assert_eq!(parent.rest(), [SILENT, KILLED, GuardianEvent::Empty]);
    tree.assert_dead();
}

/// A guardian that sleeps could not reap it, so its parent does, and tells with which code it ended.
fn a_frozen_guardian_does_not_hide_the_end_of_the_command() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let go = tree.dir.path().join("go");
        let script = tree.plan.argv[2].to_str().unwrap().to_owned();
        tree.plan.argv =
            sh(&format!("({script}) & until [ -e {} ]; do sleep 0.01; done; exit 7", go.display()));
        let mut parent = tree.start(user);
        freeze(parent.guardian);
        fs::write(&go, "").unwrap();
        let exited = GuardianEvent::Exited(ExitStatus::Code(7));
        assert_eq!(parent.rest(), [exited, SILENT, GuardianEvent::Empty]);
        tree.assert_dead();
    }
}

fn a_signal_reaches_the_command_of_a_frozen_guardian() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    freeze(parent.guardian);
    parent.order(&format!("signal {}", Signal::TERM.as_raw()));
    let told = GuardianEvent::Exited(ExitStatus::Signal(Signal::TERM.as_raw()));
    assert_eq!(parent.rest(), [told, SILENT, GuardianEvent::Empty]);
    tree.assert_dead();
}

fn a_launcher_that_was_stopped_is_woken_to_become_the_command() {
    for user in users() {
        let mut tree = Tree::new(LONG, 0);
        let mut parent = Parent::spawn_as(user, Plan { standby: true, ..std::mem::take(&mut tree.plan) });
        freeze(launcher(&parent));
        parent.order("start");
        parent.started();
        tree.files.iter().for_each(|file| until_ticking(file));
        parent.order("kill");
        parent.rest();
        tree.assert_dead();
    }
}

/// In a cgroup that somebody else has frozen: it is not started, and the next guardian may do better.
fn a_launcher_that_does_not_wake_is_given_up() {
    let Some(freezer) = Cgroup::new() else { return };
    let mut tree = Tree::new(LONG, 0);
    let mut parent = Parent::spawn(Plan { standby: true, ..std::mem::take(&mut tree.plan) });
    fs::write(freezer.path().join("cgroup.procs"), launcher(&parent).to_string()).unwrap();
    fs::write(freezer.path().join("cgroup.freeze"), "1").unwrap();
    parent.order("start");
    assert_eq!(parent.rest(), [killing(KillCause::LauncherSilent), GuardianEvent::Empty]);
    assert_eq!(tree.total(), 0);
}

/// The child of a guardian that waits.
fn launcher(parent: &Parent) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", parent.guardian);
    let mut launcher = None;
    until("there is a launcher", || fs::read_to_string(&children).is_ok_and(|pids| !pids.trim().is_empty()));
    for pid in fs::read_to_string(&children).unwrap().split_whitespace() {
        assert!(launcher.replace(pid.parse().unwrap()).is_none(), "there are two");
    }
    launcher.unwrap()
}

fn a_guardian_that_is_frozen_before_the_start_starts_nothing() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = Parent::spawn(Plan { standby: true, ..std::mem::take(&mut tree.plan) });
    freeze(parent.guardian);
    parent.order("start");
    assert_eq!(parent.rest(), [SILENT, GuardianEvent::Empty]);
    assert_eq!(tree.total(), 0);
    tree.assert_dead();
}

/// As after a suspend, or a pause of the container: the time in which both stood still does not count.
fn parent_and_guardian_frozen_together_go_on_when_they_wake() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    for _ in 0..2 {
        freeze(parent.guardian);
        // It is asked for an answer in this time.
        std::thread::sleep(Duration::from_millis(2_200));
        freeze(parent.pid());
        std::thread::sleep(LONG_SILENCE);
        parent.send(Signal::CONT);
        // One wakes before the other.
        std::thread::sleep(Duration::from_secs(1));
        send(parent.guardian, Signal::CONT);
        std::thread::sleep(Duration::from_secs(2));
    }
    tree.files.iter().for_each(|file| until_ticking(file));
    parent.order("kill");
    assert_eq!(parent.rest(), [killing(KillCause::Requested), KILLED, GuardianEvent::Empty]);
    tree.assert_dead();
}

fn a_guardian_that_is_frozen_for_a_moment_goes_on() {
    let mut tree = Tree::new(LONG, 0);
    let mut parent = tree.start(User::Own);
    for _ in 0..5 {
        freeze(parent.guardian);
        std::thread::sleep(Duration::from_secs(1));
        send(parent.guardian, Signal::CONT);
        std::thread::sleep(Duration::from_secs(1));
    }
    tree.files.iter().for_each(|file| until_ticking(file));
    parent.order("kill");
    assert_eq!(parent.rest(), [killing(KillCause::Requested), KILLED, GuardianEvent::Empty]);
}

/// A tree in a cgroup apart, its guardian and its parent frozen.
fn frozen_keepers(dir: Option<&Path>, election: &str) -> Option<(Cgroup, Tree, Parent)> {
    let apart = Cgroup::new()?;
    let mut tree = Tree::new(LONG, 0);
    tree.plan.cgroup = Some(apart.path().into());
    tree.plan.election = Some(election.into());
    if let Some(dir) = dir {
        tree.plan.dir = dir.into();
    }
    let parent = tree.start(User::Own);
    freeze(parent.guardian);
    freeze(parent.pid());
    Some((apart, tree, parent))
}

/// Runs a command of `billing` to its end, from a cgroup of its own.
fn run_next(dir: &Path) {
    let apart = Cgroup::new().unwrap();
    let (dir, argv, cgroup) = (dir.into(), sh("exit 3"), Some(apart.path().into()));
    let mut next = Parent::spawn(Plan { dir, argv, cgroup, lease_ms: LONG, ..Plan::default() });
    next.started();
    assert_eq!(next.rest(), [GuardianEvent::Exited(ExitStatus::Code(3)), GuardianEvent::Empty]);
}

fn what_frozen_keepers_left_is_dead_before_the_next_command_starts() {
    for parent_is in [Signal::STOP, Signal::KILL] {
        let Some((_apart, tree, mut parent)) = frozen_keepers(None, "billing") else { return };
        set_deadline(&parent.lease_file, Duration::ZERO);
        parent.send(parent_is);
        assert!(!tree.pids().is_empty(), "then this test shows nothing");
        run_next(tree.dir.path());
        tree.assert_dead();
        // Awake, the guardian finds nothing, and ends.
        send(parent.guardian, Signal::CONT);
        until("the guardian ends", || !is_alive(parent.guardian));
        if parent_is == Signal::STOP {
            parent.send(Signal::CONT);
            assert_eq!(parent.rest()[0], killing(KillCause::Deadline));
        }
        let links = fs::read_dir(tree.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(links.filter(|path| path.is_symlink()).count(), 0);
    }
}

fn what_frozen_keepers_hold_in_a_good_term_is_left_alone() {
    // One whose lease is good for an hour, and one of another election, whose own successor kills it.
    let Some((_first_apart, good, first)) = frozen_keepers(None, "billing") else { return };
    let dir = good.dir.path();
    let Some((_second_apart, other, second)) = frozen_keepers(Some(dir), "shipping") else { return };
    set_deadline(&second.lease_file, Duration::ZERO);
    run_next(dir);
    // Whoever removes the lease file has not ended the term.
    fs::remove_file(&first.lease_file).unwrap();
    run_next(dir);
    good.files.iter().chain(&other.files).for_each(|file| until_ticking(file));
    for mut parent in [first, second] {
        send(parent.guardian, Signal::CONT);
        parent.send(Signal::CONT);
        parent.order("kill");
        parent.rest();
    }
}
