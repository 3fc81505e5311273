//! What an earlier run left, and nobody can kill.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use testkit::{Capability, Cgroup, Freezer, Proc, Signal};

use harness::{SOON, World, code, ended, guardian, lives, pid_in, send};

/// Of its own, since what cannot be killed keeps every run of the election on this machine from starting its job.
const ELECTION: &str = "root-leftovers";

/// It leaves its pid and the path of its lease file.
const JOB: &str = "echo $$ > pid; echo \"$INCUMBENT_LEASE_FILE\" > lease; echo leading; exec sleep 600";

fn run(world: &World, apart: &Cgroup, id: &str, options: &[&str], script: &str) -> Proc {
    run_of(ELECTION, world, apart, id, options, script)
}

fn run_of(election: &str, world: &World, apart: &Cgroup, id: &str, options: &[&str], script: &str) -> Proc {
    let id = format!("--id={id}");
    let options = [&["run", election, "--on=file:store", "--ttl=3s", &id], options].concat();
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

/// The old job, once its guardian is frozen and its run is dead.
fn outlived(a: &Proc, world: &World) -> u32 {
    let job = pid_in(&world.path("pid"));
    send(guardian(a), Signal::STOP);
    a.signal(Signal::KILL);
    job
}

/// The next run, elsewhere among the cgroups, says whether the old job lives when its own starts.
fn the_old_job_is_dead_when_the_next_starts(world: &World, apart: &Cgroup, election: &str, job: u32) {
    assert!(lives(job), "then this test shows nothing");
    let script = format!("grep -qs '^State:.[^ZX]' /proc/{job}/status && echo alive || echo dead; sleep 600");
    let next = run_of(election, world, apart, "next", &[], &script);
    let line = next.wait_line(|line| ["alive", "dead"].contains(&line), SOON);
    assert_eq!(line.text, "dead", "{}", next.transcript());
}

/// A run that does not see the cgroup of another's job took it for gone and removed the link that leads the next guardian to it.
#[test]
fn who_does_not_see_a_cgroup_leaves_the_link_to_it() {
    testkit::require(Capability::Root);
    let (Some(first), Some(second)) = (Cgroup::new(), Cgroup::new()) else { return };
    let world = World::new();
    let mount = second.path().ancestors().nth(1).expect("below a mount").display().to_string();
    let without = "umount -l /sys/fs/cgroup".to_owned();
    // A container's view: the same path, with something else in it.
    let another = format!(
        "umount -l /sys/fs/cgroup && mount -t tmpfs none /sys/fs/cgroup && mkdir -p {mount} && mount -t cgroup2 none {mount}"
    );
    for (number, (flags, view)) in [("-m", without), ("-Cm", another)].into_iter().enumerate() {
        let election = format!("{ELECTION}-unseen-{number}");
        let a = run_of(&election, &world, &first, "a", &[], JOB);
        a.wait_line(|line| line == "leading", SOON);
        let job = outlived(&a, &world);
        let link = world.path(world.read("lease").trim()).with_extension("cgroup");
        assert!(link.symlink_metadata().is_ok(), "then this test shows nothing");
        let other = world.incumbent(&["run", "other", "--on=file:other", "--", "true"]);
        let program = other.get_program().to_owned();
        let mut unshared = std::process::Command::new("unshare");
        let script = format!("{view} && exec \"$@\"");
        unshared.args([flags, "sh", "-c", &script, "sh"]).arg(program).args(other.get_args());
        unshared.current_dir(world.path(""));
        let (code, out, err) = ended(&Proc::spawn(second.command(&unshared)));
        assert_eq!(code, 0, "{out}{err}");
        the_old_job_is_dead_when_the_next_starts(&world, &second, &election, job);
    }
}

/// An operator or a cleaner of old files removes what lies beside the lease file, and that too: both are made again.
#[test]
fn what_was_removed_beside_a_lease_file_is_made_again() {
    testkit::require(Capability::Root);
    let (Some(first), Some(second)) = (Cgroup::new(), Cgroup::new()) else { return };
    let world = World::new();
    let election = format!("{ELECTION}-removed");
    let a = run_of(&election, &world, &first, "a", &[], JOB);
    a.wait_line(|line| line == "leading", SOON);
    let lease = world.path(world.read("lease").trim());
    let link = lease.with_extension("cgroup");
    for file in [&lease, &link] {
        std::fs::remove_file(file).expect("removed");
    }
    for file in [&lease, &link] {
        assert!(testkit::wait_until(SOON, || file.symlink_metadata().is_ok()), "{}", file.display());
    }
    let job = outlived(&a, &world);
    the_old_job_is_dead_when_the_next_starts(&world, &second, &election, job);
}

/// The first process of a pid namespace that sees the processes of the one around it: whatever has its number there is not it.
#[test]
fn a_guardian_that_dies_where_proc_is_another_namespaces_leaves_nothing_and_nobody_waits() {
    testkit::require(Capability::Root);
    let Some(first) = Cgroup::new() else { return };
    let world = World::new();
    let election = format!("{ELECTION}-proc");
    let on = ["run", &election, "--on=file:store", "--ttl=3s", "--id=a", "--", "sh", "-c"];
    let command = world.incumbent(&[&on[..], &["echo leading; exec sleep 600"]].concat());
    let mut unshared = std::process::Command::new("unshare");
    unshared.args(["-pf", "--kill-child"]).arg(command.get_program()).args(command.get_args());
    unshared.current_dir(world.path(""));
    let a = Proc::spawn(first.command(&unshared));
    a.wait_line(|line| line == "leading", SOON);
    let run = harness::children_of(a.pid())[0];
    let guardian = harness::children_of(run)[0];
    let job = harness::children_of(guardian)[0];
    send(guardian, Signal::KILL);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    send(run, Signal::TERM);
    assert!(testkit::wait_until(SOON, || !lives(run)), "{}", a.transcript());
}
