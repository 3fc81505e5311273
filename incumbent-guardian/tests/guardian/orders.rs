//! What the parent orders and what the command does by itself.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use incumbent_guardian::{ExitStatus, GuardianEvent, KillCause, StartFailureKind};
use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::harness::{
    LONG, Parent, assert_silent, descriptors, is_alive, marked, own_cgroup, scratch, sh, signal_mask, stat,
    ticker, ticks, until, until_ticking, users,
};
use crate::parent::Plan;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test!(consul_1290_the_exit_code_is_passed_on),
        test!(consul_985_the_command_is_executed_without_a_shell),
        test!(the_command_leads_a_session_of_its_own_and_a_cgroup_where_there_may_be_one),
        test!(arguments_environment_and_folder_arrive_as_they_are),
        test!(a_command_that_cannot_start_says_why),
        test!(the_command_reads_the_parents_stdin),
        test!(a_command_that_closes_its_streams_goes_on),
        test!(signals_are_forwarded_and_sigterm_wakes_a_stopped_command),
        test!(noobaa_2084_a_sigterm_while_the_command_starts_reaches_it),
        test!(a_standby_starts_when_told),
        test!(a_standby_that_is_dropped_leaves_nothing),
        test!(a_command_that_ignores_sigterm_is_killed),
        test!(fifty_children_die_with_the_command),
        test!(what_the_command_leaves_behind_is_killed),
        test!(a_command_that_forks_without_end_is_killed),
    ]
}

fn plan(dir: &tempfile::TempDir, argv: Vec<OsString>) -> Plan {
    Plan { dir: dir.path().into(), argv, lease_ms: LONG, ..Plan::default() }
}

fn consul_1290_the_exit_code_is_passed_on() {
    let dir = scratch();
    let mut parent = Parent::spawn(plan(&dir, sh("exit 7")));
    parent.started();
    assert_eq!(parent.rest(), [GuardianEvent::Exited(ExitStatus::Code(7)), GuardianEvent::Empty]);

    let mut parent = Parent::spawn(plan(&dir, sh("kill -USR1 $$")));
    parent.started();
    let status = ExitStatus::Signal(Signal::USR1.as_raw());
    assert_eq!(parent.rest(), [GuardianEvent::Exited(status), GuardianEvent::Empty]);
    assert_eq!(status.shell_code(), 128 + 10);
}

fn consul_985_the_command_is_executed_without_a_shell() {
    let dir = scratch();
    let argv = ["sleep", "600"].map(OsString::from);
    let mut parent = Parent::spawn(plan(&dir, argv.into()));
    let pid = parent.started();
    assert_eq!(fs::read(format!("/proc/{pid}/cmdline")).unwrap(), b"sleep\x00600\x00");
    assert_eq!(stat(pid).unwrap()[1], parent.guardian.to_string(), "its parent is the guardian");
    parent.order("kill");
    let killing = GuardianEvent::Killing { cause: KillCause::Requested };
    let exited = GuardianEvent::Exited(ExitStatus::Signal(9));
    assert_eq!(parent.rest(), [killing, exited, GuardianEvent::Empty]);
}

fn the_command_leads_a_session_of_its_own_and_a_cgroup_where_there_may_be_one() {
    let dir = scratch();
    for user in users() {
        let mut parent = Parent::spawn_as(user, plan(&dir, ["sleep", "600"].map(OsString::from).into()));
        let pid = parent.started();
        let fields = stat(pid).unwrap();
        let own = pid.to_string();
        assert_eq!((&fields[2], &fields[3]), (&own, &own), "group and session");
        let mut plain = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        // Not at once: the system closes what is not inherited while it executes.
        until("the command has what is inherited, and no more", || {
            descriptors(pid) == descriptors(plain.id() as i32)
        });
        assert_eq!(signal_mask(pid, "SigBlk:"), "0".repeat(16), "the signal mask is not empty");
        let inherited = signal_mask(plain.id() as i32, "SigIgn:");
        assert_eq!(signal_mask(pid, "SigIgn:"), inherited, "the guardian's signals are ignored");
        plain.kill().unwrap();
        plain.wait().unwrap();

        let cgroup = own_cgroup(pid);
        assert_eq!(own_cgroup(parent.guardian), None, "the guardian is not in the command's cgroup");
        parent.order("kill");
        parent.rest();
        if let Some(cgroup) = cgroup {
            // It is removed after the guardian has told that nothing is left.
            until("the cgroup is removed", || !cgroup.exists());
        }
    }
}

