//! A system that lets nobody start another thread, as when a leader's own work has started all that there may be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use testkit::run_dir;

use crate::process::{Candidate, UID, url};

/// As a user for whom the limit of processes counts.
fn candidate(ttl: Duration) -> Candidate {
    let dir = run_dir("threads");
    let mut command = Command::new(std::env::current_exe().unwrap());
    if testkit::probe::is_root() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        command.env(UID, "65534");
    }
    Candidate::start_with(&url(&dir, ttl), "a", command)
}

fn no_more_threads(of: &Candidate) {
    let pid = Pid::from_raw(i32::try_from(of.proc.pid()).unwrap());
    prlimit(pid, Resource::Nproc, Rlimit { current: Some(1), maximum: Some(1) }).unwrap();
}

#[test]
fn a_leader_renews_although_no_thread_can_be_started() {
    let often = candidate(Duration::from_secs(3));
    // So seldom that the runtime would have ended the threads that wait for nothing.
    let seldom = candidate(Duration::from_secs(36));
    for leader in [&often, &seldom] {
        leader.elected(1);
        no_more_threads(leader);
    }
    sleep(Duration::from_secs(16));
    for leader in [&often, &seldom] {
        let bad = |line: &str| {
            ["trouble", "lost", "ended"].iter().any(|begin| line.starts_with(begin))
                || line.contains("panicked")
        };
        let transcript = leader.proc.transcript();
        assert!(!leader.proc.lines().iter().any(|line| bad(&line.text)), "{transcript}");
    }
}
