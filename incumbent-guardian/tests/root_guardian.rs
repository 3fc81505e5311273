//! Faults under the guardian that only root can inject.
#![cfg_attr(target_os = "linux", expect(clippy::unwrap_used, reason = "a test fails by panicking"))]

#[cfg(target_os = "linux")]
#[path = "guardian/harness.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod harness;
#[cfg(target_os = "linux")]
#[path = "guardian/parent.rs"]
mod parent;
#[cfg(target_os = "linux")]
#[path = "guardian/tree.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod tree;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(role) if role == incumbent_guardian::SUBCOMMAND => incumbent_guardian::guardian_main(args),
        Some(role) if role == parent::ROLE => parent::main(args),
        _ => libtest_mimic::run(&libtest_mimic::Arguments::from_args(), faults::tests()).exit_code(),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
mod faults {
    use std::fs::{self, File, Permissions};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::time::Duration;

    use incumbent_core::FencingToken;
    use incumbent_guardian::{GuardianEvent, KillCause, LeaseFileWriter, StartFailureKind, clock};
    use libtest_mimic::Trial;
    use rustix::process::Signal;
    use testkit::{Capability, Cgroup, Freezer, Mount, require};

    use crate::harness::{LONG, Parent, User, is_alive, scratch, send, sh, stat, until, until_ticking};
    use crate::parent::Plan;
    use crate::tree::{Tree, kill_both};

    pub(crate) fn tests() -> Vec<Trial> {
        vec![
            Trial::test("what_sleeps_uninterruptibly_is_reported_and_not_called_empty", || {
                what_sleeps_uninterruptibly_is_reported_and_not_called_empty();
                Ok(())
            }),
            Trial::test("what_cannot_be_killed_keeps_the_next_command_of_its_election_from_starting", || {
                what_cannot_be_killed_keeps_the_next_command_of_its_election_from_starting();
                Ok(())
            }),
            Trial::test("a_guardian_that_not_even_a_kill_reaches_is_noticed_and_its_tree_is_killed", || {
                a_guardian_that_not_even_a_kill_reaches_is_noticed_and_its_tree_is_killed();
                Ok(())
            }),
            Trial::test("a_term_on_another_boot_clock_is_not_taken_for_over", || {
                a_term_on_another_boot_clock_is_not_taken_for_over();
                Ok(())
            }),
            Trial::test("what_became_root_is_reported_and_not_called_empty", || {
                what_became_root_is_reported_and_not_called_empty();
                Ok(())
            }),
            Trial::test("a_full_disk_under_the_lease_file_is_an_error_before_the_start", || {
                a_full_disk_under_the_lease_file_is_an_error_before_the_start();
                Ok(())
            }),
        ]
    }

    fn not_empty(parent: &mut Parent) -> Vec<i32> {
        loop {
            match parent.event().0 {
                GuardianEvent::NotEmpty { pids } => return pids,
                GuardianEvent::Empty => panic!("called empty while something lives"),
                _ => {}
            }
        }
    }

    fn what_sleeps_uninterruptibly_is_reported_and_not_called_empty() {
        require(Capability::Root);
        let freezer = Freezer::new();
        let mut tree = Tree::new(LONG, 0);
        let mut parent = tree.start(User::Nobody);
        let pids = tree.lasting_pids();
        pids.iter().for_each(|pid| freezer.add(*pid as u32));
        freezer.freeze();
        parent.order("kill");
        let reported = not_empty(&mut parent);
        assert!(pids.iter().all(|pid| reported.contains(pid)), "{reported:?} lacks some of {pids:?}");

        // Without the guardian the parent finds the same.
        send(parent.guardian, Signal::KILL);
        until("the guardian is dead", || !is_alive(parent.guardian));
        let reported = not_empty(&mut parent);
        assert!(pids.iter().all(|pid| reported.contains(pid)), "{reported:?} lacks some of {pids:?}");

        freezer.thaw();
        parent.rest();
        tree.assert_dead();
    }

