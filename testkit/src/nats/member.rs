//! One nats-server process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::proc::is_stopped;
use crate::reaper;

/// Where one member listens.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) client: Port,
    pub(super) route: Port,
    pub(super) monitor: Port,
}

impl Ports {
    pub(super) fn reserve() -> Ports {
        Ports { client: Port::reserve(), route: Port::reserve(), monitor: Port::reserve() }
    }
}

#[derive(Debug)]
pub(super) struct Member {
    name: String,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    paused: bool,
    child: Option<Child>,
}

impl Member {
    /// Its configuration is `nI.conf` in `dir`; it does not run yet.
    pub(super) fn new(i: usize, program: PathBuf, dir: &Path) -> Member {
        let path = |kind: &str| dir.join(format!("n{i}.{kind}"));
        Member {
            name: format!("n{i}"),
            program,
            config: path("conf"),
            log: path("log"),
            paused: false,
            child: None,
        }
    }

    pub(super) fn configure(&self, text: &str) -> Result<()> {
        fs::write(&self.config, text).map_err(|e| Error::new(format!("{}: {e}", self.config.display())))
    }

    pub(super) fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log);
        let (out, err) = log
            .and_then(|log| Ok((log.try_clone()?, log)))
            .map_err(|e| Error::new(format!("{}: {e}", self.log.display())))?;
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::new(format!("cannot run {}: {e}", self.program.display())))?;
        reaper::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    pub(super) fn is_running(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    #[track_caller]
    pub(super) fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).unwrap_or_else(|| panic!("{} is not running", self.name))
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a child's pid is positive");
        kill_process(pid, signal).unwrap_or_else(|e| panic!("cannot signal {}: {e}", self.name));
    }

    #[track_caller]
    pub(super) fn pause(&mut self) {
        self.signal(Signal::STOP);
        let pid = self.pid();
        assert!(wait_until(Duration::from_secs(10), || is_stopped(pid)), "{} did not stop", self.name);
        self.paused = true;
    }

    #[track_caller]
    pub(super) fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.paused = false;
    }

    /// Kills the process if it runs, and reaps it.
    pub(super) fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        reaper::unwatch(child.id());
        let _ = child.wait();
        self.paused = false;
    }

    /// Forgets the process, if it runs.
    pub(super) fn leave_running(&mut self) -> Option<u32> {
        let pid = self.child.take()?.id();
        reaper::unwatch(pid);
        Some(pid)
    }

    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

/// What the monitoring port says at `path`.
pub(super) fn monitor(port: &Port, path: &str) -> Option<Value> {
    let mut connection = TcpStream::connect_timeout(&port.addr(), Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(connection, "GET {path} HTTP/1.0\r\nHost: testkit\r\n\r\n").ok()?;
    let mut text = String::new();
    connection.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}
