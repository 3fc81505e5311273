//! Guardians that are frozen while nothing has to be killed, and keepers that are all frozen.

use std::time::Duration;

use testkit::{Cgroup, Proc, Signal};

use crate::faults::{candidate, freeze_outside_of_a_commit};
use crate::harness::{SOON, World, children_of, code, ended, guardian, lives, pid_in, send};
use crate::standby::token;

const SILENT: &str = "killing: the guardian of sh does not answer: sh and all that it started is killed";

/// Not only the job has begun: its guardian has told so.
#[track_caller]
pub(crate) fn wait_until_started(run: &Proc) {
    token(run);
    run.wait_line(|line| line.starts_with("leader: sh runs as process "), SOON);
}

/// What happens to a job whose guardian was killed, some seconds later.
#[test]
fn a_frozen_guardian_ends_the_term_and_a_new_one_begins() {
    let world = World::new();
    let a = candidate(&world, "a", "10s");
    let first = token(&a);
    let (job, guardian) = (pid_in(&world.path("pid-a")), guardian(&a));
    send(guardian, Signal::STOP);
    a.wait_line(|line| line == SILENT, SOON);
    let begins = |line: &str| line.starts_with("leading ") || line == "OVERLAP";
    let again = a.wait_lines(2, begins, SOON).remove(1).text;
    assert!(!lives(job) && !lives(guardian));
    let second = again.strip_prefix("leading ").and_then(|token| token.parse::<u64>().ok());
    assert!(second > Some(first), "{again}");
    assert_eq!(a.try_wait(), None);
}

/// Nobody told of the end, and the lease was renewed for ever.
#[test]
fn a_job_that_ends_under_a_frozen_guardian_is_seen_to_end() {
    let world = World::new();
    let script = "echo \"leading $INCUMBENT_TOKEN\"; until [ -e go ]; do sleep 0.01; done; exit 7";
    let a = world.run(&["--on=file:store", "--ttl=1h", "-v"], script);
    wait_until_started(&a);
    let guardian = guardian(&a);
    send(guardian, Signal::STOP);
    std::fs::write(world.path("go"), "").expect("a file");
    let (code, _, err) = ended(&a);
    assert_eq!(code, 7, "{err}");
    assert!(err.contains(SILENT) && err.ends_with("released: billing\n"), "{err}");
    assert!(!lives(guardian));
}

/// The guardian did not pass it on, and the job was killed some seconds later without having been told.
#[test]
fn a_stop_reaches_the_job_of_a_frozen_guardian() {
    let world = World::new();
    let script =
        "trap 'echo told; exit 6' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do sleep 0.05; done";
    let a = world.run(&["--on=file:store", "--ttl=1h", "--drain=none", "-v"], script);
    wait_until_started(&a);
    send(guardian(&a), Signal::STOP);
    a.signal(Signal::TERM);
    a.wait_line(|line| line == "told", SOON);
    let (code, _, err) = ended(&a);
    assert_eq!(code, 6, "{err}");
    assert!(err.contains(SILENT) && err.ends_with("released: billing\n"), "{err}");
}

/// It was stopped again and again for longer than it may be late, and each time gave the guardian its full time once more.
#[test]
fn a_run_that_is_always_late_notices_a_frozen_guardian() {
    let world = World::new();
    let script = "echo $$ > pid; echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    let a = world.run(&["--on=file:store", "--ttl=1h", "-v"], script);
    wait_until_started(&a);
    let (job, guardian) = (pid_in(&world.path("pid")), guardian(&a));
    send(guardian, Signal::STOP);
    let noticed = (0..60).any(|_| {
        a.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(900));
        a.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
        a.lines().iter().any(|line| line.text == SILENT)
    });
    assert!(noticed, "{}", a.transcript());
    assert!(testkit::wait_until(SOON, || !lives(job)));
}

/// Late as well, but the guardian answers each time.
#[test]
fn a_run_that_is_always_late_does_not_give_up_a_guardian_that_answers() {
    let world = World::new();
    let a = candidate(&world, "a", "1h");
    token(&a);
    let job = pid_in(&world.path("pid-a"));
    for _ in 0..20 {
        a.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(900));
        a.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(lives(job), "{}", a.transcript());
    assert!(!a.lines().iter().any(|line| line.text == SILENT), "{}", a.transcript());
}

/// What waits to become the job was stopped: the term was won and renewed, and no job ever ran.
#[test]
fn a_launcher_that_was_stopped_while_it_stood_by_starts_the_job() {
    let world = World::new();
    let a = candidate(&world, "a", "1h");
    token(&a);
    let b = candidate(&world, "b", "1h");
    b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
    let guardian = guardian(&b);
    assert!(testkit::wait_until(SOON, || children_of(guardian).len() == 1));
    send(children_of(guardian)[0], Signal::STOP);
    a.signal(Signal::TERM);
    token(&b);
}

