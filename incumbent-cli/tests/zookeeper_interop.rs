//! One election shared with kazoo's `Election` and `Lock`. Each side waits for the other, goes politely, and crashes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::proc::Proc;
use testkit::zookeeper::{Version, Zookeeper};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a waiter is watched before it is believed to wait.
const WATCHED: Duration = Duration::from_millis(700);
/// The kazoo that the programs were written for.
const KAZOO: &str = "kazoo==2.11.0";
const KINDS: [&str; 2] = ["election", "lock"];

fn theirs(zookeeper: &Zookeeper, kind: &str) -> Proc {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut command = testkit::python::with("kazoo", &[KAZOO]).expect("kazoo");
    command.arg(workspace.join("interop/kazoo/candidate.py"));
    command.args([kind, &zookeeper.endpoints().join(","), "/billing", "the-peer", "2"]);
    let process = Proc::spawn(command);
    process.wait_line(|line| line == "standing", PATIENCE);
    process
}

fn they_lead(line: &str) -> bool {
    line == "started"
}

fn ours(zookeeper: &Zookeeper, id: &str) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    command.args(["run", "billing", "--id", id, "--ttl", "3s", "--on", &zookeeper.url(), "--"]);
    command.args(["sh", "-c", "echo leading $INCUMBENT_TOKEN; exec sleep 600"]);
    Proc::spawn(command)
}

fn we_lead(line: &str) -> bool {
    line.starts_with("leading ")
}

fn waits(process: &Proc, leads: impl Fn(&str) -> bool) {
    std::thread::sleep(WATCHED);
    let lines = process.lines();
    assert!(!lines.iter().any(|line| leads(&line.text)), "two leaders: {}", process.transcript());
    assert!(process.try_wait().is_none(), "{}", process.transcript());
}

/// The nodes of the election, first in line first.
fn queue(zookeeper: &Zookeeper) -> Vec<String> {
    zookeeper.hand().children("/billing")
}

fn each(test: impl Fn(&Zookeeper, &str)) {
    for version in Version::ALL {
        let zookeeper = Zookeeper::single(version).start().expect("ZooKeeper starts");
        for kind in KINDS {
            test(&zookeeper, kind);
            assert!(
                testkit::wait_until(PATIENCE, || queue(&zookeeper).is_empty()),
                "kazoo's {kind} and we left {:?}",
                queue(&zookeeper)
            );
        }
    }
}

#[test]
fn we_wait_for_theirs_and_follow_when_it_goes() {
    each(|zookeeper, kind| {
        let theirs = theirs(zookeeper, kind);
        theirs.wait_line(they_lead, PATIENCE);
        let before = queue(zookeeper);
        let us = ours(zookeeper, "us");
        us.wait_line(|line| line.contains("led by the-peer"), PATIENCE);
        waits(&us, we_lead);
        assert_eq!(
            queue(zookeeper)[..1],
            before[..],
            "we stand behind kazoo's {kind} and leave its node alone"
        );
        theirs.signal(Signal::TERM);
        us.wait_line(we_lead, PATIENCE);
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    });
}

#[test]
fn they_wait_for_us_and_follow_when_we_go() {
    each(|zookeeper, kind| {
        let us = ours(zookeeper, "us");
        us.wait_line(we_lead, PATIENCE);
        let before = queue(zookeeper);
        let theirs = theirs(zookeeper, kind);
        assert!(testkit::wait_until(PATIENCE, || queue(zookeeper).len() == 2));
        waits(&theirs, they_lead);
        assert_eq!(queue(zookeeper)[..1], before[..], "kazoo's {kind} stands behind us");
        us.signal(Signal::TERM);
        theirs.wait_line(they_lead, PATIENCE);
        theirs.signal(Signal::TERM);
        theirs.wait(PATIENCE);
    });
}

#[test]
fn a_crash_of_theirs_hands_over_to_us() {
    each(|zookeeper, kind| {
        let theirs = theirs(zookeeper, kind);
        theirs.wait_line(they_lead, PATIENCE);
        let us = ours(zookeeper, "us");
        waits(&us, we_lead);
        theirs.signal(Signal::KILL);
        us.wait_line(we_lead, PATIENCE);
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    });
}

#[test]
fn a_crash_of_ours_hands_over_to_them() {
    each(|zookeeper, kind| {
        let us = ours(zookeeper, "us");
        us.wait_line(we_lead, PATIENCE);
        let theirs = theirs(zookeeper, kind);
        waits(&theirs, they_lead);
        us.signal(Signal::KILL);
        theirs.wait_line(they_lead, PATIENCE);
        theirs.signal(Signal::TERM);
        theirs.wait(PATIENCE);
    });
}

/// A leader of another kind obeys no request: that is an error at once, not a wait.
#[test]
fn a_foreign_leader_is_shown_and_cannot_be_asked_to_go() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper starts");
    let theirs = theirs(&zookeeper, "election");
    theirs.wait_line(they_lead, PATIENCE);
    let ask = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
        command.args(args).args(["--on", &zookeeper.url()]).output().expect("the command runs")
    };
    let status = ask(&["status", "billing", "--json"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("the-peer"), "{status:?}");
    let refused = ask(&["resign", "billing"]);
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("cannot be asked"), "{text}");
}
