//! `cargo xtask servers`: real servers that run on in the background.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use testkit::fetch::{
    Bundle, CONSUL, ETCD_3_4, ETCD_3_5, KUBECTL, MARIADB, NATS_2_9, NATS_2_10, POSTGRES, REDIS,
    ZOOKEEPER_3_8, ZOOKEEPER_3_9,
};
use testkit::{
    Consul, Etcd, Kubernetes, Mysql, Nats, NatsVersion, Postgres, Redis, Version, Zookeeper, fetch,
    wait_until, zookeeper,
};

use crate::Result;

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Start a server or a cluster on free loopback ports and leave it running
    Up {
        /// Its name, as `list` shows it
        name: String,
    },
    /// Stop it and remove its data
    Down {
        /// Its name, as `list` shows it
        name: String,
    },
    /// Show what there is and what runs
    List,
    /// Download and unpack the programs of a server, or a tool
    Fetch {
        /// Its name, as `list` shows it
        name: String,
    },
}

/// What can be brought up.
struct Kind {
    name: &'static str,
    bundle: &'static Bundle,
    /// Starts it with its data under a directory.
    start: fn(&Path) -> testkit::Result<Running>,
}

const KINDS: &[Kind] = &[
    Kind { name: "consul", bundle: &CONSUL, start: |dir| consul(1, dir) },
    Kind { name: "consul-cluster", bundle: &CONSUL, start: |dir| consul(3, dir) },
    Kind { name: "etcd", bundle: &ETCD_3_5, start: |dir| etcd(Version::V3_5, 1, dir) },
    Kind { name: "etcd-3.4", bundle: &ETCD_3_4, start: |dir| etcd(Version::V3_4, 1, dir) },
    Kind { name: "etcd-cluster", bundle: &ETCD_3_5, start: |dir| etcd(Version::V3_5, 3, dir) },
    Kind { name: "etcd-3.4-cluster", bundle: &ETCD_3_4, start: |dir| etcd(Version::V3_4, 3, dir) },
    Kind { name: "kubernetes", bundle: &KUBECTL, start: kubernetes },
    Kind { name: "mysql", bundle: &MARIADB, start: mysql },
    Kind { name: "nats", bundle: &NATS_2_10, start: |dir| nats(&[NatsVersion::V2_10], dir) },
    Kind { name: "nats-2.9", bundle: &NATS_2_9, start: |dir| nats(&[NatsVersion::V2_9], dir) },
    Kind { name: "nats-cluster", bundle: &NATS_2_10, start: |dir| nats(&[NatsVersion::V2_10; 3], dir) },
    Kind { name: "redis", bundle: &REDIS, start: redis },
    Kind { name: "postgres", bundle: &POSTGRES, start: postgres },
    Kind {
        name: "zookeeper",
        bundle: &ZOOKEEPER_3_9,
        start: |dir| zookeeper(zookeeper::Version::V3_9, 1, dir),
    },
    Kind {
        name: "zookeeper-3.8",
        bundle: &ZOOKEEPER_3_8,
        start: |dir| zookeeper(zookeeper::Version::V3_8, 1, dir),
    },
    Kind {
        name: "zookeeper-ensemble",
        bundle: &ZOOKEEPER_3_9,
        start: |dir| zookeeper(zookeeper::Version::V3_9, 3, dir),
    },
];

fn consul(members: usize, dir: &Path) -> testkit::Result<Running> {
    let consul = Consul::cluster(members).dir(dir).start()?;
    Ok(Running::new(consul.url(), consul.leave_running()))
}

fn etcd(version: Version, members: usize, dir: &Path) -> testkit::Result<Running> {
    let etcd = Etcd::cluster(version, members).dir(dir).start()?;
    Ok(Running::new(etcd.url(), etcd.leave_running()))
}

/// The API server and its etcd; the first time the API server is built, which takes many minutes.
fn kubernetes(dir: &Path) -> testkit::Result<Running> {
    let server = Kubernetes::options().dir(dir).start()?;
    Ok(Running::new(server.url(), server.leave_running()))
}

fn mysql(dir: &Path) -> testkit::Result<Running> {
    let mysql = Mysql::options().dir(dir).start()?;
    Ok(Running::new(mysql.url(), mysql.leave_running()))
}

fn nats(versions: &[NatsVersion], dir: &Path) -> testkit::Result<Running> {
    let nats = Nats::cluster(versions).dir(dir).start()?;
    Ok(Running::new(nats.url(), nats.leave_running()))
}

fn redis(dir: &Path) -> testkit::Result<Running> {
    let redis = Redis::single().dir(dir).start()?;
    Ok(Running::new(redis.url(), redis.leave_running()))
}

fn postgres(dir: &Path) -> testkit::Result<Running> {
    let postgres = Postgres::options().dir(dir).start()?;
    Ok(Running::new(postgres.url(), postgres.leave_running()))
}