/// Its lease is good, and with the directory went all that said so but the lock that it still holds.
#[test]
fn a_store_that_is_removed_under_a_frozen_leader_elects_nobody_before_its_job_is_dead() {
    let world = World::new();
    let a = candidate(&world, "a", "5s");
    let first = token(&a);
    let job = pid_in(&world.path("pid-a"));
    freeze_outside_of_a_commit(&a, &world);
    std::fs::remove_dir_all(world.path("store")).expect("a folder");
    let b = candidate(&world, "b", "5s");
    assert!(token(&b) > first);
    assert!(!lives(job), "the frozen leader's job lives on");
    a.signal(Signal::CONT);
    a.wait_line(|line| line.starts_with("standby: billing is led by b"), SOON);
    assert_eq!(a.lines().iter().filter(|line| line.text.starts_with("leading ")).count(), 1);
}

/// As by a pause of the container, or Ctrl-Z: for longer than a frozen guardian takes to be noticed.
#[test]
fn what_was_paused_as_a_whole_goes_on_in_its_term() {
    let world = World::new();
    let a = candidate(&world, "a", "1h");
    token(&a);
    let (job, guardian) = (pid_in(&world.path("pid-a")), guardian(&a));
    let all = |signal| [job, guardian, a.pid()].into_iter().for_each(|pid| send(pid, signal));
    all(Signal::STOP);
    std::thread::sleep(Duration::from_secs(7));
    all(Signal::CONT);
    std::thread::sleep(Duration::from_secs(6));
    assert!(lives(job) && lives(guardian), "{}", a.transcript());
    // Ctrl-Z reaches the guardian and the job not at all.
    a.signal_group(Signal::TSTP);
    std::thread::sleep(Duration::from_secs(6));
    a.signal_group(Signal::CONT);
    std::thread::sleep(Duration::from_secs(6));
    assert!(lives(job) && lives(guardian), "{}", a.transcript());
    let steps = world.read("steps-a");
    assert!(testkit::wait_until(SOON, || world.read("steps-a") != steps), "the job does nothing");
    assert_eq!(a.lines().iter().filter(|line| line.text.starts_with("leading ")).count(), 1);
    a.signal(Signal::TERM);
    assert_eq!(code(&a), 128 + 15);
}

/// Nobody is left to kill the job at the deadline: the successor's guardian does, where there are cgroups, whatever its
/// environment says of folders.
#[test]
fn what_frozen_keepers_left_is_dead_before_the_successor_starts() {
    let script = "exec 9>>only; flock -n 9 || { echo OVERLAP; exit 99; }; \
                  setsid sh -c 'echo $$ > \"orphan-$INCUMBENT_ID\"; exec sleep 600' & \
                  until [ -s \"orphan-$INCUMBENT_ID\" ]; do sleep 0.01; done; echo $$ > \"pid-$INCUMBENT_ID\"; \
                  echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    for parent_is in [Signal::STOP, Signal::KILL] {
        let apart = [Cgroup::new(), Cgroup::new()];
        if apart.iter().any(Option::is_none) {
            return;
        }
        let world = World::new();
        let run = |id: &str, apart: &Option<Cgroup>| -> Proc {
            let id_option = format!("--id={id}");
            let arguments =
                ["run", "billing", "--on=file:store", &id_option, "--ttl=5s", "--", "sh", "-c", script];
            let mut command = world.incumbent(&arguments);
            command.env("XDG_RUNTIME_DIR", world.path(&format!("runtime-{id}")));
            Proc::spawn(apart.as_ref().map(|cgroup| cgroup.command(&command)).unwrap_or(command))
        };
        for id in ["a", "b"] {
            std::fs::create_dir(world.path(&format!("runtime-{id}"))).expect("a folder");
        }
        let a = run("a", &apart[0]);
        let first = token(&a);
        let b = run("b", &apart[1]);
        b.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
        let (main, orphan) = (pid_in(&world.path("pid-a")), pid_in(&world.path("orphan-a")));
        let guardian = guardian(&a);
        send(guardian, Signal::STOP);
        freeze_outside_of_a_commit(&a, &world);
        a.signal(parent_is);
        assert!(lives(main) && lives(orphan), "then this test shows nothing");
        let begun = b.wait_line(|line| line.starts_with("leading ") || line == "OVERLAP", SOON).text;
        assert!(!lives(main) && !lives(orphan), "the old job lives on");
        let second = begun.strip_prefix("leading ").and_then(|token| token.parse::<u64>().ok());
        assert!(second > Some(first), "{begun}");
        // Awake, both find that there is nothing left to kill.
        send(guardian, Signal::CONT);
        assert!(testkit::wait_until(SOON, || !lives(guardian)));
        if parent_is == Signal::STOP {
            a.signal(Signal::CONT);
            a.wait_line(|line| line.starts_with("standby: billing is led by b"), SOON);
        }
        assert_eq!(b.try_wait(), None, "{}", b.transcript());
    }
}
