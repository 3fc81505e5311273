//! `cargo xtask servers`: real servers that run on in the background.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use testkit::{Etcd, Version, fetch, wait_until};

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
    version: Version,
    members: usize,
}

const KINDS: [Kind; 4] = [
    Kind { name: "etcd", version: Version::V3_5, members: 1 },
    Kind { name: "etcd-3.4", version: Version::V3_4, members: 1 },
    Kind { name: "etcd-cluster", version: Version::V3_5, members: 3 },
    Kind { name: "etcd-3.4-cluster", version: Version::V3_4, members: 3 },
];

/// What is kept of a server that runs, beside its data.
#[derive(Serialize, Deserialize)]
struct Running {
    pids: Vec<u32>,
    url: String,
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
    let etcd = Etcd::cluster(kind.version, kind.members).dir(&dir).start().map_err(|e| e.to_string())?;
    let running = Running { url: etcd.url(), pids: etcd.leave_running() };
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
    for pid in running.pids.into_iter().filter(|pid| kind.owns(*pid)) {
        signal(pid, Signal::TERM);
        if !wait_until(Duration::from_secs(10), || !kind.owns(pid)) {
            signal(pid, Signal::KILL);
            wait_until(Duration::from_secs(10), || !kind.owns(pid));
        }
    }
    println!("{} is down", kind.name);
    remove(&kind.dir())
}

fn list() {
    for kind in &KINDS {
        let state = match kind.running() {
            Some(running) => running.url,
            None if is_fetched(kind.version.bundle()) => "down".to_owned(),
            None => "down, not fetched".to_owned(),
        };
        println!("{:18} {state}", kind.name);
    }
    for bundle in fetch::BUNDLES.iter().filter(|bundle| bundle.tool.is_some()) {
        let state = match bundle.in_path() {
            Some(path) => path.display().to_string(),
            None if is_fetched(bundle) => "fetched".to_owned(),
            None => "not fetched".to_owned(),
        };
        println!("{:18} a tool, {state}", bundle.name);
    }
}

fn is_fetched(bundle: &fetch::Bundle) -> bool {
    fetch::servers_dir().join(bundle.name).is_dir()
}

fn fetch_by_name(name: &str) -> Result {
    let bundle = match fetch::BUNDLES.iter().find(|bundle| bundle.name == name) {
        Some(bundle) => bundle,
        None => find(name)?.version.bundle(),
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
        running.pids.iter().any(|pid| self.owns(*pid)).then_some(running)
    }

    /// Whether this process is one of ours: its number may have come to mean another one.
    fn owns(&self, pid: u32) -> bool {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&format!("--data-dir={}/", self.dir().display()))
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