    /// Nobody guards what uninterruptibly sleeps, so the next guardian is to kill it, and cannot.
    fn what_cannot_be_killed_keeps_the_next_command_of_its_election_from_starting() {
        require(Capability::Root);
        let Some(apart) = Cgroup::new() else { return };
        let freezer = Freezer::new();
        let mut tree = Tree::new(LONG, 0);
        tree.plan.cgroup = Some(apart.path().into());
        let mut parent = tree.start(User::Own);
        let pids = tree.lasting_pids();
        pids.iter().for_each(|pid| freezer.add(*pid as u32));
        freezer.freeze();
        kill_both(&mut parent);

        let run = |election: &str| {
            let election = Some(election.to_owned());
            let (dir, argv) = (tree.dir.path().into(), sh("echo ran"));
            let mut parent = Parent::spawn(Plan { dir, argv, election, lease_ms: LONG, ..Plan::default() });
            let events = parent.rest();
            (events, parent.output.clone())
        };
        let (events, output) = run("billing");
        let [GuardianEvent::StartFailed(failure), GuardianEvent::Empty] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(failure.kind, StartFailureKind::Leftovers);
        for pid in pids {
            assert!(failure.message.contains(&pid.to_string()), "{failure} lacks {pid}");
        }
        assert!(output.is_empty(), "{output:?}");
        assert_eq!(run("another").1, ["ran"]);

        freezer.thaw();
        assert_eq!(run("billing").1, ["ran"]);
        tree.assert_dead();
    }

    /// It is held up in the kernel and will only die, so nothing is left that could do harm.
    fn a_guardian_that_not_even_a_kill_reaches_is_noticed_and_its_tree_is_killed() {
        require(Capability::Root);
        let freezer = Freezer::new();
        for user in [User::Own, User::Nobody] {
            let mut tree = Tree::new(LONG, 0);
            let mut parent = tree.start(user);
            freezer.add(parent.guardian as u32);
            freezer.freeze();
            assert_eq!(parent.event().0, GuardianEvent::Killing { cause: KillCause::GuardianSilent });
            // What lives is told of twice in a second.
            assert!((0..60).any(|_| parent.event().0 == GuardianEvent::Empty), "waited for who cannot die");
            tree.assert_dead();
            freezer.thaw();
            until("the guardian is dead", || !is_alive(parent.guardian));
        }
    }

    /// In its time namespace the clock is ahead, and the deadline of the other seems to have passed.
    fn a_term_on_another_boot_clock_is_not_taken_for_over() {
        require(Capability::Root);
        let (Some(apart), Some(ahead)) = (Cgroup::new(), Cgroup::new()) else { return };
        let mut tree = Tree::new(LONG, 0);
        tree.plan.cgroup = Some(apart.path().into());
        let mut parent = tree.start(User::Own);
        let wrapper = ["unshare", "--time", "--boottime", "100000", "--fork", "--kill-child"];
        let (dir, argv, cgroup) = (tree.dir.path().into(), sh("cat /proc/uptime"), Some(ahead.path().into()));
        let mut next =
            Parent::spawn_under(&wrapper, Plan { dir, argv, cgroup, lease_ms: LONG, ..Plan::default() });
        next.rest();
        let uptime: f64 = next.output[0].split(' ').next().unwrap().parse().unwrap();
        assert!(uptime > 100_000.0, "the clock is not ahead, and this test shows nothing");
        tree.files.iter().for_each(|file| until_ticking(file));
        parent.order("kill");
        parent.rest();
        tree.assert_dead();
    }

    /// A job that uses sudo: what runs as another user is out of the guardian's reach.
    fn what_became_root_is_reported_and_not_called_empty() {
        require(Capability::Root);
        let dir = scratch();
        let sudo = dir.path().join("sudo");
        let setpriv = Command::new("sh").args(["-c", "command -v setpriv"]).output().unwrap().stdout;
        fs::copy(String::from_utf8(setpriv).unwrap().trim(), &sudo).unwrap();
        fs::set_permissions(&sudo, Permissions::from_mode(0o4755)).unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!(
            "{} --reuid=0 --regid=0 --clear-groups sh -c 'echo $$ >{}; exec sleep 600' & sleep 600",
            sudo.display(),
            pid_file.display()
        );
        let plan = Plan { dir: dir.path().into(), argv: sh(&script), lease_ms: LONG, ..Plan::default() };
        let mut parent = Parent::spawn_as(User::Nobody, plan);
        parent.started();
        let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<i32>().ok();
        until("it sleeps as root", || pid().and_then(stat).is_some());
        let pid = pid().unwrap();

        parent.order("kill");
        assert_eq!(not_empty(&mut parent), [pid]);
        send(pid, Signal::KILL);
        parent.rest();
    }

    fn a_full_disk_under_the_lease_file_is_an_error_before_the_start() {
        require(Capability::Root);
        let disk = Mount::new("tmpfs", "size=64k");
        let create = || {
            let election = "billing".parse().unwrap();
            LeaseFileWriter::create(disk.path(), &election, FencingToken(1), clock::now())
        };
        let mut before = create().unwrap();
        let mut filler = File::create(disk.path().join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}

        assert_eq!(create().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 2, "a half-made file is left");
        // A term that has its file already can still renew and end.
        before.set_deadline(clock::now() + Duration::from_secs(1)).unwrap();
        before.end().unwrap();
    }
}