fn zookeeper(version: zookeeper::Version, members: usize, dir: &Path) -> testkit::Result<Running> {
    let zookeeper = Zookeeper::ensemble(version, members).dir(dir).start()?;
    Ok(Running::new(zookeeper.url(), zookeeper.leave_running()))
}

/// What is kept of a server that runs, beside its data.
#[derive(Serialize, Deserialize)]
struct Running {
    processes: Vec<Process>,
    url: String,
}

/// A process, and when it started, in the kernel's ticks: its number may come to mean another one.
#[derive(Serialize, Deserialize)]
struct Process {
    pid: u32,
    started: String,
}

impl Running {
    fn new(url: String, pids: Vec<u32>) -> Running {
        let process = |pid| Process { pid, started: started(pid).unwrap_or_default() };
        Running { processes: pids.into_iter().map(process).collect(), url }
    }
}

impl Process {
    fn lives(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }
}

/// Field 22 of `/proc/PID/stat`; the name before it may hold spaces and parentheses.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let is_zombie = fields.trim_start().starts_with('Z');
    fields.split_whitespace().nth(19).filter(|_| !is_zombie).map(str::to_owned)
}

pub(crate) fn run(task: &Task) -> Result {
    match task {
        Task::Up { name } => up(find(name)?),
        Task::Down { name } => down(find(name)?),
        Task::List => {
            list();
            Ok(())
        }
        Task::Fetch { name } => fetch_by_name(name),
    }
}

fn find(name: &str) -> Result<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        format!("there is no server {name:?}; there are {}", names.join(", "))
    })
}

fn up(kind: &Kind) -> Result {
    if let Some(running) = kind.running() {
        println!("{} runs already", kind.name);
        show(&running);
        return Ok(());
    }
    let dir = kind.dir();
    remove(&dir)?;
    let running = (kind.start)(&dir).map_err(|e| e.to_string())?;
    let text = serde_json::to_string(&running).map_err(|e| e.to_string())?;
    fs::write(kind.state_file(), text).map_err(|e| format!("{}: {e}", kind.state_file().display()))?;
    println!("{} is up; its logs are in {}", kind.name, dir.display());
    show(&running);
    Ok(())
}

fn show(running: &Running) {
    println!("export INCUMBENT_ON={}", running.url);
}

fn down(kind: &Kind) -> Result {
    let Some(running) = kind.running() else {
        println!("{} does not run", kind.name);
        return remove(&kind.dir());
    };
    for process in running.processes.iter().filter(|process| process.lives()) {
        signal(process.pid, Signal::TERM);
        if !wait_until(Duration::from_secs(10), || !process.lives()) {
            signal(process.pid, Signal::KILL);
            wait_until(Duration::from_secs(10), || !process.lives());
        }
    }
    println!("{} is down", kind.name);
    remove(&kind.dir())
}

fn list() {
    let mut lines = String::new();
    for kind in KINDS {
        let state = match kind.running() {
            Some(running) => running.url,
            None if is_fetched(kind.bundle) => "down".to_owned(),
            None => "down, not fetched".to_owned(),
        };
        lines += &format!("{:18} {state}\n", kind.name);
    }
    for bundle in fetch::BUNDLES.iter().filter(|bundle| bundle.tool.is_some()) {
        let state = match bundle.in_path() {
            Some(path) => path.display().to_string(),
            None if is_fetched(bundle) => "fetched".to_owned(),
            None => "not fetched".to_owned(),
        };
        lines += &format!("{:18} a tool, {state}\n", bundle.name);
    }
    // A reader that has seen enough is no error.
    let _ = io::stdout().write_all(lines.as_bytes());
}

fn is_fetched(bundle: &fetch::Bundle) -> bool {
    fetch::servers_dir().join(bundle.name).is_dir()
}

fn fetch_by_name(name: &str) -> Result {
    let bundle = match fetch::BUNDLES.iter().find(|bundle| bundle.name == name) {
        Some(bundle) => bundle,
        None => find(name)?.bundle,
    };
    let dir = bundle.ensure().map_err(|e| e.to_string())?;
    println!("{}", dir.display());
    Ok(())
}

impl Kind {
    fn dir(&self) -> PathBuf {
        fetch::servers_dir().join("up").join(self.name)
    }

    fn state_file(&self) -> PathBuf {
        self.dir().join("running.json")
    }

    /// What runs, if any of its processes still does.
    fn running(&self) -> Option<Running> {
        let running: Running = serde_json::from_slice(&fs::read(self.state_file()).ok()?).ok()?;
        running.processes.iter().any(Process::lives).then_some(running)
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

fn remove(dir: &Path) -> Result {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", dir.display())),
        _ => Ok(()),
    }
}
