//! One election shared with the clients that others already run: `etcdctl elect`, `etcdctl lock` and Go's
//! `concurrency.Election`. Each side waits for the other, goes politely, and crashes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use testkit::etcd::{Etcd, Version};
use testkit::fetch;
use testkit::proc::Proc;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a waiter is watched before it is believed to wait.
const WATCHED: Duration = Duration::from_millis(700);

/// A client of another kind.
#[derive(Clone, Copy, Debug)]
enum Peer {
    /// Its session lasts 60 s and cannot be set.
    Elect,
    Lock,
    Go,
}

impl Peer {
    fn stand(self, etcd: &Etcd) -> Proc {
        let command = match self {
            Peer::Elect => {
                let mut command = etcd.etcdctl_command();
                command.args(["elect", "billing", "the-peer"]);
                command
            }
            Peer::Lock => {
                let mut command = etcd.etcdctl_command();
                command.args([
                    "lock",
                    "--ttl=2",
                    "billing",
                    "--",
                    "sh",
                    "-c",
                    "echo elected; exec sleep 600",
                ]);
                command
            }
            Peer::Go => {
                let mut command = Command::new(go_candidate());
                command.args([&etcd.endpoints()[0], "2", "billing", "the-peer"]);
                command
            }
        };
        Proc::spawn(command)
    }

    fn leads(self, line: &str) -> bool {
        match self {
            Peer::Elect => line.starts_with("billing/"),
            Peer::Lock | Peer::Go => line.starts_with("elected"),
        }
    }
}

fn ours(etcd: &Etcd, id: &str) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    command.args(["run", "billing", "--id", id, "--ttl", "3s", "--on", &etcd.url(), "--"]);
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

/// The keys of the election, first in line first.
fn queue(etcd: &Etcd) -> Vec<String> {
    let keys = etcd.etcdctl_ok(&["get", "billing/", "--prefix", "--keys-only", "--sort-by=CREATE"]);
    keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn each(versions: &[Version], peers: &[Peer], test: impl Fn(&Etcd, Peer)) {
    for version in versions {
        let etcd = Etcd::single(*version).start().expect("etcd starts");
        for peer in peers {
            test(&etcd, *peer);
            assert!(
                testkit::wait_until(PATIENCE, || queue(&etcd).is_empty()),
                "{peer:?} and we left {:?}",
                queue(&etcd)
            );
        }
    }
}

const BOTH: [Version; 2] = [Version::V3_4, Version::V3_5];

#[test]
fn we_wait_for_theirs_and_follow_when_it_goes() {
    each(&BOTH, &[Peer::Elect, Peer::Lock, Peer::Go], |etcd, peer| {
        let theirs = peer.stand(etcd);
        theirs.wait_line(|line| peer.leads(line), PATIENCE);
        let before = queue(etcd);
        let us = ours(etcd, "us");
        us.wait_line(|line| line.starts_with("standby: billing is led by"), PATIENCE);
        waits(&us, we_lead);
        assert_eq!(queue(etcd)[..1], before[..], "we stand behind {peer:?} and leave its key alone");
        theirs.signal_group(Signal::TERM);
        us.wait_line(we_lead, PATIENCE);
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    });
}

#[test]
fn they_wait_for_us_and_follow_when_we_go() {
    each(&BOTH, &[Peer::Elect, Peer::Lock, Peer::Go], |etcd, peer| {
        let us = ours(etcd, "us");
        us.wait_line(we_lead, PATIENCE);
        let before = queue(etcd);
        let theirs = peer.stand(etcd);
        assert!(testkit::wait_until(PATIENCE, || queue(etcd).len() == 2));
        waits(&theirs, |line| peer.leads(line));
        assert_eq!(queue(etcd)[..1], before[..], "{peer:?} stands behind us");
        us.signal(Signal::TERM);
        theirs.wait_line(|line| peer.leads(line), PATIENCE);
        theirs.signal_group(Signal::TERM);
        theirs.wait(PATIENCE);
    });
}

#[test]
fn a_crash_of_theirs_hands_over_to_us() {
    each(&BOTH, &[Peer::Lock, Peer::Go], |etcd, peer| {
        let theirs = peer.stand(etcd);
        theirs.wait_line(|line| peer.leads(line), PATIENCE);
        let us = ours(etcd, "us");
        waits(&us, we_lead);
        theirs.signal_group(Signal::KILL);
        us.wait_line(we_lead, PATIENCE);
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    });
}

#[test]
fn a_crash_of_ours_hands_over_to_them() {
    each(&BOTH, &[Peer::Elect, Peer::Lock, Peer::Go], |etcd, peer| {
        let us = ours(etcd, "us");
        us.wait_line(we_lead, PATIENCE);
        let theirs = peer.stand(etcd);
        waits(&theirs, |line| peer.leads(line));
        us.signal(Signal::KILL);
        theirs.wait_line(|line| peer.leads(line), PATIENCE);
        theirs.signal_group(Signal::TERM);
        theirs.wait(PATIENCE);
    });
}

/// A leader of another kind obeys no request: that is an error at once, not a wait.
#[test]
fn a_foreign_leader_is_shown_and_cannot_be_asked_to_go() {
    each(&[Version::V3_5], &[Peer::Elect], |etcd, peer| {
        let theirs = peer.stand(etcd);
        theirs.wait_line(|line| peer.leads(line), PATIENCE);
        let us = ours(etcd, "us");
        us.wait_line(|line| line.contains("led by the-peer"), PATIENCE);
        let ask = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
            command.args(args).args(["--on", &etcd.url()]).output().expect("the command runs")
        };
        let status = ask(&["status", "billing", "--json"]);
        assert!(String::from_utf8_lossy(&status.stdout).contains("the-peer"), "{status:?}");
        for args in [&["resign", "billing"][..], &["transfer", "billing", "--to", "us"]] {
            let refused = ask(args);
            assert!(!refused.status.success());
            let text = String::from_utf8_lossy(&refused.stderr);
            assert!(text.contains("cannot be asked"), "{args:?}: {text}");
        }
        theirs.signal_group(Signal::TERM);
        us.wait_line(we_lead, PATIENCE);
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    });
}

/// The Go candidate of `interop/etcd-go`, built once.
fn go_candidate() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| fetch::interop("etcd-go").expect("it builds"))
}
