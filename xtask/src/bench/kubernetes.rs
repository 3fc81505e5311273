//! Kubernetes, beside client-go's `leaderelection`, at one API server.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{Kubernetes, Proc};

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S, NEW_RECORDS_MS, TTL_S};
use super::{Bench, PATIENCE, started, time_to_hand_over};
use crate::Result;

/// How many times faster the successor works than client-go's.
const FASTER: f64 = 50.0;
/// client-go without `ReleaseOnCancel` lets the whole lease run out each time.
const SLOW_ROUNDS: usize = 5;
/// How long the requests of idle pairs are counted.
const IDLE: Duration = Duration::from_secs(120);
/// What may fall on the edges of that time.
const EDGE: f64 = 0.5;
/// Electors of client-go in one process: ten times as many would keep the API server busy.
const THEIRS: u32 = 100;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let users =
        ["our-leader", "our-standby", "their-leader", "their-standby", "our-thousand", "their-hundred"];
    let options = users.iter().fold(Kubernetes::options().audit(), |options, user| options.user(*user));
    let server = options.start().map_err(|error| error.to_string())?;
    let client_go = testkit::fetch::interop("client-go").map_err(|error| error.to_string())?;
    hand_over(bench, &server, &client_go, report);
    idle_requests(bench, &server, &client_go, report);
    many(bench, &server, &client_go, report)
}

/// A candidate of client-go with its default durations.
fn theirs(server: &Kubernetes, program: &Path, user: &str, flags: &[&str]) -> Proc {
    let mut command = Command::new(program);
    command.args(flags).arg(server.kubeconfig(user)).args(["default", "bench-peer", user, "15"]);
    Proc::spawn(command)
}

fn elected(line: &str) -> bool {
    line == "elected"
}

fn hand_over(bench: &Bench, server: &Kubernetes, program: &Path, report: &mut Report) {
    // A new record counts as held for a ttl: that is no hand-over.
    let first = bench.candidate(&format!("{}&ttl=5s", server.url()));
    first.wait_line(started, PATIENCE);
    first.signal_group(Signal::TERM);
    first.wait(PATIENCE);
    let ours = (0..bench.rounds).map(|_| {
        let leader = bench.candidate(&server.url());
        leader.wait_line(started, PATIENCE);
        let standby = bench.candidate(&server.url());
        time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM))
    });
    let ours: Vec<f64> = ours.collect();
    let peers = |rounds: usize, flags: &[&str]| -> Vec<f64> {
        (0..rounds).map(|_| hand_over_of_theirs(server, program, flags)).collect()
    };
    let slow = median(&peers(bench.rounds.min(SLOW_ROUNDS), &["-release=false"]));
    let released = median(&peers(bench.rounds, &[]));
    report.median_at_most(
        "kubernetes: SIGTERM of the leader to the successor's job",
        "ms",
        ours.clone(),
        slow / FASTER,
        format!("1/{FASTER} of client-go with its defaults in the same run, {slow:.0} ms"),
    );
    report.median_at_most(
        "kubernetes: the same, where client-go releases (ReleaseOnCancel)",
        "ms",
        ours,
        released,
        "client-go in the same run".to_owned(),
    );
}

/// From SIGTERM of one that leads to the start of the next one's work.
fn hand_over_of_theirs(server: &Kubernetes, program: &Path, flags: &[&str]) -> f64 {
    let leader = theirs(server, program, "their-leader", flags);
    leader.wait_line(elected, PATIENCE);
    let standby = theirs(server, program, "their-standby", flags);
    standby.wait_line(|line| line == "leader their-leader", PATIENCE);
    std::thread::sleep(super::SETTLE);
    let from = testkit::now();
    leader.signal(Signal::TERM);
    let elapsed = super::millis(standby.wait_line(elected, PATIENCE).at.since(from));
    standby.signal(Signal::TERM);
    standby.wait(PATIENCE);
    elapsed
}

/// What a leader and a standby of each kind ask when nothing happens, by the API server's own audit log.
fn idle_requests(bench: &Bench, server: &Kubernetes, program: &Path, report: &mut Report) {
    let leader = bench.candidate(&server.url_as("our-leader"));
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&server.url_as("our-standby"));
    standby.wait_line(|line| line.starts_with("standby: "), PATIENCE);
    let their_leader = theirs(server, program, "their-leader", &[]);
    their_leader.wait_line(elected, PATIENCE);
    let their_standby = theirs(server, program, "their-standby", &[]);
    std::thread::sleep(Duration::from_secs(3));
    let users = ["our-leader", "our-standby", "their-leader", "their-standby"];
    let before = users.map(|user| count(server, user));
    std::thread::sleep(IDLE);
    let minutes = IDLE.as_secs_f64() / 60.0;
    let mut asked = users.map(|user| count(server, user));
    for (asked, before) in asked.iter_mut().zip(before) {
        *asked = (*asked - before) / minutes;
    }
    let [ours, our_standby, theirs, their_standby_asked] = asked;
    let watches = requests(server, "our-standby", |verb| verb == "watch");
    drop((leader, standby, their_leader, their_standby));
    report.at_most(
        "kubernetes: requests of a leader per minute",
        "requests",
        ours,
        6.0 + EDGE,
        format!("6, a half more at the edge of the two minutes; client-go {theirs:.2}"),
    );
    report.at_most(
        "kubernetes: requests of a standby per minute",
        "requests",
        our_standby,
        1.0,
        format!("one watch besides; client-go {their_standby_asked:.2}"),
    );
    report.at_most("kubernetes: watches of a standby", "requests", watches, 1.0, "it stays open".to_owned());
}

/// Everything that `user` asked, but for the watches.
fn count(server: &Kubernetes, user: &str) -> f64 {
    requests(server, user, |verb| verb != "watch")
}

fn requests(server: &Kubernetes, user: &str, verb: impl Fn(&str) -> bool) -> f64 {
    server.requests().iter().filter(|request| request.user == user && verb(&request.verb)).count() as f64
}

/// Many elections in one process of each kind. client-go knows no way to share requests between them.
fn many(bench: &Bench, server: &Kubernetes, program: &Path, report: &mut Report) -> Result {
    let many = format!("-count={THEIRS}");
    let peer = theirs(server, program, "their-hundred", &[&many]);
    peer.wait_line(|line| line == "all elected", PATIENCE);
    std::thread::sleep(Duration::from_secs_f64(IDLE_S));
    let native = requests(server, "their-hundred", |_| true) * 1000.0 / f64::from(THEIRS);
    drop(peer);
    let asked = || requests(server, "our-thousand", |_| true);
    let bars = Bars {
        acquired_ms: NEW_RECORDS_MS,
        idle_percent: 5.0,
        // To win a new one it is looked for, created and taken; then a renewal in 10 s.
        requests: 1000.0 * (4.0 + IDLE_S / (TTL_S * 2.0 / 3.0) * 1.12 + 1.0),
        because: format!(
            "to look, create, take, and a renewal in 10 s for each; ten times what {THEIRS} electors of client-go asked is {native:.0}"
        ),
    };
    thousand::measure(bench, report, "kubernetes", &server.url_as("our-thousand"), asked, bars)
}