fn arguments_environment_and_folder_arrive_as_they_are() {
    let dir = scratch();
    let argument = OsString::from_vec(b"caf\xe9 \"' $HOME".to_vec());
    let script = "printf %s \"$1\" >argument; printf %s \"$GIVEN\" >given; printf %s \"${PATH:+path}\" >path";
    let mut argv = sh(script);
    argv.extend(["sh".into(), argument.clone()]);
    let mut parent = Parent::spawn(Plan {
        env: vec![("GIVEN".into(), "a secret\nof two lines".into())],
        cwd: Some(dir.path().into()),
        ..plan(&dir, argv)
    });
    parent.rest();
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    assert_eq!(read("argument"), argument.into_vec());
    assert_eq!(read("given"), b"a secret\nof two lines");
    assert_eq!(read("path"), b"path", "the rest of the environment is inherited");
}

fn a_command_that_cannot_start_says_why() {
    let dir = scratch();
    let file = |name: &str, mode, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        OsString::from(path)
    };
    let failure = |argv: Vec<OsString>, cwd| {
        let mut parent = Parent::spawn(Plan { cwd, ..plan(&dir, argv) });
        let events = parent.rest();
        let [GuardianEvent::StartFailed(failure), GuardianEvent::Empty] = &events[..] else {
            panic!("{events:?}");
        };
        failure.clone()
    };
    let kind = |program: OsString| failure(vec![program], None).kind;

    assert_eq!(kind("no-such-command-anywhere".into()), StartFailureKind::NotFound);
    assert_eq!(kind(dir.path().join("missing").into()), StartFailureKind::NotFound);
    assert_eq!(kind(file("plain", 0o644, "#!/bin/sh\n")), StartFailureKind::NotExecutable);
    assert_eq!(kind(dir.path().into()), StartFailureKind::NotExecutable);
    let orphan = failure(vec![file("orphan", 0o755, "#!/no/such/interpreter\n")], None);
    assert_eq!(orphan.kind, StartFailureKind::NotExecutable);
    assert!(orphan.message.contains("interpreter"), "{orphan}");
    let lost = failure(vec!["true".into()], Some(dir.path().join("no-folder")));
    assert_eq!((lost.kind, lost.errno), (StartFailureKind::Other, 2));
    assert!(lost.message.contains("no-folder"), "{lost}");
    assert_eq!(failure(Vec::new(), None).kind, StartFailureKind::Other);
}

fn the_command_reads_the_parents_stdin() {
    let dir = scratch();
    let mut parent =
        Parent::spawn(Plan { no_orders: true, ..plan(&dir, sh("read line; echo \"got $line\"")) });
    parent.order("a line");
    parent.rest();
    assert_eq!(parent.output, ["got a line"]);
}

fn a_command_that_closes_its_streams_goes_on() {
    let dir = scratch();
    let file = dir.path().join("ticks");
    let script = format!("exec <&- >&- 2>&-; {}", ticker(&file));
    let mut parent = Parent::spawn(plan(&dir, sh(&script)));
    let pid = parent.started();
    until_ticking(&file);
    assert!(is_alive(pid));
    parent.order("kill");
    parent.rest();
    assert_silent(&file);
}

fn signals_are_forwarded_and_sigterm_wakes_a_stopped_command() {
    let dir = scratch();
    let script = "trap 'echo usr1' USR1; trap 'echo winch' WINCH; trap 'exit 5' TERM; echo ready
        while :; do sleep 0.02; done";
    let mut parent = Parent::spawn(plan(&dir, sh(script)));
    let pid = parent.started();
    parent.printed("ready");
    parent.order(&format!("signal {}", Signal::USR1.as_raw()));
    parent.printed("usr1");
    parent.order(&format!("signal {}", Signal::WINCH.as_raw()));
    parent.printed("winch");
    parent.order(&format!("signal {}", Signal::STOP.as_raw()));
    until("it is stopped", || crate::harness::is_stopped(pid));
    parent.order(&format!("signal {}", Signal::TERM.as_raw()));
    assert_eq!(parent.rest(), [GuardianEvent::Exited(ExitStatus::Code(5)), GuardianEvent::Empty]);
}

