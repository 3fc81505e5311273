//! Signals to `run`: the first asks, the second kills, whatever the moment.

use std::time::Duration;

use testkit::{Proc, Signal, now};

use crate::harness::{SOON, World, children_of, code, ended, lives, pid_in, state_of};

/// Long enough apart to be two.
const APART: Duration = Duration::from_millis(300);

/// Not if these tests run in the background of a script, whose shell has them ignore it.
fn can_be_sent(signal: &Signal) -> bool {
    !incumbent_guardian::is_ignored(signal.as_raw())
}

#[track_caller]
fn wait_for_job(process: &Proc) {
    process.wait_line(|line| line == "ready", SOON);
}

/// LINBIT/k8s-await-election #25: a main that returns early. The command ends first, then the election is released.
#[test]
fn the_first_signal_lets_the_command_finish() {
    for signal in [Signal::TERM, Signal::INT].into_iter().filter(can_be_sent) {
        let world = World::new();
        let process = world.run(
            &["--on=file:store"],
            "trap 'sleep 0.5; echo done; exit 7' TERM; echo ready; while :; do sleep 0.05; done",
        );
        wait_for_job(&process);
        process.signal(signal);
        let (code, out, err) = ended(&process);
        assert_eq!((code, out.as_str()), (7, "ready\ndone\n"), "{err}");
        assert!(
            err.contains("stopping: told to stop; sh has 30 s to end")
                && err.ends_with("released: billing\n"),
            "{err}"
        );
    }
}

/// k/k PR #139504: released before the work ended. The lease is renewed while the command drains.
#[test]
fn a_command_that_drains_for_longer_than_the_ttl_keeps_its_term() {
    let world = World::new();
    let script = "trap 'sleep 7; \"$INCUMBENT\" check && echo still good; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let process = world.run(&["--on=file:store", "--ttl=4s"], script);
    wait_for_job(&process);
    process.signal(Signal::TERM);
    let (code, out, err) = ended(&process);
    assert_eq!((code, out.as_str()), (0, "ready\nstill good\n"), "{err}");
}

#[test]
fn a_command_that_does_not_listen_is_killed_after_the_drain() {
    let world = World::new();
    let process = world
        .run(&["--on=file:store", "--drain=700ms"], "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    wait_for_job(&process);
    let told = now();
    process.signal(Signal::TERM);
    let (code, _, err) = ended(&process);
    assert_eq!(code, 128 + 9, "{err}");
    assert!(now().since(told) >= Duration::from_millis(700));
    assert!(
        err.contains("killing: sh has not ended in time") && err.ends_with("released: billing\n"),
        "{err}"
    );
}

#[test]
fn the_second_signal_kills_at_once() {
    for (first, second) in
        [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::INT), (Signal::INT, Signal::TERM)]
    {
        if !can_be_sent(&first) {
            continue;
        }
        let world = World::new();
        let script =
            "trap '' TERM; setsid sleep 600 & echo $! > orphan; echo ready; while :; do sleep 0.05; done";
        let process = world.run(&["--on=file:store", "--drain=none"], script);
        wait_for_job(&process);
        process.signal(first);
        process.wait_line(|line| line.starts_with("stopping:"), SOON);
        std::thread::sleep(APART);
        assert_eq!(process.try_wait(), None, "the first signal only asks");
        process.signal(second);
        let (code, _, err) = ended(&process);
        assert_eq!(code, 128 + 9, "{err}");
        assert!(err.contains("killing: told to stop again") && err.ends_with("released: billing\n"), "{err}");
        assert!(!lives(pid_in(&world.path("orphan"))));
    }
}

