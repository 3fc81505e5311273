//! Faults of disks, in mount name spaces of their own: a store or a folder for lease files that is full.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::{Capability, Proc, Signal, Stream};

use harness::{SOON, World, code, ended, pid_in, send};

/// Runs the job on a store of its own, whose disk is full from the moment when a file `fill` appears until `free` does.
fn start(world: &World, job: &str, ttl: &str) -> Proc {
    testkit::require(Capability::MountNs);
    let script = r#"
        mkdir store; mount -t tmpfs -o size=256k none store
        "$INCUMBENT" run billing --on=file:store --ttl=$TTL -- sh job & echo $! > run
        until [ -e fill ]; do sleep 0.05; done; cat /dev/zero > store/filler 2>/dev/null
        until [ -e free ]; do sleep 0.05; done; rm store/filler
        wait $!"#;
    std::fs::write(world.path("script"), script).expect("a file");
    std::fs::write(world.path("job"), job).expect("a file");
    world.shell(&format!("TTL={ttl} exec unshare --map-root-user --mount sh script"))
}

/// The disk under the store is full for a while: nothing can be renewed.
#[test]
fn a_job_that_does_not_listen_is_dead_before_its_lease_is() {
    let world = World::new();
    let job =
        r#"trap "echo told" TERM; echo "leading $INCUMBENT_TOKEN"; while :; do echo step; sleep 0.05; done"#;
    let process = start(&world, job, "10s");
    let leading = |line: &str| line.starts_with("leading ");
    process.wait_line(leading, SOON);

    std::fs::write(world.path("fill"), "").expect("a file");
    process.wait_line(
        |line| line.starts_with("warning: ") && line.contains("the term is good for another"),
        SOON,
    );
    let told = "stopping: the lease of billing could not be renewed; sh has ";
    let stopping = process.wait_line(|line| line.starts_with(told), SOON);
    process.wait_line(|line| line == "told", SOON);
    process.wait_line(|line| line.starts_with("killing: "), SOON);
    process.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let lease_end = stopping.at + Duration::from_millis(3500);
    let last_step = process.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < lease_end, "the job outlived its lease: {}", process.transcript());

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
    let process = start(&world, job, "10s");
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

/// Without room for the lease file no command starts, and the term is given back.
#[test]
fn a_full_disk_under_the_lease_file_is_a_clear_error() {
    testkit::require(testkit::Capability::MountNs);
    let world = World::new();
    let process = world.shell(&full("/run", "\"$INCUMBENT\" run billing --on=file:store -- echo started"));
    let (status, out, err) = ended(&process);
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(
        err.contains("error: the lease file cannot be made in") && err.contains("No space left"),
        "{err}"
    );
    assert!(err.ends_with("released: billing\n"), "{err}");
    assert_eq!(code(&world.run(&["--on=file:store", "--no-wait"], "exit 5")), 5, "it was given back");
}

#[test]
fn a_state_directory_without_room_is_a_clear_error() {
    testkit::require(testkit::Capability::MountNs);
    let world = World::new();
    let process = world.shell(&full("store", "\"$INCUMBENT\" run billing --on=file:store -- echo started"));
    let (status, out, err) = ended(&process);
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.starts_with("error: ") && err.contains("No space left"), "{err}");
}

/// A script that runs `script` where `folder` is a small file system of its own, all of it used.
fn full(folder: &str, script: &str) -> String {
    let mount = format!("mkdir -p {folder}; mount -t tmpfs -o size=64k,nr_inodes=64 none {folder}");
    let fill = format!("head -c 1M /dev/zero > {folder}/filler 2>/dev/null");
    format!("exec unshare --map-root-user --mount sh -c '{mount}; {fill}; exec {script}'")
}

/// As root, in name spaces of its own, where root's folder is this test's alone.
#[test]
fn the_embedded_default_is_used_and_named() {
    testkit::require(testkit::Capability::MountNs);
    let world = World::new();
    let process = world.shell(
        "exec unshare --map-root-user --mount sh -c \
         'mount -t tmpfs none /var/lib; exec \"$INCUMBENT\" run billing -- printenv INCUMBENT_ON'",
    );
    let (status, out, err) = ended(&process);
    assert_eq!((status, out.as_str()), (0, "file:/var/lib/incumbent\n"), "{err}");
    assert!(err.contains("excludes only processes on this machine that use /var/lib/incumbent"), "{err}");
}
