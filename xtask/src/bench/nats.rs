//! NATS JetStream, one server. It has no lock of its own to be measured beside.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::{Nats, NatsVersion};

use super::report::{Report, median};
use super::thousand::{self, Bars, NEW_RECORDS_MS, TTL_S};
use super::{Bench, JOB, PATIENCE, Proc, started, time_to_hand_over, time_to_start};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let nats = Nats::single(NatsVersion::V2_10).start().map_err(|error| error.to_string())?;
    // A new record counts as held for a ttl: that is no hand-over.
    let first = bench.candidate(&format!("{}?ttl=1s", nats.url()));
    first.wait_line(started, PATIENCE);
    first.signal_group(Signal::TERM);
    first.wait(PATIENCE);
    hand_over(bench, &nats, report);
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
    let bars = Bars {
        acquired_ms: NEW_RECORDS_MS,
        idle_percent: 5.0,
        // To win a new one: it is looked for twice, created, read, and taken; the rest are renewals.
        requests: 1000.0 * (6.0 + thousand::renewals()),
        because: "one renewal each per ttl/3, not batched; NATS has no lock of its own".to_owned(),
    };
    let url = format!("{}/thousand", nats.url());
    thousand::measure(bench, report, "nats", &url, || requests(nats), bars)
}
