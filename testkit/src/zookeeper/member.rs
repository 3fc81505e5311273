//! One ZooKeeper process.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::StartError;
use super::options::{Options, java};
use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::proc::is_stopped;
use crate::reaper;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) client: Port,
    /// Where clients with TLS are served, if they are.
    pub(super) secure: Port,
    paused: bool,
    dir: PathBuf,
    child: Option<Child>,
    _peers: [Port; 2],
}

impl Member {
    /// The members of an ensemble, each with its ports and its configuration written; none runs yet.
    pub(super) fn plan(options: &Options, dir: &Path, tls: Option<&Certificates>) -> Result<Vec<Member>> {
        let ports: Vec<[Port; 4]> = (0..options.members).map(|_| [(); 4].map(|()| Port::reserve())).collect();
        let mut ensemble = String::new();
        if options.members > 1 {
            for (number, [_, _, peer, election]) in ports.iter().enumerate() {
                let (peer, election) = (peer.number(), election.number());
                ensemble.push_str(&format!("server.{}=127.0.0.1:{peer}:{election}\n", number + 1));
            }
        }
        if let Some(tls) = tls {
            ensemble.push_str(&secure(options, dir, tls)?);
        }
        let member = |(number, [client, secure, peer, election]): (usize, [Port; 4])| {
            let dir = dir.join(format!("n{number}"));
            let data = dir.join("data");
            fs::create_dir_all(&data).map_err(|e| at(&data, e))?;
            fs::write(data.join("myid"), (number + 1).to_string()).map_err(|e| at(&data, e))?;
            let mut text = format!(
                "tickTime={}\ninitLimit=60\nsyncLimit=20\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n{ensemble}",
                options.tick_ms,
                data.display(),
                client.number(),
            );
            if tls.is_some() {
                text.push_str(&format!("secureClientPort={}\n", secure.number()));
            }
            let config = dir.join("zoo.cfg");
            fs::write(&config, text).map_err(|e| at(&config, e))?;
            Ok(Member { number, client, secure, paused: false, dir, child: None, _peers: [peer, election] })
        };
        ports.into_iter().enumerate().map(member).collect()
    }

    pub(super) fn spawn(&mut self, jars: &Path, options: &Options) -> Result<(), StartError> {
        let path = self.dir.join("log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|log| Ok((log.try_clone()?, log)))
            .map_err(|e| at(&path, e))?;
        let mut command = java();
        command.arg("-cp").arg(class_path(jars));
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.preAllocSize=64"]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.dir.join("zoo.cfg"));
        if let Some(clock) = &options.wall_clock {
            clock.give_to(&mut command);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.0)
            .stderr(log.1)
            .process_group(0)
            .spawn()
            .map_err(|e| Error::new(format!("cannot run java: {e}")))?;
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
        if tail.contains("Address already in use") {
            return Err(StartError::PortTaken);
        }
        let text = format!("ZooKeeper member {} ended by itself:\n{tail}", self.number);
        Err(StartError::Other(Error::new(text)))
    }

    pub(super) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    #[track_caller]
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.pid().unwrap_or_else(|| panic!("ZooKeeper member {} is not running", self.number));
        let pid = Pid::from_raw(pid as i32).expect("a child's pid is positive");
        kill_process(pid, signal)
            .unwrap_or_else(|e| panic!("cannot signal ZooKeeper member {}: {e}", self.number));
    }

    #[track_caller]
    pub(super) fn pause(&mut self) {
        self.signal(Signal::STOP);
        let pid = self.pid().unwrap_or_default();
        let stopped = wait_until(Duration::from_secs(10), || is_stopped(pid));
        assert!(stopped, "ZooKeeper member {} did not stop", self.number);
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
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

/// Every jar of the bundle, and of those that can write a log the one that does.
pub(super) fn class_path(jars: &Path) -> String {
    format!("{0}/slf4j-simple.jar:{0}/*", jars.display())
}

/// What a configuration needs to serve clients with TLS.
fn secure(options: &Options, dir: &Path, tls: &Certificates) -> Result<String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| at(path, e));
    let store = dir.join("server-store.pem");
    let text = read(&tls.server_key)? + &read(&tls.server_cert)?;
    fs::write(&store, text).map_err(|e| at(&store, e))?;
    Ok(format!(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\n\
         ssl.clientAuth={}\n",
        store.display(),
        tls.ca.display(),
        if options.client_auth { "need" } else { "none" },
    ))
}

fn at(path: &Path, error: std::io::Error) -> Error {
    Error::new(format!("{}: {error}", path.display()))
}
