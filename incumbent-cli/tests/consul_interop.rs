//! One election shared with `consul lock`. Each side waits for the other, goes politely, and crashes.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{Consul, Proc};

/// A killed `consul lock` holds on for twice its 15 s, and Consul keeps the key from others for 15 s more.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a waiter is watched before it is believed to wait.
const WATCHED: Duration = Duration::from_millis(700);
const KEY: &str = "billing/.lock";

fn consul() -> Consul {
    Consul::single().start().expect("Consul starts")
}

fn theirs(consul: &Consul) -> Proc {
    let mut command = consul.command();
    command.args(["lock", "-child-exit-code", "billing", "echo elected; exec sleep 600"]);
    Proc::spawn(command)
}

fn they_lead(line: &str) -> bool {
    line == "elected"
}

fn ours(consul: &Consul, id: &str) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    command.args(["run", "billing", "--id", id, "--ttl", "3s", "--on", &consul.url(), "--"]);
    command.args(["sh", "-c", "echo leading $INCUMBENT_TOKEN; exec sleep 600"]);
    Proc::spawn(command)
}

fn we_lead(line: &str) -> bool {
    line.starts_with("leading ")
}

fn token(process: &Proc) -> u64 {
    let line = process.wait_line(we_lead, PATIENCE);
    line.text["leading ".len()..].parse().expect("a token")
}

fn waits(process: &Proc, leads: impl Fn(&str) -> bool) {
    std::thread::sleep(WATCHED);
    let lines = process.lines();
    assert!(!lines.iter().any(|line| leads(&line.text)), "two leaders: {}", process.transcript());
    assert!(process.try_wait().is_none(), "{}", process.transcript());
}

/// Twice, since `consul lock` deletes the key when it goes: the token must rise over that.
#[test]
fn we_wait_for_theirs_and_follow_when_it_goes() {
    let consul = consul();
    let mut last = 0;
    for _ in 0..2 {
        let theirs = theirs(&consul);
        theirs.wait_line(they_lead, PATIENCE);
        let before = consul.key(KEY).expect("their lock");
        let us = ours(&consul, "us");
        us.wait_line(|line| line.starts_with("standby: billing is led by session "), PATIENCE);
        waits(&us, we_lead);
        assert_eq!(consul.key(KEY), Some(before), "we leave their lock alone");
        theirs.signal_group(Signal::TERM);
        let token = token(&us);
        assert!(token > last, "{token} came after {last}");
        last = token;
        us.signal(Signal::TERM);
        us.wait(PATIENCE);
    }
}

#[test]
fn they_wait_for_us_and_follow_when_we_go() {
    let consul = consul();
    let us = ours(&consul, "us");
    us.wait_line(we_lead, PATIENCE);
    let theirs = theirs(&consul);
    // Over several moves of the lock to another session.
    for _ in 0..8 {
        waits(&theirs, they_lead);
        let lock = consul.key(KEY).expect("our lock");
        assert_eq!(lock["Flags"].as_u64(), Some(0x2ddc_cbc0_58a5_0c18), "the mark of a lock");
    }
    us.signal(Signal::TERM);
    theirs.wait_line(they_lead, PATIENCE);
    theirs.signal_group(Signal::TERM);
    theirs.wait(PATIENCE);
    assert_eq!(consul.key(KEY), None, "consul lock removes the key when it goes");
}

#[test]
fn a_crash_of_theirs_hands_over_to_us() {
    let consul = consul();
    let theirs = theirs(&consul);
    theirs.wait_line(they_lead, PATIENCE);
    let us = ours(&consul, "us");
    waits(&us, we_lead);
    theirs.signal_group(Signal::KILL);
    us.wait_line(we_lead, PATIENCE);
    us.signal(Signal::TERM);
    us.wait(PATIENCE);
}

#[test]
fn a_crash_of_ours_hands_over_to_them() {
    let consul = consul();
    let us = ours(&consul, "us");
    us.wait_line(we_lead, PATIENCE);
    let theirs = theirs(&consul);
    waits(&theirs, they_lead);
    us.signal(Signal::KILL);
    theirs.wait_line(they_lead, PATIENCE);
    let lock = consul.key(KEY).expect("their lock");
    assert!(lock["Session"].is_string(), "{lock}");
    theirs.signal_group(Signal::TERM);
    theirs.wait(PATIENCE);
}

/// A leader of another kind obeys no request: that is an error at once, not a wait.
#[test]
fn a_foreign_leader_is_shown_and_cannot_be_asked_to_go() {
    let consul = consul();
    let theirs = theirs(&consul);
    theirs.wait_line(they_lead, PATIENCE);
    let us = ours(&consul, "us");
    us.wait_line(|line| line.contains("(a client of another kind"), PATIENCE);
    let ask = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
        command.args(args).args(["--on", &consul.url()]).output().expect("the command runs")
    };
    let holder = consul.holder(KEY).expect("they lead");
    let status = ask(&["status", "billing", "--json"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains(&holder), "{status:?}");
    for args in [&["resign", "billing"][..], &["transfer", "billing", "--to", "us"]] {
        let refused = ask(args);
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("cannot be asked"), "{args:?}: {text}");
    }
    theirs.signal_group(Signal::TERM);
    us.wait_line(we_lead, PATIENCE);
}

/// `consul lock -n` keeps its list of holders under the same key, unlocked most of the time.
#[test]
fn a_semaphore_of_theirs_is_not_taken() {
    let consul = consul();
    let mut command = consul.command();
    command.args(["lock", "-n", "2", "billing", "echo elected; exec sleep 600"]);
    let theirs = Proc::spawn(command);
    theirs.wait_line(they_lead, PATIENCE);
    let before = consul.key(KEY).expect("their semaphore");
    let us = ours(&consul, "us");
    us.wait_line(|line| line.starts_with("error: ") && line.contains("is a semaphore"), PATIENCE);
    assert_eq!(us.wait(PATIENCE).code(), Some(125));
    assert_eq!(consul.key(KEY), Some(before), "we leave it alone");
    theirs.signal_group(Signal::TERM);
}
