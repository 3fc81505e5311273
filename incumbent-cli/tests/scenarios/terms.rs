//! Terms that end as they should, and what is told of them.

use testkit::{Cgroup, Proc, Signal, Stream, wait_until};

use super::harness::{
    SOON, World, children_of, code, ended, lives, pid_in, send, wait_leading, wait_standby,
};
use super::{JOB, Room, Store, TTL, terms_of};

/// LINBIT/k8s-await-election #26, agent-sandbox #1249, client-go #1417: after SIGTERM the next one leads at once, not after the lease.
pub(crate) fn a_standby_takes_over_from_a_leader_that_is_told_to_stop<S: Store>(store: &S) {
    told_to_stop::<S>(&Room::apart(store));
}

pub(crate) fn told_to_stop<S: Store>(room: &Room) {
    let a = room.run(&["--id=a", S::LONG_TTL], JOB);
    let first = wait_leading(&a, 1);
    let b = room.run(&["--id=b", S::LONG_TTL], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

pub(crate) fn a_standby_takes_over_from_a_leader_that_is_killed<S: Store>(store: &S) {
    taken_over_after(Signal::KILL, &Room::apart(store));
}

pub(crate) fn a_standby_takes_over_from_a_leader_that_is_frozen<S: Store>(store: &S) {
    let room = Room::apart(store);
    let (a, _b) = taken_over_after(Signal::STOP, &room);
    let steps = room.world.read("steps-a");
    a.signal(Signal::CONT);
    wait_standby(&a);
    assert_eq!(room.world.read("steps-a"), steps, "it took a step after the successor began");
}

fn taken_over_after(signal: Signal, room: &Room) -> (Proc, Proc) {
    let a = room.candidate("a");
    let first = wait_leading(&a, 1);
    let job = pid_in(&room.world.path("pid-a"));
    let b = room.candidate("b");
    wait_standby(&b);
    a.signal(signal);
    assert!(wait_leading(&b, 1) > first);
    assert!(!lives(job), "the old job lives on");
    (a, b)
}

/// The lease runs out whoever is frozen, and nothing but the successor's guardian is left to kill the old job.
pub(crate) fn what_frozen_keepers_left_is_dead_before_the_successor_on_their_machine_starts<S: Store>(
    store: &S,
) {
    let apart = [Cgroup::new(), Cgroup::new()];
    if apart.iter().any(Option::is_none) {
        return;
    }
    let room = Room::apart(store);
    let run =
        |id: &str, apart: &Option<Cgroup>| room.run_in(apart.as_ref(), &[&format!("--id={id}"), TTL], JOB);
    let a = run("a", &apart[0]);
    let first = wait_leading(&a, 1);
    let b = run("b", &apart[1]);
    wait_standby(&b);
    let job = pid_in(&room.world.path("pid-a"));
    let guardian = children_of(a.pid())[0];
    send(guardian, Signal::STOP);
    a.signal(Signal::STOP);
    assert!(lives(job), "then this test shows nothing");
    assert!(wait_leading(&b, 1) > first);
    assert!(!lives(job), "the old job lives on");
    send(guardian, Signal::CONT);
    a.signal(Signal::CONT);
    wait_standby(&a);
}

/// Also past candidates that have waited for longer.
pub(crate) fn a_transfer_reaches_the_candidate_that_is_named<S: Store>(store: &S) {
    let room = Room::apart(store);
    let a = room.candidate("a");
    let first = wait_leading(&a, 1);
    let others = ["b", "c", "d"].map(|id| room.candidate(id));
    others.iter().for_each(wait_standby);
    room.ask_ok("transfer", &["--to=d"]);
    let second = wait_leading(&others[2], 1);
    assert!(second > first);
    let answer = room.status();
    assert_eq!((&answer["leader"]["id"], &answer["leader"]["token"]), (&"d".into(), &second.into()));
    // The old leader stays away for a while.
    assert_eq!(answer["candidates"].as_array().map(Vec::len) >= Some(3), S::LISTS_CANDIDATES, "{answer}");
    assert!(a.text(Stream::Err).contains("stopping: asked to hand billing over to d"), "{}", a.transcript());
}

pub(crate) fn a_leader_that_is_asked_to_resign_is_followed_by_another<S: Store>(store: &S) {
    let room = Room::apart(store);
    let a = room.candidate("a");
    let first = wait_leading(&a, 1);
    let others = ["b", "c"].map(|id| room.candidate(id));
    others.iter().for_each(wait_standby);
    room.ask_ok("resign", &[]);
    // Whoever resigned stays away for a while.
    assert!(wait_until(SOON, || others.iter().any(|other| terms_of(other) == 1)), "nobody followed");
    let leader = others.iter().find(|other| terms_of(other) == 1).expect("one leads");
    assert!(wait_leading(leader, 1) > first);
    wait_standby(&a);
}

pub(crate) fn observers_are_told_of_every_leader<S: Store>(store: &S) {
    let room = Room::apart(store);
    let observer = Proc::spawn(room.world.incumbent(&["observe", "billing", "--on", &room.on]));
    let is_vacant = |line: &str| line == "nobody leads billing";
    observer.wait_line(is_vacant, SOON);
    let a = room.candidate("a");
    let token = wait_leading(&a, 1);
    observer.wait_line(|line| line.starts_with(&format!("billing is led by a (token {token})")), SOON);
    a.signal(Signal::TERM);
    code(&a);
    observer.wait_lines(2, is_vacant, SOON);
}

pub(crate) fn status_and_doctor_know_the_store<S: Store>(store: &S) {
    let room = Room::apart(store);
    let a = room.run(&["--id=a", TTL, "--advertise=a:80"], JOB);
    let token = wait_leading(&a, 1);
    let leader = &room.status()["leader"];
    assert_eq!(
        (&leader["id"], &leader["token"], &leader["address"]),
        (&"a".into(), &token.into(), &"a:80".into())
    );
    assert!(room.ask_ok("status", &[]).contains("leader      a\n"));
    let (status, out, err) = room.world.output(&["status", "nobody-yet", "--on", &room.on]);
    assert_eq!(status, 1, "{out}{err}");
    assert!(out.contains("nobody"), "{out}");
    let (status, out, err) = room.world.output(&["doctor", "--on", &room.on]);
    assert_eq!(status, 0, "{out}{err}");
    let scheme = room.on.split(':').next().expect("a scheme");
    assert!(out.contains(scheme), "{out}");
}

pub(crate) fn a_checkpoint_reaches_the_successor<S: Store>(store: &S) {
    let room = Room::apart(store);
    let job = "\"$INCUMBENT\" checkpoint get; echo \"from $INCUMBENT_ID\" | \"$INCUMBENT\" checkpoint put; \
               echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";
    let a = room.run(&["--id=a", TTL], job);
    wait_leading(&a, 1);
    let b = room.run(&["--id=b", TTL], job);
    wait_standby(&b);
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
    assert!(b.text(Stream::Out).starts_with("from a\n"), "{}", b.transcript());
}

/// The command needs the secret to ask the store, and gets it where only its own user can read it.
pub(crate) fn a_password_reaches_the_command_and_no_process_list<S: Store>(store: &S) {
    let (secured, on, secret) = S::secured(store);
    let world = World::new();
    let script = "echo kept | \"$INCUMBENT\" checkpoint put && \"$INCUMBENT\" checkpoint get && echo ready; \
                  \"$INCUMBENT\" check && exec sleep 600";
    let mut command = world.incumbent(&["run", "billing", TTL, "-vv", "--", "sh", "-c", script]);
    command.env("INCUMBENT_ON", &on);
    let process = Proc::spawn(command);
    process.wait_line(|line| line == "ready", SOON);
    let mut pids = vec![process.pid()];
    while let Some(pid) = pids.pop() {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!arguments.contains(secret), "{arguments:?}");
        pids.extend(children_of(pid));
    }
    process.signal(Signal::TERM);
    let (_, out, err) = ended(&process);
    assert_eq!(out, "kept\nready\n", "{err}");
    assert!(!err.contains(secret), "{err}");
    if on.contains(secret) {
        let (_, _, err) = world.output(&["status", "billing", "--on", &on]);
        assert!(err.contains("in --on can be read by every user"), "{err}");
    }
    drop(secured);
}
