//! Consul, beside `consul lock`.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{Consul, Proc};

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S, TTL_S};
use super::{Bench, JOB, PATIENCE, started, time_to_hand_over};
use crate::Result;

/// What ours may cost more than the native tool, in milliseconds.
const MORE: f64 = 10.0;
/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// Processes of `consul lock`, a hundredth of a thousand.
const THEIRS: u32 = 10;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    hand_over(bench, &start()?, report);
    idle_requests(bench, &start()?, report);
    thousand(bench, &start()?, report)
}

/// A server of its own for each part: it counts a blocking query when it ends, though the process that asked is long dead.
fn start() -> Result<Consul> {
    Consul::single().start().map_err(|error| error.to_string())
}

fn hand_over(bench: &Bench, consul: &Consul, report: &mut Report) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| bench.candidate(&consul.url())));
        theirs.push(stop_the_first(|| Proc::spawn(lock(consul))));
    }
    let peer = median(&theirs);
    let because = format!("consul lock in the same run, {peer:.2} ms, + {MORE} ms");
    report.median_at_most(
        "consul: SIGTERM of the leader to the successor's job",
        "ms",
        ours,
        peer + MORE,
        because,
    );
}

fn lock(consul: &Consul) -> Command {
    let mut command = consul.command();
    command.args(["lock", "-shell=false", "bench-peer"]).args(JOB);
    command
}

fn stop_the_first(candidate: impl Fn() -> Proc) -> f64 {
    let leader = candidate();
    leader.wait_line(started, PATIENCE);
    let standby = candidate();
    time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM))
}

/// What a leader and a standby ask of Consul when nothing happens.
fn idle_requests(bench: &Bench, consul: &Consul, report: &mut Report) {
    let leader = bench.candidate(&consul.url());
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&consul.url());
    std::thread::sleep(Duration::from_secs(2));
    let before = consul.requests();
    std::thread::sleep(IDLE);
    let asked = consul.requests() - before;
    drop((leader, standby));
    let rounds = IDLE.as_secs_f64() / (TTL_S / 3.0) * 1.12 + 2.0;
    // Each renewal makes a session, moves the lock, ends the old session, and wakes the blocking queries of both.
    let bar = rounds * 5.0 + 12.0;
    report.at_most(
        "consul: requests of a leader and a standby per minute",
        "requests",
        asked as f64,
        bar,
        "five per renewal, one for each look and each query that waited in vain".to_owned(),
    );
}

fn thousand(bench: &Bench, consul: &Consul, report: &mut Report) -> Result {
    let asked = || consul.requests() as f64;
    // A process holds one.
    let before = asked();
    let peers: Vec<Proc> = (0..THEIRS)
        .map(|number| {
            let mut command = consul.command();
            command.args(["lock", "-shell=false", &format!("bench-peer-{number}")]).args(JOB);
            Proc::spawn(command)
        })
        .collect();
    for peer in &peers {
        peer.wait_line(started, PATIENCE);
    }
    std::thread::sleep(Duration::from_secs_f64(IDLE_S));
    let native = (asked() - before) * 1000.0 / f64::from(THEIRS);
    drop(peers);
    let bars = Bars {
        acquired_ms: 5000.0,
        idle_percent: 10.0,
        // One by one it would be two a renewal, 8000 in the 20 s, and 2000 to begin with.
        requests: 3000.0,
        because: format!(
            "a look each to begin with, then 48 transactions per renewal of them all; a hundred times what {THEIRS} consul lock asked is {native:.0}"
        ),
    };
    thousand::measure(bench, report, "consul", &format!("{}/thousand/", consul.url()), asked, bars)
}
