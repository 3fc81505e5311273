//! A disk that is full while somebody leads, and a leader that is frozen while it holds the locks.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use testkit::{Capability, Signal, fetch, require, run_dir, wait_until};

use crate::process::{Candidate, PATIENCE, SHORT, url};

/// A candidate in a mount name space of its own, with a small disk on `dir`.
fn on_a_small_disk(dir: &Path, id: &str) -> Candidate {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=256k,mode=700 tmpfs \"$0\" && exec \"$@\""]);
    command.arg(dir).arg(std::env::current_exe().unwrap());
    Candidate::start_with(&url(dir, SHORT), id, command)
}

#[test]
fn a_full_disk_ends_the_term_and_says_so() {
    require(Capability::Root);
    let dir = run_dir("full");
    let candidate = on_a_small_disk(&dir, "a");
    let (_, token) = candidate.elected(1);
    // The disk as the candidate sees it.
    let inside = Path::new("/proc").join(candidate.proc.pid().to_string()).join("root");
    let inside = inside.join(dir.strip_prefix("/").unwrap());
    let mut file = File::create(inside.join("full")).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    let trouble = candidate.line("trouble ReadOnly", 1).text;
    assert!(trouble.contains("free some space"), "{trouble}");
    candidate.line("lost ", 1);
    let leftover = |name: &str| name.ends_with(".new");
    let names =
        || fs::read_dir(&inside).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(wait_until(PATIENCE, || !names().any(|name| leftover(&name))));
    assert_eq!(candidate.count("elected "), 1);
    drop(file);
    fs::remove_file(inside.join("full")).unwrap();
    let (_, newer) = candidate.elected(2);
    assert!(newer > token);
}

/// A candidate that is frozen in the middle of the first commit that replaces a record: its first renewal.
fn frozen_inside_a_commit(url: &str, id: &str) -> Candidate {
    require(Capability::Ptrace);
    let mut strace = fetch::strace().unwrap();
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=rename,renameat,renameat2"]);
    strace.args(["-e", "inject=rename,renameat,renameat2:signal=STOP:when=1"]);
    strace.arg(std::env::current_exe().unwrap());
    Candidate::start_with(url, id, strace)
}

#[test]
fn a_process_frozen_inside_a_commit_stops_its_election_until_it_dies() {
    let dir = run_dir("frozen-dies");
    let (frozen, standby) = wait_for_the_freeze(&dir);
    frozen.proc.signal_group(Signal::KILL);
    standby.elected(1);
}

#[test]
fn a_process_frozen_inside_a_commit_stops_its_election_until_it_wakes() {
    let dir = run_dir("frozen-wakes");
    let (mut frozen, standby) = wait_for_the_freeze(&dir);
    frozen.tell("check");
    // Each thread that commits for the first time is frozen once.
    assert!(wait_until(PATIENCE, || {
        frozen.proc.signal_group(Signal::CONT);
        standby.count("elected ") == 1
    }));
    assert_eq!(frozen.line("check ", 1).text, "check over");
    assert_eq!(frozen.count("elected "), 1, "{}", frozen.proc.transcript());
    frozen.line("lost ", 1);
}

/// Returns the frozen leader and a standby that has waited far longer than the lease lasts.
fn wait_for_the_freeze(dir: &Path) -> (Candidate, Candidate) {
    let frozen = frozen_inside_a_commit(&url(dir, SHORT), "frozen");
    let (_, _) = frozen.elected(1);
    let standby = Candidate::start(&url(dir, SHORT), "standby");
    standby.line("leader frozen", 1);
    let trouble = standby.line("trouble Unavailable", 1).text;
    assert!(trouble.contains("frozen") && trouble.contains("billing.lock"), "{trouble}");
    sleep(SHORT + Duration::from_secs(1));
    assert_eq!(standby.count("elected "), 0);
    assert_eq!(frozen.count("lost "), 0, "it is frozen");
    // Another election in the same directory goes on.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let other = incumbent::connect(&url(dir, SHORT)).await.unwrap().election("other");
        other.candidate("a").run(async |_| ()).await.unwrap();
    });
    (frozen, standby)
}
