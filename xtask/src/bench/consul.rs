//! Consul, beside `consul lock`.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{Consul, Proc};

use super::report::{Report, median};
use super::{Bench, JOB, PATIENCE, started, time_to_hand_over};
use crate::Result;

/// What ours may cost more than the native tool, in milliseconds.
const MORE: f64 = 10.0;
/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// The default ttl, in seconds.
const TTL_S: f64 = 15.0;

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
    let before = consul.requests();
    let value = bench.program("thousand", Some(&format!("{}/thousand/", consul.url())))?;
    let asked = consul.requests() - before;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let what = "1000 elections in one process";
    report.at_most(
        "consul: 1000 elections, all acquired",
        "ms",
        figure("acquired_ms"),
        5000.0,
        what.to_owned(),
    );
    let lost = 1000.0 - figure("kept");
    report.at_most("consul: 1000 elections, lost while idle", "terms", lost, 0.0, what.to_owned());
    report.at_most(
        "consul: 1000 elections, resident memory",
        "MiB",
        figure("rss_mib"),
        64.0,
        what.to_owned(),
    );
    report.at_most(
        "consul: 1000 elections, idle",
        "% of a core",
        figure("idle_core_percent"),
        10.0,
        what.to_owned(),
    );
    // One by one it would be two a renewal, 8000 in the 20 s, and 2000 to begin with.
    let because = "a look each to begin with, then 48 transactions per renewal of them all".to_owned();
    report.at_most("consul: 1000 elections, requests in all", "requests", asked as f64, 3000.0, because);
    Ok(())
}
