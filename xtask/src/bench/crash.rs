//! Fail-over after a crash: SIGKILL of the leader to the start of the successor's job, on every backend, beside the bound that the
//! backend declares.

use std::any::Any;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::nats::NatsVersion;
use testkit::{Consul, Etcd, Kubernetes, Mysql, Nats, Postgres, Proc, Redis, Version, Zookeeper, zookeeper};

use super::report::{Report, median, percentile};
use super::{Bench, PATIENCE, millis, started};
use crate::Result;

/// Elections whose leaders are killed in one batch, each at another moment of the interval between two renewals.
const BATCH: usize = 10;
/// Where the table goes.
const PAGE: &str = "docs/failover.md";

/// A backend, with whatever serves it.
struct Store {
    name: &'static str,
    url: String,
    /// Short, so that this ends in minutes; the bound follows it.
    ttl_s: u32,
    note: &'static str,
    _server: Box<dyn Any>,
}

struct Line {
    name: &'static str,
    ttl_s: u32,
    times: Vec<f64>,
    bound: f64,
    note: &'static str,
}

pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let mut lines = Vec::new();
    // One server at a time: the others would take its cores.
    for start in STORES {
        let store = start(bench).map_err(|error| error.to_string())?;
        let bound = declared(bench, &store)?;
        let mut times = Vec::new();
        while times.len() < bench.rounds.max(20) {
            times.extend(batch(bench, &store));
        }
        let Store { name, ttl_s, note, .. } = store;
        let what = |figure: &str| {
            format!("{name}: SIGKILL of the leader to the successor's job, ttl {ttl_s} s{figure}")
        };
        let because = "the declared bound".to_owned();
        report.median_at_most(what(""), "ms", times.clone(), bound, because.clone());
        report.at_most(what(", p95"), "ms", percentile(&times, 95), bound, because.clone());
        report.at_most(what(", longest"), "ms", percentile(&times, 100), bound, because);
        lines.push(Line { name, ttl_s, times, bound, note });
    }
    let page = page(report, &lines);
    report.write(PAGE, &page)
}

type Start = fn(&Bench) -> testkit::Result<Store>;

/// In the order of their names.
const STORES: [Start; 9] = [consul, etcd, file, kubernetes, mysql, nats, postgres, redis, zookeeper];

fn consul(_: &Bench) -> testkit::Result<Store> {
    let server = Consul::single().start()?;
    Ok(store("consul", server.url(), 10, "Consul allows no shorter one", server))
}

fn etcd(_: &Bench) -> testkit::Result<Store> {
    let server = Etcd::single(Version::V3_5).start()?;
    Ok(store("etcd", server.url(), 3, "", server))
}

fn file(bench: &Bench) -> testkit::Result<Store> {
    let url = format!("file:{}", super::path(&bench.dir("crash-of-each")));
    let note = "only the process dies: the kernel tells. A machine that is lost is not survived by another";
    Ok(store("file", url, 3, note, ()))
}

fn kubernetes(_: &Bench) -> testkit::Result<Store> {
    let server = Kubernetes::start()?;
    Ok(store("kubernetes", server.url(), 5, "no shorter one is allowed", server))
}

fn mysql(_: &Bench) -> testkit::Result<Store> {
    let server = Mysql::options().start()?;
    Ok(store("mysql", server.url(), 3, "", server))
}

fn nats(_: &Bench) -> testkit::Result<Store> {
    let server = Nats::single(NatsVersion::V2_10).start()?;
    Ok(store("nats", server.url(), 3, "", server))
}

fn postgres(_: &Bench) -> testkit::Result<Store> {
    let server = Postgres::options().start()?;
    Ok(store("postgres", server.url(), 3, "", server))
}

fn redis(_: &Bench) -> testkit::Result<Store> {
    let server = Redis::single().start()?;
    Ok(store("redis", server.url(), 3, "", server))
}

fn zookeeper(_: &Bench) -> testkit::Result<Store> {
    let server = Zookeeper::single(zookeeper::Version::V3_9).tick_ms(2000).start()?;
    Ok(store("zookeeper", server.url(), 4, "the shortest session of a server with ticks of 2 s", server))
}

fn store(name: &'static str, url: String, ttl_s: u32, note: &'static str, server: impl Any) -> Store {
    let separator = if url.contains('?') { '&' } else { '?' };
    Store { name, url: format!("{url}{separator}ttl={ttl_s}s"), ttl_s, note, _server: Box::new(server) }
}

/// The worst case in milliseconds, as the command itself says it.
fn declared(bench: &Bench, store: &Store) -> Result<f64> {
    let output = Command::new(&bench.incumbent).args(["doctor", "--json", "--on", &store.url]).output();
    let output = output.map_err(|error| format!("the command does not run: {error}"))?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("doctor: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let consequences = report["consequences"].as_array().into_iter().flatten();
    let bound =
        consequences.filter(|one| one["key"] == "crash_failover_max").find_map(|one| one["ms"].as_f64());
    bound.ok_or_else(|| format!("{}: doctor names no bound: {report}", store.name))
}

fn batch(bench: &Bench, store: &Store) -> Vec<f64> {
    let elections: Vec<String> = (0..BATCH).map(|number| format!("crash-{number}")).collect();
    let candidates = || -> Vec<Proc> {
        elections.iter().map(|election| bench.candidate_of(election, &store.url)).collect()
    };
    let leaders = candidates();
    for leader in &leaders {
        leader.wait_line(started, PATIENCE);
    }
    let standbys = candidates();
    for standby in &standbys {
        standby.wait_line(|line| line.starts_with("standby: "), PATIENCE);
    }
    let step = Duration::from_secs(store.ttl_s.into()) / 3 / BATCH as u32;
    let killed: Vec<_> = leaders
        .iter()
        .map(|leader| {
            std::thread::sleep(step);
            let from = testkit::now();
            leader.signal(Signal::KILL);
            from
        })
        .collect();
    let times = standbys
        .iter()
        .zip(killed)
        .map(|(standby, from)| millis(standby.wait_line(started, PATIENCE).at.since(from)))
        .collect();
    // Politely, so that the next batch finds free elections.
    for standby in &standbys {
        standby.signal_group(Signal::TERM);
    }
    for standby in &standbys {
        standby.wait(PATIENCE);
    }
    times
}

/// The page with the table.
fn page(report: &Report, lines: &[Line]) -> String {
    let samples = lines.first().map_or(0, |line| line.times.len());
    let mut text = format!(
        "# Fail-over after a crash, measured\n\n\
         From SIGKILL of the leader to the start of the successor's job, at a short ttl; {samples} leaders of each backend, each killed\n\
         at another moment between two renewals. The bound is the one that `incumbent doctor` prints for that ttl. One server on the same\n\
         machine, which stays up.\n\n\
         Made by `cargo xtask bench --only crash`: {}.\n\n\
         | backend | ttl | half within | 95 % within | longest | bound | |\n| --- | --- | --- | --- | --- | --- | --- |\n",
        report.origin()
    );
    let seconds = |ms: f64| format!("{:.2} s", ms / 1000.0);
    for Line { name, ttl_s, times, bound, note } in lines {
        let [half, most, longest] =
            [median(times), percentile(times, 95), percentile(times, 100)].map(seconds);
        let bound = seconds(*bound);
        let _ = writeln!(text, "| `{name}:` | {ttl_s} s | {half} | {most} | {longest} | {bound} | {note} |");
    }
    text
}
