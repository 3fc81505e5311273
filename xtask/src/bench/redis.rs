//! Redis, beside the lock of redis-py.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::{Redis, python};

use super::report::{Report, median};
use super::{Bench, JOB, PATIENCE, Proc, millis, started, time_to_hand_over, time_to_start};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// The default ttl, in seconds.
const TTL_S: f64 = 15.0;

/// Holds a lock of redis-py as its documentation shows, and says `started`; SIGTERM releases it.
const PEER: &str = "
import signal, sys, redis
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with redis.Redis(port=int(sys.argv[1])).lock('bench-peer', timeout=15):
    print('started', flush=True)
    signal.pause()
";

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let redis = Redis::single().start().map_err(|error| error.to_string())?;
    hand_over(bench, &redis, report)?;
    crash(bench, &redis, report);
    idle_requests(bench, &redis, report);
    thousand(bench, &redis, report)
}

fn hand_over(bench: &Bench, redis: &Redis, report: &mut Report) -> Result {
    let port = redis.endpoint().rsplit(':').next().unwrap_or_default().to_owned();
    let (mut ours, mut theirs, mut start) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| Ok(bench.candidate(&redis.url())))?);
        theirs.push(stop_the_first(|| {
            let mut command = python::with("redis", &["redis==8.1.0"]).map_err(|error| error.to_string())?;
            command.args(["-c", PEER, &port]);
            Ok(Proc::spawn(command))
        })?);
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

/// The leader is killed; its successor judges by its own clock that the lease is over.
fn crash(bench: &Bench, redis: &Redis, report: &mut Report) {
    let times = (0..bench.rounds.div_ceil(4)).map(|_| {
        let leader = bench.candidate(&format!("{}?ttl=3s", redis.url()));
        leader.wait_line(started, PATIENCE);
        let standby = bench.candidate(&format!("{}?ttl=3s", redis.url()));
        time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::KILL))
    });
    let because = "ttl 3 s, judged from the last renewal that was seen".to_owned();
    report.median_at_most(
        "redis: SIGKILL of the leader to the successor's job, ttl 3 s",
        "ms",
        times.collect(),
        3_200.0,
        because,
    );
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

/// How many scripts the server has run for its clients.
fn scripts(redis: &Redis) -> f64 {
    let stats = redis.cli_ok(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    calls.filter_map(|rest| rest.split(',').next()?.parse::<f64>().ok()).sum()
}

fn thousand(bench: &Bench, redis: &Redis, report: &mut Report) -> Result {
    let before = scripts(redis);
    let from = testkit::now();
    let value = bench.program("thousand", Some(&format!("{}/thousand/", redis.url())))?;
    let seconds = millis(testkit::now().since(from)) / 1000.0;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let what = "1000 elections in one process";
    // A record that is not there is waited for, one ttl.
    report.at_most(
        "redis: 1000 new elections, all acquired",
        "ms",
        figure("acquired_ms"),
        TTL_S * 1000.0 + 5000.0,
        format!("{what}; one ttl, since their records are new"),
    );
    report.at_most(
        "redis: 1000 elections, lost while idle",
        "terms",
        1000.0 - figure("kept"),
        0.0,
        what.to_owned(),
    );
    report.at_most("redis: 1000 elections, resident memory", "MiB", figure("rss_mib"), 64.0, what.to_owned());
    report.at_most(
        "redis: 1000 elections, idle",
        "% of a core",
        figure("idle_core_percent"),
        2.0,
        what.to_owned(),
    );
    report.at_most(
        "redis: 1000 elections, scripts per second over all",
        "requests",
        (scripts(redis) - before) / seconds,
        1000.0 * 3.0 / TTL_S,
        format!("{what}; one renewal each per ttl/3, several in one script"),
    );
    Ok(())
}
