//! A store that fails under a leader: the job is told, is dead before the deadline, and comes back when the store does.

use std::time::Duration;

use testkit::{Capability, Proc, Signal, Stream};

use crate::harness::{SOON, World, code, pid_in, send};

/// Runs the job on a store of its own, whose disk is full from the moment when a file `fill` appears until `free` does.
fn start(world: &World, job: &str) -> Proc {
    testkit::require(Capability::MountNs);
    let script = r#"
        mkdir store; mount -t tmpfs -o size=256k none store
        "$INCUMBENT" run billing --on=file:store --ttl=3s -- sh job & echo $! > run
        until [ -e fill ]; do sleep 0.05; done; cat /dev/zero > store/filler 2>/dev/null
        until [ -e free ]; do sleep 0.05; done; rm store/filler
        wait $!"#;
    std::fs::write(world.path("script"), script).expect("a file");
    std::fs::write(world.path("job"), job).expect("a file");
    world.shell("exec unshare --map-root-user --mount sh script")
}

/// The disk under the store is full for a while: nothing can be renewed.
#[test]
fn a_job_that_does_not_listen_is_dead_before_its_lease_is() {
    let world = World::new();
    let job = r#"trap "echo told" TERM; echo "leading $INCUMBENT_TOKEN"
        while :; do "$INCUMBENT" check 2>/dev/null && echo good || echo over; sleep 0.05; done"#;
    let process = start(&world, job);
    let leading = |line: &str| line.starts_with("leading ");
    process.wait_line(leading, SOON);

    std::fs::write(world.path("fill"), "").expect("a file");
    process.wait_line(
        |line| line.starts_with("warning: ") && line.contains("the term is good for another"),
        SOON,
    );
    process.wait_line(
        |line| line.starts_with("stopping: the lease of billing could not be renewed; sh has "),
        SOON,
    );
    process.wait_line(|line| line == "told", SOON);
    process.wait_line(|line| line.starts_with("killing: the term of billing is over"), SOON);
    process.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    let out = process.text(Stream::Out);
    assert!(!out.contains("over"), "the job outlived its term: {}", process.transcript());

    // After the first term nothing is fatal: it waits until the store is there again.
    std::fs::write(world.path("free"), "").expect("a file");
    let lines = process.wait_lines(2, leading, SOON);
    let tokens: Vec<u64> =
        lines.iter().map(|line| line.text["leading ".len()..].parse().expect("a token")).collect();
    assert!(tokens[1] > tokens[0], "{tokens:?}");
    process.wait_line(|line| line.starts_with("note: the store answers again after "), SOON);
    send(pid_in(&world.path("run")), Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    send(pid_in(&world.path("run")), Signal::TERM);
    assert_eq!(code(&process), 128 + 9);
}

/// A job that ends when it is told to gives its term up early; that is no end of its own, so it is run again.
#[test]
fn a_job_that_ends_because_of_an_outage_is_run_again() {
    let world = World::new();
    let job = r#"trap "exit 0" TERM; echo "leading $INCUMBENT_TOKEN"; while :; do sleep 0.05; done"#;
    let process = start(&world, job);
    let leading = |line: &str| line.starts_with("leading ");
    process.wait_line(leading, SOON);
    std::fs::write(world.path("fill"), "").expect("a file");
    process.wait_line(|line| line == "ended: sh exited with 0", SOON);
    std::fs::write(world.path("free"), "").expect("a file");
    process.wait_lines(2, leading, SOON);
    send(pid_in(&world.path("run")), Signal::TERM);
    assert_eq!(code(&process), 0);
    assert!(!process.text(Stream::Err).contains("killing:"), "{}", process.transcript());
}
