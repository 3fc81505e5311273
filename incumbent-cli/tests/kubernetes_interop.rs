//! One Lease shared with client-go's `leaderelection`. Each side waits for the other, goes politely, and crashes; neither harms what
//! the other wrote.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::kubernetes::ADMIN;
use testkit::{Kubernetes, Proc, Signal, fetch};

const PATIENCE: Duration = Duration::from_secs(90);
/// How long a waiter is watched before it is believed to wait: longer than a renewal interval of both.
const WATCHED: Duration = Duration::from_secs(6);
/// The lease duration of both.
const SECONDS: &str = "5";

fn server() -> Kubernetes {
    Kubernetes::start().expect("the API server starts")
}

fn theirs(server: &Kubernetes, identity: &str) -> Proc {
    let mut command = Command::new(go_candidate());
    command.arg(server.kubeconfig(ADMIN)).args(["default", "billing", identity, SECONDS]);
    Proc::spawn(command)
}

fn ours(server: &Kubernetes, id: &str) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    command.args([
        "run",
        "billing",
        "--id",
        id,
        "--ttl",
        &format!("{SECONDS}s"),
        "--on",
        &server.url(),
        "--",
    ]);
    command.args(["sh", "-c", "echo leading $INCUMBENT_TOKEN; exec sleep 600"]);
    Proc::spawn(command)
}

fn we_lead(line: &str) -> bool {
    line.starts_with("leading ")
}

fn they_lead(line: &str) -> bool {
    line == "elected"
}

#[track_caller]
fn token(process: &Proc, term: usize) -> u64 {
    let lines = process.wait_lines(term, we_lead, PATIENCE);
    lines[term - 1].text["leading ".len()..].parse().expect("a token")
}

#[track_caller]
fn waits(process: &Proc, leads: impl Fn(&str) -> bool) {
    std::thread::sleep(WATCHED);
    let lines = process.lines();
    assert!(!lines.iter().any(|line| leads(&line.text)), "two leaders: {}", process.transcript());
    assert!(process.try_wait().is_none(), "{}", process.transcript());
}

#[track_caller]
fn lease(server: &Kubernetes) -> Value {
    server.lease("billing").expect("the Lease is there")
}

fn holder(server: &Kubernetes) -> String {
    lease(server)["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn end(process: &Proc) {
    process.signal(Signal::TERM);
    process.wait(PATIENCE);
}

#[test]
fn we_wait_for_theirs_and_follow_when_it_goes_and_back() {
    let server = server();
    let go = theirs(&server, "go-1");
    go.wait_line(they_lead, PATIENCE);
    // Somebody else's marks on the Lease, which nobody may lose.
    server.edit_lease("billing", |lease| {
        lease["metadata"]["labels"] = json!({ "team": "payments" });
        lease["metadata"]["annotations"] = json!({ "team.example/note": "ours" });
    });
    let us = ours(&server, "us");
    us.wait_line(
        |line| line.starts_with("standby: billing is led by go-1 (a client of another kind"),
        PATIENCE,
    );
    waits(&us, we_lead);
    assert_eq!(holder(&server), "go-1");
    assert!(go.lines().iter().all(|line| line.text != "lost"), "{}", go.transcript());
    go.signal(Signal::TERM);
    let first = token(&us, 1);
    go.wait_line(|line| line == "released", PATIENCE);

    let held = lease(&server);
    assert!(holder(&server).starts_with("us_"), "{held}");
    assert_eq!(held["metadata"]["labels"]["team"], "payments", "{held}");
    assert_eq!(held["metadata"]["annotations"]["team.example/note"], "ours", "{held}");
    assert_eq!(held["spec"]["leaseDurationSeconds"], 5, "{held}");

    let go = theirs(&server, "go-2");
    waits(&go, they_lead);
    assert!(holder(&server).starts_with("us_"));
    end(&us);
    go.wait_line(they_lead, PATIENCE);
    let held = lease(&server);
    assert_eq!(held["metadata"]["annotations"]["team.example/note"], "ours", "{held}");
    assert_eq!(held["metadata"]["labels"]["team"], "payments", "{held}");

    let again = ours(&server, "again");
    again.wait_line(|line| line.starts_with("standby: billing is led by go-2"), PATIENCE);
    end(&go);
    assert!(token(&again, 1) > first, "our tokens rise over terms of theirs");
}

#[test]
fn a_crash_of_either_hands_over() {
    let server = server();
    let go = theirs(&server, "go-1");
    go.wait_line(they_lead, PATIENCE);
    let us = ours(&server, "us");
    waits(&us, we_lead);
    go.signal(Signal::KILL);
    token(&us, 1);
    let go = theirs(&server, "go-2");
    waits(&go, they_lead);
    us.signal(Signal::KILL);
    go.wait_line(they_lead, PATIENCE);
    assert_eq!(holder(&server), "go-2");
    end(&go);
}

/// client-go releases by a record that it holds in its memory (E2): a successor of ours is not wiped out, and a frozen client-go
/// that wakes up takes nothing back.
#[test]
fn e2_a_client_go_that_wakes_up_takes_nothing_from_us() {
    let server = server();
    let go = theirs(&server, "go-1");
    go.wait_line(they_lead, PATIENCE);
    let us = ours(&server, "us");
    us.wait_line(|line| line.starts_with("standby: "), PATIENCE);
    go.signal(Signal::STOP);
    let first = token(&us, 1);
    go.signal(Signal::CONT);
    go.wait_line(|line| line == "lost", PATIENCE);
    std::thread::sleep(WATCHED);
    assert!(holder(&server).starts_with("us_"), "{}", lease(&server));
    assert!(us.lines().iter().all(|line| !line.text.starts_with("lost")), "{}", us.transcript());
    assert_eq!(token(&us, 1), first);
}

/// A leader of another kind obeys no request: that is an error at once, not a wait.
#[test]
fn a_foreign_leader_is_shown_and_cannot_be_asked_to_go() {
    let server = server();
    let go = theirs(&server, "go-1");
    go.wait_line(they_lead, PATIENCE);
    let ask = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
        command.args(args).args(["--on", &server.url()]).output().expect("the command runs")
    };
    let status = ask(&["status", "billing", "--json"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("go-1"), "{status:?}");
    for args in [&["resign", "billing"][..], &["transfer", "billing", "--to", "us"]] {
        let refused = ask(args);
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("cannot be asked"), "{args:?}: {text}");
    }
    end(&go);
}

/// The Go candidate of `interop/client-go`, built once.
fn go_candidate() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| fetch::interop("client-go").expect("it builds"))
}
