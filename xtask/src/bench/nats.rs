//! NATS JetStream, one server. It has no lock of its own to be measured beside.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::{Nats, NatsVersion};

use super::report::{Report, median};
use super::{Bench, JOB, PATIENCE, Proc, started, time_to_hand_over, time_to_start};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// The default ttl, in seconds.
const TTL_S: f64 = 15.0;
/// How long the thousand elections are held after all were won; the program's.
const THOUSAND_IDLE_MS: f64 = 20_000.0;
/// The ttl with which leaders are killed, as in a URL and in milliseconds.
const CRASH_TTL: (&str, f64) = ("3s", 3_000.0);

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let nats = Nats::single(NatsVersion::V2_10).start().map_err(|error| error.to_string())?;
    // A new record counts as held for a ttl: that is no hand-over.
    let first = bench.candidate(&format!("{}?ttl=1s", nats.url()));
    first.wait_line(started, PATIENCE);
    first.signal_group(Signal::TERM);
    first.wait(PATIENCE);
    hand_over(bench, &nats, report);
    crash(bench, &nats, report);
    idle_requests(bench, &nats, report);
    thousand(bench, &nats, report)
}

fn hand_over(bench: &Bench, nats: &Nats, report: &mut Report) {
    let (mut ours, mut start) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let (leader, standby) = pair(bench, &nats.url());
        ours.push(time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM)));
        let mut job = Command::new(JOB[0]);
        job.args(&JOB[1..]);
        start.push(time_to_start(job));
    }
    let start = median(&start);
    let because = format!("one process start, {start:.2} ms, + 10 ms; NATS has no lock of its own");
    report.median_at_most(
        "nats: SIGTERM of the leader to the successor's job",
        "ms",
        ours,
        start + 10.0,
        because,
    );
}

fn pair(bench: &Bench, url: &str) -> (Proc, Proc) {
    let leader = bench.candidate(url);
    leader.wait_line(started, PATIENCE);
    (leader, bench.candidate(url))
}

/// The leader is killed; its successor judges by its own clock that the lease is over.
fn crash(bench: &Bench, nats: &Nats, report: &mut Report) {
    let url = format!("{}?ttl={}", nats.url(), CRASH_TTL.0);
    let times: Vec<f64> = (0..bench.rounds.max(20))
        .map(|_| {
            let (leader, standby) = pair(bench, &url);
            time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::KILL))
        })
        .collect();
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let (p95, most) = (sorted[(sorted.len() * 95).div_ceil(100) - 1], sorted[sorted.len() - 1]);
    report.median_at_most(
        "nats: SIGKILL of the leader to the successor's job, ttl 3 s",
        "ms",
        times,
        CRASH_TTL.1 + 200.0,
        "judged from the last renewal that was seen".to_owned(),
    );
    let bound = "the declared bound, 2 ttl".to_owned();
    report.at_most("nats: the same, p95", "ms", p95, 2.0 * CRASH_TTL.1, bound.clone());
    report.at_most("nats: the same, longest", "ms", most, 2.0 * CRASH_TTL.1, bound);
}

/// What a leader and a standby ask of NATS when nothing happens.
fn idle_requests(bench: &Bench, nats: &Nats, report: &mut Report) {
    let (leader, standby) = pair(bench, &nats.url());
    std::thread::sleep(Duration::from_secs(TTL_S as u64 + 2));
    let before = requests(nats);
    std::thread::sleep(IDLE);
    let asked = requests(nats) - before;
    drop((leader, standby));
    // A renewal may come up to a tenth of its interval early, and one more may fall into the window. The leader writes; both look at
    // the bucket, the standby reads what was renewed and judges it.
    let most = (IDLE.as_secs_f64() / (TTL_S / 3.0) * 1.12 + 2.0) * 5.0;
    report.at_most(
        "nats: requests of a leader and a standby per minute",
        "requests",
        asked,
        most,
        "per ttl/3 a renewal, two reads of it, and a look at the bucket by each".to_owned(),
    );
}

/// Questions to JetStream and writes.
fn requests(nats: &Nats) -> f64 {
    let asked = nats.monitor(0, "/jsz")["api"]["total"].as_f64().unwrap_or(f64::NAN);
    let info = nats.api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null);
    asked + info["state"]["last_seq"].as_f64().unwrap_or(f64::NAN)
}

fn thousand(bench: &Bench, nats: &Nats, report: &mut Report) -> Result {
    let before = requests(nats);
    let value = bench.program("thousand", Some(&format!("{}/thousand", nats.url())))?;
    let asked = requests(nats) - before;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let what = "1000 elections in one process";
    for (name, unit, value, most) in [
        // A record that is not there is waited for, one ttl.
        ("nats: 1000 new elections, all acquired", "ms", figure("acquired_ms"), TTL_S * 1000.0 + 5000.0),
        ("nats: 1000 elections, lost while idle", "terms", 1000.0 - figure("kept"), 0.0),
        ("nats: 1000 elections, resident memory", "MiB", figure("rss_mib"), 64.0),
        ("nats: 1000 elections, idle", "% of a core", figure("idle_core_percent"), 5.0),
    ] {
        report.at_most(name, unit, value, most, what.to_owned());
    }
    // To win a new one: it is looked for twice, created, read, and taken; the rest are renewals.
    let renewals = THOUSAND_IDLE_MS / 1000.0 / (TTL_S / 3.0) * 1.12 + 1.0;
    report.at_most(
        "nats: requests of 1000 elections that are won and held for 20 s",
        "requests",
        asked,
        1000.0 * (6.0 + renewals),
        format!("{what}; one renewal each per ttl/3, not batched"),
    );
    Ok(())
}
