//! One Consul server process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{MASTER, Options, program};
use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::proc::is_stopped;
use crate::reaper;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Plain text, for what tests do by hand.
    pub(super) http: Port,
    pub(super) https: Port,
    rpc: Port,
    serf: Port,
    dir: PathBuf,
    child: Option<Child>,
    paused: bool,
}

impl Member {
    pub(super) fn new(number: usize, dir: &Path) -> Member {
        let [http, https, rpc, serf] = std::array::from_fn(|_| Port::reserve());
        let dir = dir.join(format!("n{number}"));
        Member { name: format!("n{number}"), http, https, rpc, serf, dir, child: None, paused: false }
    }

    /// Writes its configuration.
    pub(super) fn configure(
        &self,
        options: &Options,
        peers: &[String],
        tls: Option<&Certificates>,
    ) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(|e| Error::new(format!("{}: {e}", self.dir.display())))?;
        let mut config = json!({
            "server": true,
            "bootstrap_expect": options.members,
            "node_name": self.name,
            "datacenter": "dc1",
            "data_dir": self.dir.join("data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "advertise_addr": "127.0.0.1",
            "retry_join": peers,
            "retry_interval": "1s",
            "disable_update_check": true,
            "enable_debug": false,
            // Counts the requests; see `requests`.
            "log_level": "DEBUG",
            "leave_on_terminate": false,
            "skip_leave_on_interrupt": true,
            // Tests wait leases out: below the 10 s that Consul keeps without this.
            "session_ttl_min": "1s",
            "performance": { "raft_multiplier": 1 },
            "ports": {
                "http": self.http.number(),
                "https": if tls.is_some() { i32::from(self.https.number()) } else { -1 },
                "server": self.rpc.number(),
                "serf_lan": self.serf.number(),
                "serf_wan": -1,
                "dns": -1,
                "grpc": -1,
            },
        });
        if options.acl {
            config["acl"] = json!({
                "enabled": true,
                "default_policy": "deny",
                "tokens": { "master": MASTER, "agent": MASTER },
            });
        }
        if let Some(tls) = tls {
            config["cert_file"] = json!(tls.server_cert);
            config["key_file"] = json!(tls.server_key);
            config["ca_file"] = json!(tls.ca);
            config["verify_incoming_https"] = json!(options.client_auth);
        }
        let path = self.config();
        fs::write(&path, config.to_string()).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    pub(super) fn serf_addr(&self) -> String {
        self.serf.addr().to_string()
    }

    fn config(&self) -> PathBuf {
        self.dir.join("consul.json")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn spawn(&mut self, bin: &Path) -> Result<()> {
        self.end();
        let log = File::options().create(true).append(true).open(self.log_file());
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|e| Error::new(format!("{}: {e}", self.log_file().display())))?;
        let child = program(bin)
            .args(["agent", "-config-file"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::new(format!("cannot run {}: {e}", bin.display())))?;
        reaper::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it was started, and is not paused.
    pub(super) fn is_running(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.pid().unwrap_or_else(|| panic!("Consul server {} is not running", self.name));
        let pid = Pid::from_raw(pid as i32).expect("a child's pid is positive");
        kill_process(pid, signal)
            .unwrap_or_else(|e| panic!("cannot signal Consul server {}: {e}", self.name));
    }

    #[track_caller]
    pub(super) fn pause(&mut self) {
        self.signal(Signal::STOP);
        let pid = self.pid().unwrap_or_default();
        assert!(wait_until(Duration::from_secs(10), || is_stopped(pid)), "{} did not stand still", self.name);
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
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// One request by hand, as the one who may do everything: status and body.
    pub(super) fn call(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http.addr(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nX-Consul-Token: {MASTER}\r\nContent-Length: {length}\r\n\r\n{body}",
            self.http.addr()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }
}