fn noobaa_2084_a_sigterm_while_the_command_starts_reaches_it() {
    let dir = scratch();
    for _ in 0..10 {
        let argv = ["sleep", "600"].map(OsString::from).into();
        let mut parent =
            Parent::spawn(Plan { early_signal: Some(Signal::TERM.as_raw()), ..plan(&dir, argv) });
        parent.started();
        let status = ExitStatus::Signal(Signal::TERM.as_raw());
        assert_eq!(parent.rest(), [GuardianEvent::Exited(status), GuardianEvent::Empty]);
    }
}

fn a_standby_starts_when_told() {
    let dir = scratch();
    let file = dir.path().join("ticks");
    let mut parent = Parent::spawn(Plan { standby: true, ..plan(&dir, sh(&ticker(&file))) });
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(ticks(&file), 0);
    parent.order("start");
    parent.started();
    until_ticking(&file);
    parent.order("kill");
    parent.rest();
    assert_silent(&file);
}

fn a_standby_that_is_dropped_leaves_nothing() {
    let dir = scratch();
    let mut parent = Parent::spawn(Plan { standby: true, ..plan(&dir, sh("exit 1")) });
    let guardian = parent.guardian;
    parent.send(Signal::KILL);
    parent.wait();
    until("the guardian ends", || !is_alive(guardian));
}

fn a_command_that_ignores_sigterm_is_killed() {
    let dir = scratch();
    let file = dir.path().join("ticks");
    let script = format!("trap '' TERM; echo ready; {}", ticker(&file));
    let mut parent = Parent::spawn(plan(&dir, sh(&script)));
    parent.started();
    parent.printed("ready");
    parent.order(&format!("signal {}", Signal::TERM.as_raw()));
    until_ticking(&file);
    parent.order("kill");
    assert!(parent.rest().contains(&GuardianEvent::Exited(ExitStatus::Signal(9))));
    assert_silent(&file);
}

fn fifty_children_die_with_the_command() {
    for user in users() {
        let dir = scratch();
        let marker = dir.path().join("child");
        let script = format!(
            "for i in $(seq 50); do setsid sh -c 'sleep 600; : {}' & done; sleep 600",
            marker.display()
        );
        let mut parent = Parent::spawn_as(user, plan(&dir, sh(&script)));
        parent.started();
        until("fifty children run", || marked(&marker).len() >= 51);
        parent.order("kill");
        parent.rest();
        assert_eq!(marked(&marker), [0; 0]);
    }
}

fn what_the_command_leaves_behind_is_killed() {
    for user in users() {
        let dir = scratch();
        let file = dir.path().join("ticks");
        // A daemon: two forks, a session of its own, no stream left.
        let script = format!(
            "(setsid sh -c '{}' </dev/null >/dev/null 2>&1 &) ; while ! [ -s {} ]; do sleep 0.01; done; exit 3",
            ticker(&file),
            file.display()
        );
        let mut parent = Parent::spawn_as(user, plan(&dir, sh(&script)));
        parent.started();
        assert_eq!(parent.rest(), [GuardianEvent::Exited(ExitStatus::Code(3)), GuardianEvent::Empty]);
        assert_eq!(marked(&file), [0; 0]);
        assert_silent(&file);
    }
}

fn a_command_that_forks_without_end_is_killed() {
    for user in users() {
        let dir = scratch();
        let marker = dir.path().join("child");
        let script =
            format!("while :; do setsid sh -c 'sleep 600; : {}' & sleep 0.005; done", marker.display());
        let mut parent = Parent::spawn_as(user, plan(&dir, sh(&script)));
        parent.started();
        until("children run", || marked(&marker).len() >= 10);
        parent.order("kill");
        parent.rest();
        assert_eq!(marked(&marker), [0; 0]);
    }
}
