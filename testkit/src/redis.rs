//! Redis servers: one, or a primary with replicas, with the faults that tests inject.

mod options;

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::fetch::{self, REDIS};
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::server::Server;
use crate::tls::Certificates;
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running Redis server; dropping it kills it, and removes its data unless a directory was chosen for it.
///
/// A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Redis {
    options: Options,
    root: PathBuf,
    dir: PathBuf,
    port: Port,
    certificates: Option<Certificates>,
    server: Server,
}

impl Redis {
    /// One server with an append-only file; [`Options::start`] starts it.
    pub fn single() -> Options {
        Options::default()
    }

    fn start(options: Options) -> Result<Redis> {
        let root = REDIS.ensure()?;
        let mut attempts = 5;
        loop {
            attempts -= 1;
            let dir = options.dir.clone().unwrap_or_else(|| run_dir("redis"));
            fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
            let certificates = options.tls.then(|| Certificates::make(&dir));
            let (options, root, port) = (options.clone(), root.clone(), Port::reserve());
            let server = Server::new("redis", dir.join("log"));
            let mut redis = Redis { options, root, dir, port, certificates, server };
            match redis.spawn().and_then(|()| redis.await_ready()) {
                Ok(()) => return Ok(redis),
                Err(_) if attempts > 0 && redis.log().contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn spawn(&mut self) -> Result<()> {
        let mut command = self.program("redis-server");
        command.args(self.options.args(&self.dir, self.port.number(), self.certificates.as_ref()));
        self.server.spawn(command)
    }

    fn await_ready(&mut self) -> Result<()> {
        let mut ended = false;
        let ready = wait_until(PATIENCE, || {
            ended = self.server.has_exited();
            ended || self.serves()
        });
        match ready && !ended {
            true => Ok(()),
            false => Err(Error::new(format!("redis does not serve:\n{}", self.server.log_tail()))),
        }
    }

    fn serves(&self) -> bool {
        // A cheap look first: each redis-cli is a process.
        TcpStream::connect_timeout(&self.port.addr(), Duration::from_secs(1)).is_ok()
            && match self.cli(&["PING"]) {
                Ok(text) => text.trim() == "PONG",
                Err(refused) => refused.to_string().contains("NOAUTH"),
            }
    }

    /// `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.port.addr().to_string()
    }

    /// The URL that gives `incumbent` what it needs to be let in.
    pub fn url(&self) -> String {
        let user = match &self.options.user {
            Some((user, password)) => format!("{user}:{password}@"),
            None => String::new(),
        };
        let mut url = format!("redis://{user}{}", self.endpoint());
        if let Some(tls) = &self.certificates {
            url.push_str(&format!("?tls=on&ca={}", tls.ca.display()));
            if self.options.client_auth {
                url.push_str(&format!(
                    "&cert={}&key={}",
                    tls.client_cert.display(),
                    tls.client_key.display()
                ));
            }
        }
        url
    }

    /// The certificates in use, if TLS is.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The process id of the server, which must be running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("redis is running")
    }

    /// Stops it politely (SIGTERM) and waits until it is gone.
    #[track_caller]
    pub fn stop(&mut self) {
        self.server.stop(Signal::TERM, PATIENCE);
    }

    /// Kills it (SIGKILL), if it runs.
    pub fn kill(&mut self) {
        self.server.end();
    }

    /// Freezes it (SIGSTOP) and waits until it stands still.
    #[track_caller]
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Lets it run on (SIGCONT).
    #[track_caller]
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Starts it again on its data, killing it first if it runs, and waits until it serves.
    #[track_caller]
    pub fn restart(&mut self) {
        let mut last = None;
        // The port is reserved against other test runs, but a stray program may hold it for a moment.
        let started = wait_until(PATIENCE, || {
            last = self.spawn().and_then(|()| self.await_ready()).err();
            last.is_none()
        });
        assert!(started, "{last:?}");
    }

    /// Starts it again on its data, killing it first if it runs, and does not wait until it serves.
    #[track_caller]
    pub fn launch(&mut self) {
        self.spawn().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Makes it a replica of `primary` and waits until it has its data.
    #[track_caller]
    pub fn replicate(&self, primary: &Redis) {
        self.cli_ok(&["REPLICAOF", "127.0.0.1", &primary.port.number().to_string()]);
        let synced = || self.cli_ok(&["INFO", "replication"]).contains("master_link_status:up");
        assert!(wait_until(PATIENCE, synced), "the replica did not catch up: {}", self.server.log_tail());
    }

    /// Makes it a primary.
    #[track_caller]
    pub fn promote(&self) {
        self.cli_ok(&["REPLICAOF", "NO", "ONE"]);
    }

    /// A redis-cli of the same version with `args`, as the user of the URL or, without one, the default one.
    pub fn cli_command(&self) -> Command {
        let mut command = self.program("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.number().to_string()]);
        if let Some(tls) = &self.certificates {
            command.args(["--tls", "--cacert"]).arg(&tls.ca);
            command.arg("--cert").arg(&tls.client_cert).arg("--key").arg(&tls.client_key);
        }
        command
    }

    /// Runs redis-cli with `args` to its end, and gives what it printed.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self
            .cli_command()
            .arg("-e")
            .args(args)
            .output()
            .map_err(|e| Error::new(format!("cannot run redis-cli: {e}")))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match status.success() {
            true => Ok(text(&stdout)),
            false => Err(Error::new(format!("redis-cli {args:?}: {}{}", text(&stdout), text(&stderr)))),
        }
    }

    /// Runs redis-cli, which must succeed, and gives what it printed.
    #[track_caller]
    pub fn cli_ok(&self, args: &[&str]) -> String {
        self.cli(args).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Lets the server run on when this process ends, and gives its process id. Its directory must have been chosen
    /// with [`Options::dir`].
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        assert!(self.options.dir.is_some(), "a server in a directory of this run cannot outlive it");
        self.server.leave_running().into_iter().collect()
    }

    /// The directory that holds its data and its log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has logged since its first start.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.root.join("usr/bin").join(name));
        command.env("LD_LIBRARY_PATH", fetch::library_path(&self.root)).env_remove("REDISCLI_AUTH");
        // It does not run under libfaketime, under which the caller may.
        command.env_remove("LD_PRELOAD");
        command
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
