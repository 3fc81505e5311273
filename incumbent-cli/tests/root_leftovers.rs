//! What an earlier run left, and nobody can kill.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use testkit::{Capability, Cgroup, Freezer, Proc, Signal};

use harness::{SOON, World, code, ended, guardian, lives, pid_in, send};

/// Of its own, since what cannot be killed keeps every run of the election on this machine from starting its job.
const ELECTION: &str = "root-leftovers";

fn run(world: &World, apart: &Cgroup, id: &str, options: &[&str], script: &str) -> Proc {
    let id = format!("--id={id}");
    let options = [&["run", ELECTION, "--on=file:store", "--ttl=3s", &id], options].concat();
    let command = world.incumbent(&[&options[..], &["--", "sh", "-c", script]].concat());
    Proc::spawn(apart.command(&command))
}

/// It ended with 125, and a supervisor that starts it again won a term each time.
#[test]
fn what_cannot_be_killed_is_waited_for_without_leading() {
    testkit::require(Capability::Root);
    let (Some(first), Some(second)) = (Cgroup::new(), Cgroup::new()) else { return };
    let freezer = Freezer::new();
    let world = World::new();
    let a = run(&world, &first, "a", &[], "echo $$ > pid; echo leading; exec sleep 600");
    a.wait_line(|line| line == "leading", SOON);
    let job = pid_in(&world.path("pid"));
    freezer.add(job);
    freezer.freeze();
    let guardian = guardian(&a);
    // Frozen first, so that neither sees the other die.
    send(guardian, Signal::STOP);
    a.signal(Signal::STOP);
    send(guardian, Signal::KILL);
    a.signal(Signal::KILL);

    let b = run(&world, &second, "b", &[], "echo leading; sleep 600");
    let blocked = format!(
        "standby: process {job} of an earlier run of {ELECTION} cannot be killed yet; b waits until that is gone"
    );
    b.wait_line(|line| line == blocked, SOON);
    // Whoever does not want to wait is told, too.
    let c = run(&world, &second, "c", &["--no-wait"], "echo leading");
    assert_eq!(code(&c), 123, "{}", c.transcript());
    let d = run(&world, &second, "d", &["--wait-timeout=6s"], "echo leading");
    assert_eq!(code(&d), 124, "{}", d.transcript());
    let (code, _, _) = ended(&Proc::spawn(world.incumbent(&["status", ELECTION, "--on=file:store"])));
    assert_eq!(code, 1, "nobody leads meanwhile");
    assert!(lives(job), "then this test shows nothing");
    let lines = b.lines();
    assert_eq!(lines.iter().filter(|line| line.text == blocked).count(), 1, "{}", b.transcript());
    assert!(!lines.iter().any(|line| line.text == "leading"), "{}", b.transcript());

    freezer.thaw();
    b.wait_line(|line| line == "leading", SOON);
    assert!(!lives(job));
    b.signal(Signal::TERM);
    assert_eq!(harness::code(&b), 128 + 15);
}
