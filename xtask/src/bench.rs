//! `cargo xtask bench`: what the system must reach, beside the tool that users would take instead, in one run.

mod consul;
mod crash;
mod etcd;
mod file;
mod kubernetes;
mod library;
mod mysql;
mod nats;
mod peers;
mod postgres;
mod redis;
mod report;
mod thousand;
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use testkit::proc::Proc;

use self::report::Report;
use crate::{Result, workspace};

/// Which part to measure
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// `is_valid`, `check`
    Library,
    /// The embedded default, beside flock(1)
    File,
    /// etcd, beside etcdctl lock
    Etcd,
    /// Consul, beside consul lock
    Consul,
    /// Kubernetes, beside client-go
    Kubernetes,
    /// MariaDB, beside GET_LOCK
    Mysql,
    /// NATS
    Nats,
    /// Raft among peers, beside hashicorp/raft and members of etcd
    Peers,
    /// Redis, beside the lock of redis-py
    Redis,
    /// PostgreSQL, beside pg_advisory_lock
    Postgres,
    /// ZooKeeper, beside kazoo
    Zookeeper,
    /// Fail-over after a crash on every backend, beside the bound that it declares
    Crash,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Measure only this part
    #[arg(long)]
    only: Option<Part>,
    /// Rounds of each hand-over
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Do not write the results into reliability/bench/
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(options: &Options) -> Result {
    let bench = Bench::prepare(options.rounds)?;
    let mut report = Report::begin(options.dry_run);
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::Library) {
        library::measure(&bench, &mut report)?;
    }
    if wanted(Part::File) {
        file::measure(&bench, &mut report)?;
    }
    if wanted(Part::Etcd) {
        etcd::measure(&bench, &mut report)?;
    }
    if wanted(Part::Consul) {
        consul::measure(&bench, &mut report)?;
    }
    if wanted(Part::Kubernetes) {
        kubernetes::measure(&bench, &mut report)?;
    }
    if wanted(Part::Mysql) {
        mysql::measure(&bench, &mut report)?;
    }
    if wanted(Part::Nats) {
        nats::measure(&bench, &mut report)?;
    }
    if wanted(Part::Peers) {
        peers::measure(&bench, &mut report)?;
    }
    if wanted(Part::Redis) {
        redis::measure(&bench, &mut report)?;
    }
    if wanted(Part::Postgres) {
        postgres::measure(&bench, &mut report)?;
    }
    if wanted(Part::Zookeeper) {
        zookeeper::measure(&bench, &mut report)?;
    }
    if wanted(Part::Crash) {
        crash::measure(&bench, &mut report)?;
    }
    report.finish()
}

/// What the measurements share.
struct Bench {
    incumbent: PathBuf,
    rounds: usize,
    scratch: tempfile::TempDir,
}

impl Bench {
    fn prepare(rounds: usize) -> Result<Bench> {
        let build = ["build", "--release", "--locked", "--package", "incumbent-cli"];
        let status = workspace::cargo(&build).status().map_err(|error| format!("cargo: {error}"))?;
        if !status.success() {
            return Err("the command does not build".to_owned());
        }
        let incumbent = workspace::root().join("target/release/incumbent");
        let scratch = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        Ok(Bench { incumbent, rounds: rounds.max(1), scratch })
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// `incumbent run bench` with a job that says `started` and then does nothing until it is told to end.
    fn candidate(&self, on: &str) -> Proc {
        self.candidate_of("bench", on)
    }

    fn candidate_of(&self, election: &str, on: &str) -> Proc {
        let mut command = Command::new(&self.incumbent);
        command.args(["run", election, "--on", on, "--"]).args(JOB);
        Proc::spawn(command)
    }

    /// A program of the library's, `cargo bench --bench NAME`: its one line of JSON.
    fn program(&self, name: &str, on: Option<&str>) -> Result<serde_json::Value> {
        let mut command = workspace::cargo(&[
            "bench",
            "--quiet",
            "--locked",
            "--package",
            "incumbent",
            "--all-features",
            "--bench",
            name,
        ]);
        if let Some(on) = on {
            command.env("INCUMBENT_BENCH_ON", on);
        }
        let output = command.output().map_err(|error| format!("cargo: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        match line.map(serde_json::from_str) {
            Some(Ok(value)) => Ok(value),
            _ => Err(format!("the bench {name} gave no result: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// A job that says when it starts and ends at once when it is told to.
const JOB: [&str; 3] = ["sh", "-c", "echo started; exec sleep 600"];
/// How long anything may take before the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a standby is left waiting before its leader goes.
const SETTLE: Duration = Duration::from_millis(500);

fn started(line: &str) -> bool {
    line == "started"
}

/// From the start of a process to its line `started`.
fn time_to_start(command: Command) -> f64 {
    let from = testkit::now();
    let process = Proc::spawn(command);
    let line = process.wait_line(started, PATIENCE);
    millis(line.at.since(from))
}

/// From `end` of the leader to the line `started` of the standby.
fn time_to_hand_over(leader: Proc, standby: Proc, end: impl FnOnce(&Proc)) -> f64 {
    std::thread::sleep(SETTLE);
    let from = testkit::now();
    end(&leader);
    let line = standby.wait_line(started, PATIENCE);
    let elapsed = millis(line.at.since(from));
    // Politely, so that the next round finds a free election.
    standby.signal_group(Signal::TERM);
    standby.wait(PATIENCE);
    elapsed
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