/// timeout(1) signals a process and then its whole group: that is one wish, not two.
#[test]
fn two_signals_in_one_breath_are_one() {
    let world = World::new();
    let process = world
        .run(&["--on=file:store"], "trap 'sleep 0.5; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    wait_for_job(&process);
    for _ in 0..3 {
        process.signal(Signal::TERM);
    }
    assert_eq!(code(&process), 7);
}

#[test]
fn a_frozen_command_is_woken_to_hear_that_it_is_to_end() {
    let world = World::new();
    let process = world
        .run(&["--on=file:store"], "trap 'exit 7' TERM; echo $$ > pid; echo ready; kill -STOP $$; sleep 600");
    wait_for_job(&process);
    let job = pid_in(&world.path("pid"));
    assert!(testkit::wait_until(SOON, || state_of(job) == Some('T')));
    process.signal(Signal::TERM);
    assert_eq!(code(&process), 7);
}

#[test]
fn other_signals_are_the_commands() {
    let world = World::new();
    let process = world
        .run(&["--on=file:store"], "trap 'echo usr1; exit 8' USR1; echo ready; while :; do sleep 0.05; done");
    wait_for_job(&process);
    process.signal(Signal::USR1);
    let (code, out, _) = ended(&process);
    assert_eq!((code, out.as_str()), (8, "ready\nusr1\n"));
}

/// noobaa PR #2084: SIGTERM races with the start of the child. Whatever the moment, it ends, and nothing is left.
#[test]
fn a_signal_while_the_command_starts_is_not_lost() {
    let world = World::new();
    let (mut before, mut after) = (0, 0);
    for round in 0..40 {
        let name = format!("pid-{round}");
        let process = world.run(&["--on=file:store"], &format!("echo $$ > {name}; exec sleep 600"));
        if round % 2 == 0 {
            // Around the moment when it is elected and the guardian gets the command.
            process.wait_line(|line| line.starts_with("leader:"), SOON);
            std::thread::sleep(Duration::from_micros(500 * round));
        } else {
            // From the first moment at which it takes signals: a guardian is there.
            testkit::wait_until(SOON, || !children_of(process.pid()).is_empty());
            std::thread::sleep(Duration::from_micros(250 * round));
        }
        process.signal(Signal::TERM);
        match code(&process) {
            0 => before += 1,
            143 => after += 1,
            other => panic!("exit code {other}: {}", process.transcript()),
        }
        if let Ok(pid) = world.read(&name).trim().parse() {
            assert!(!lives(pid), "round {round}: {pid} lives on");
        }
    }
    assert_eq!(before + after, 40);
    assert!(after > 0, "no round met the command");
}

/// As under nohup, or in the background of a script: what is ignored from the start stays so, for the command too.
#[test]
fn what_is_ignored_from_the_start_stays_ignored() {
    let world = World::new();
    let job = "grep SigIgn: /proc/self/status; kill -HUP $$; kill -INT $$; kill -QUIT $$; kill -USR2 $$; echo ready; exec sleep 600";
    std::fs::write(world.path("job"), job).expect("a file");
    let process = world.shell(
        "trap '' HUP INT QUIT USR2; exec \"$INCUMBENT\" run billing --on=file:store --drain=none -- sh job",
    );
    wait_for_job(&process);
    let mask = process.wait_line(|line| line.starts_with("SigIgn:"), SOON).text;
    let mask = u64::from_str_radix(mask["SigIgn:".len()..].trim(), 16).expect("a mask");
    let bit = |signal: Signal| 1_u64 << (signal.as_raw() - 1);
    let ignored = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR2].map(bit).iter().sum::<u64>();
    assert_eq!(mask & (ignored | bit(Signal::TERM) | bit(Signal::USR1)), ignored, "{mask:x}");
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR2] {
        process.signal(signal);
        std::thread::sleep(APART);
    }
    assert_eq!(process.try_wait(), None, "{}", process.transcript());
    process.signal(Signal::TERM);
    let (code, _, err) = ended(&process);
    assert_eq!(code, 128 + 15, "{err}");
    assert_eq!(err.matches("stopping:").count(), 1, "{err}");
}

/// No signal comes too early: it is caught before anything else is begun, and heard once there is somebody to hear it.
#[test]
fn a_signal_in_the_first_moment_is_a_wish() {
    let world = World::new();
    for _ in 0..20 {
        let process = world.run(&["--on=file:store"], "exec sleep 600");
        loop {
            let status =
                std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("a status");
            let field =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").trim();
            let caught = u64::from_str_radix(field("SigCgt:"), 16).expect("a mask");
            if caught & 1 << (Signal::TERM.as_raw() - 1) != 0 {
                break;
            }
            assert_eq!(field("Threads:"), "1", "it has begun something, and a signal would end it at once");
        }
        process.signal(Signal::TERM);
        let code = code(&process);
        assert!([0, 128 + 15].contains(&code), "{code}: {}", process.transcript());
    }
}
