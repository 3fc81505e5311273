//! Redis, beside the lock of redis-py.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Redis;

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S, NEW_RECORDS_MS, TTL_S};
use super::{Bench, JOB, PATIENCE, Proc, started, time_to_hand_over, time_to_start};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);

/// Holds a lock of redis-py as its documentation shows, and says `started`; SIGTERM releases it.
const PEER: &str = "
import signal, sys, redis
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with redis.Redis(port=int(sys.argv[1])).lock('bench-peer', timeout=15):
    print('started', flush=True)
    signal.pause()
";

/// A thousand locks of redis-py in one process, extended every third of their time as its documentation proposes, for the given number of
/// seconds.
const PEERS: &str = "
import sys, time, redis
port, ttl, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
client = redis.Redis(port=port)
locks = [client.lock(f'bench-peer-{n}', timeout=ttl) for n in range(1000)]
for lock in locks:
    lock.acquire()
end = time.monotonic() + seconds
due = time.monotonic() + ttl / 3
while due < end:
    time.sleep(max(0, due - time.monotonic()))
    for lock in locks:
        lock.extend(ttl, replace_ttl=True)
    due += ttl / 3
time.sleep(max(0, end - time.monotonic()))
";

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let redis = Redis::single().start().map_err(|error| error.to_string())?;
    hand_over(bench, &redis, report)?;
    idle_requests(bench, &redis, report);
    thousand(bench, &redis, report)
}

fn hand_over(bench: &Bench, redis: &Redis, report: &mut Report) -> Result {
    let port = port(redis);
    let (mut ours, mut theirs, mut start) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| Ok(bench.candidate(&redis.url())))?);
        theirs.push(stop_the_first(|| Ok(Proc::spawn(python(&["-c", PEER, &port])?)))?);
        let mut job = Command::new(JOB[0]);
        job.args(&JOB[1..]);
        start.push(time_to_start(job));
    }
    let (peer, start) = (median(&theirs), median(&start));
    let because = format!("the lock of redis-py in the same run, {peer:.2} ms, + 10 ms");
    report.median_at_most(
        "redis: SIGTERM of the leader to the successor's job",
        "ms",
        ours.clone(),
        peer + 10.0,
        because,
    );
    let because = format!("one process start, {start:.2} ms, + 10 ms");
    report.median_at_most("redis: the same, in process starts", "ms", ours, start + 10.0, because);
    Ok(())
}

fn stop_the_first(candidate: impl Fn() -> Result<Proc>) -> Result<f64> {
    let leader = candidate()?;
    leader.wait_line(started, PATIENCE);
    let standby = candidate()?;
    Ok(time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM)))
}

/// What a leader and a standby ask of Redis when nothing happens.
fn idle_requests(bench: &Bench, redis: &Redis, report: &mut Report) {
    let leader = bench.candidate(&redis.url());
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&redis.url());
    std::thread::sleep(Duration::from_secs(2));
    let before = scripts(redis);
    std::thread::sleep(IDLE);
    let after = scripts(redis);
    drop((leader, standby));
    let rounds = IDLE.as_secs_f64() / (TTL_S / 3.0);
    // A renewal may come up to a tenth of its interval early, and one more may fall into the window.
    let most = rounds * 1.12 + 2.0;
    report.at_most(
        "redis: scripts of a leader and a standby per minute",
        "requests",
        after - before,
        2.0 * most,
        "one renewal and one look at it per ttl/3".to_owned(),
    );
}

fn port(redis: &Redis) -> String {
    redis.endpoint().rsplit(':').next().unwrap_or_default().to_owned()
}

/// Everything that clients asked and this program did not.
fn calls(redis: &Redis) -> f64 {
    let stats = redis.cli_ok(&["INFO", "commandstats"]);
    let calls =
        stats.lines().filter(|line| !line.starts_with("cmdstat_info") && !line.starts_with("cmdstat_config"));
    let calls = calls.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<f64>().ok());
    calls.sum()
}

/// How many scripts the server has run for its clients.
fn scripts(redis: &Redis) -> f64 {
    let stats = redis.cli_ok(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    calls.filter_map(|rest| rest.split(',').next()?.parse::<f64>().ok()).sum()
}

fn thousand(bench: &Bench, redis: &Redis, report: &mut Report) -> Result {
    let before = calls(redis);
    let peer = Proc::spawn(python(&["-c", PEERS, &port(redis), &TTL_S.to_string(), &IDLE_S.to_string()])?);
    if !peer.wait(PATIENCE).success() {
        return Err(format!("redis-py: {}", peer.transcript()));
    }
    let native = calls(redis) - before;
    let bars = Bars {
        acquired_ms: NEW_RECORDS_MS,
        idle_percent: 2.0,
        requests: 1000.0 * 2.0,
        because: format!(
            "scripts for several each; a thousand locks of redis-py, extended every ttl/3, asked {native:.0}"
        ),
    };
    let url = format!("{}/thousand/", redis.url());
    thousand::measure(bench, report, "redis", &url, || scripts(redis), bars)
}

fn python(args: &[&str]) -> Result<Command> {
    let mut command = testkit::python::with("redis", &["redis==8.1.0"]).map_err(|error| error.to_string())?;
    command.args(args);
    Ok(command)
}
