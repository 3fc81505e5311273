//! One etcd process.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::options::Options;
use super::{StartError, program, reserve_ports};
use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::proc::is_stopped;
use crate::reaper;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) client: Port,
    paused: bool,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    _peer: Port,
}

impl Member {
    /// The members of a cluster, each with its ports and flags; none runs yet.
    pub(super) fn plan(options: &Options, dir: &Path, tls: Option<&Certificates>) -> Vec<Member> {
        let ports: Vec<(Port, Port)> = (0..options.members).map(|_| reserve_ports()).collect();
        let cluster: Vec<String> =
            ports.iter().enumerate().map(|(i, (_, peer))| format!("n{i}=http://{}", peer.addr())).collect();
        let cluster = cluster.join(",");
        let member = |(i, (client, peer)): (usize, (Port, Port))| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let client_url = format!("{scheme}://{}", client.addr());
            let peer_url = format!("http://{}", peer.addr());
            let mut args = vec![
                format!("--name=n{i}"),
                format!("--data-dir={}", dir.join(format!("n{i}")).display()),
                format!("--listen-client-urls={client_url}"),
                format!("--advertise-client-urls={client_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster={cluster}"),
                "--logger=zap".to_owned(),
                "--log-level=warn".to_owned(),
            ];
            if let Some(tls) = tls {
                args.push(format!("--cert-file={}", tls.server_cert.display()));
                args.push(format!("--key-file={}", tls.server_key.display()));
                if options.client_auth {
                    args.push("--client-cert-auth".to_owned());
                    // By itself this already makes etcd demand client certificates.
                    args.push(format!("--trusted-ca-file={}", tls.ca.display()));
                }
            }
            args.extend(options.flags.iter().cloned());
            let log = dir.join(format!("n{i}.log"));
            Member { name: format!("n{i}"), client, paused: false, args, log, child: None, _peer: peer }
        };
        ports.into_iter().enumerate().map(member).collect()
    }

    pub(super) fn spawn(&mut self, bin: &Path) -> Result<(), StartError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|e| Error::new(format!("{}: {e}", self.log.display())))?;
        let child = program(&bin.join("etcd"))
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::new(format!("cannot run {}: {e}", bin.join("etcd").display())))?;
        reaper::watch(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// Whether it was started, and is not paused.
    pub(super) fn is_running(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// An error if the process was started and has ended by itself.
    pub(super) fn check_alive(&mut self) -> Result<(), StartError> {
        if !self.has_exited() {
            return Ok(());
        }
        self.end();
        let tail = self.log_tail();
        if tail.contains("address already in use") {
            return Err(StartError::PortTaken);
        }
        Err(StartError::Other(Error::new(format!("etcd member {} ended by itself:\n{tail}", self.name))))
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.pid().unwrap_or_else(|| panic!("etcd member {} is not running", self.name));
        let pid = Pid::from_raw(pid as i32).expect("a child's pid is positive");
        kill_process(pid, signal).unwrap_or_else(|e| panic!("cannot signal etcd member {}: {e}", self.name));
    }

    #[track_caller]
    pub(super) fn pause(&mut self) {
        self.signal(Signal::STOP);
        let pid = self.pid().unwrap_or_default();
        assert!(
            wait_until(Duration::from_secs(10), || is_stopped(pid)),
            "etcd member {} did not stop",
            self.name
        );
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
