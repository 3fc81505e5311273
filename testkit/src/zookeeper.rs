//! ZooKeeper servers: one, or an ensemble, of a given version, with the faults that tests inject.

mod hand;
mod member;
mod options;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::{now, wait_until};
use crate::error::{Error, Result, StartError};
use crate::fetch::{self, Bundle};
use crate::reaper::run_dir;
use crate::stall::Stall;
use crate::tls::Certificates;
pub use hand::{Hand, Znode};
use member::Member;
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// A version of ZooKeeper that Debian ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.8.0 of Debian 12.
    V3_8,
    /// 3.9.3 of Debian 13.
    V3_9,
}

impl Version {
    /// Both.
    pub const ALL: [Version; 2] = [Version::V3_8, Version::V3_9];

    /// The packages that hold it.
    pub fn bundle(self) -> &'static Bundle {
        match self {
            Version::V3_8 => &fetch::ZOOKEEPER_3_8,
            Version::V3_9 => &fetch::ZOOKEEPER_3_9,
        }
    }
}

/// Running ZooKeeper servers; dropping it kills them, and removes their data unless a directory was chosen for it.
///
/// Members are counted from 0. A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Zookeeper {
    options: Options,
    jars: PathBuf,
    dir: PathBuf,
    members: Vec<Member>,
    certificates: Option<Certificates>,
}

impl Zookeeper {
    /// One server; [`Options::start`] starts it.
    pub fn single(version: Version) -> Options {
        Options::new(version, 1)
    }

    /// An ensemble of `members` servers; [`Options::start`] starts it.
    pub fn ensemble(version: Version, members: usize) -> Options {
        Options::new(version, members)
    }

    fn start(options: Options) -> Result<Zookeeper> {
        let jars = options.version.bundle().ensure()?.join("usr/share/java");
        let mut attempts = 5;
        loop {
            attempts -= 1;
            let dir = options.dir.clone().unwrap_or_else(|| run_dir("zookeeper"));
            fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
            let certificates = options.tls.then(|| Certificates::make(&dir));
            let members = Member::plan(&options, &dir, certificates.as_ref())?;
            let (options, jars) = (options.clone(), jars.clone());
            let mut zookeeper = Zookeeper { options, jars, dir, members, certificates };
            match zookeeper.start_all() {
                Ok(()) => return Ok(zookeeper),
                Err(StartError::PortTaken) if attempts > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start_all(&mut self) -> Result<(), StartError> {
        for member in &mut self.members {
            member.spawn(&self.jars, &self.options)?;
        }
        self.await_ready(0..self.members())
    }

    /// The client addresses without TLS, each as `127.0.0.1:PORT`.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.addr().to_string()).collect()
    }

    /// The URL that gives `incumbent` all endpoints, and what it needs to be let in.
    pub fn url(&self) -> String {
        let Some(tls) = &self.certificates else {
            return format!("zookeeper://{}", self.endpoints().join(","));
        };
        let endpoints: Vec<String> =
            self.members.iter().map(|member| member.secure.addr().to_string()).collect();
        let mut url = format!("zookeeper://{}?tls=on&ca={}", endpoints.join(","), tls.ca.display());
        if self.options.client_auth {
            let (cert, key) = (tls.client_cert.display(), tls.client_key.display());
            url.push_str(&format!("&cert={cert}&key={key}"));
        }
        url
    }

    /// The certificates in use, if TLS is.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The process id of member `i`, which must be running.
    #[track_caller]
    pub fn pid(&self, i: usize) -> u32 {
        self.members[i].server.pid().unwrap_or_else(|| panic!("ZooKeeper member {i} is not running"))
    }

    /// What member `i` has logged since its first start.
    pub fn log(&self, i: usize) -> String {
        self.members[i].server.log()
    }

    /// Stops member `i` politely (SIGTERM) and waits until it is gone.
    #[track_caller]
    pub fn stop(&mut self, i: usize) {
        self.members[i].server.stop(Signal::TERM, PATIENCE);
    }

    /// Kills member `i` (SIGKILL).
    #[track_caller]
    pub fn kill(&mut self, i: usize) {
        self.members[i].server.end();
    }

    /// Freezes member `i` (SIGSTOP) and waits until it stands still.
    #[track_caller]
    pub fn pause(&mut self, i: usize) {
        self.members[i].server.pause();
    }

    /// Lets member `i` run on (SIGCONT).
    #[track_caller]
    pub fn resume(&mut self, i: usize) {
        self.members[i].server.resume();
    }

    /// Makes each `fdatasync` of member `i` begin `delay` late for as long as the answer lives.
    #[track_caller]
    pub fn stall_fsync(&self, i: usize, delay: Duration) -> Stall {
        Stall::fdatasync(self.pid(i), delay)
    }

    /// Starts member `i` again on its data, killing it first if it runs, and waits until it serves. In an ensemble it
    /// can do so only together with a majority: see [`launch`](Zookeeper::launch).
    #[track_caller]
    pub fn restart(&mut self, i: usize) {
        // The port is reserved against other test runs, but a stray program may hold it for a moment.
        let started = wait_until(PATIENCE, || {
            self.launch(i);
            match self.await_ready(i..i + 1) {
                Ok(()) => true,
                Err(StartError::PortTaken) => false,
                Err(StartError::Other(error)) => panic!("{error}"),
            }
        });
        assert!(started, "the port of ZooKeeper member {i} stayed taken");
    }

    /// Starts member `i` again on its data, killing it first if it runs, and does not wait until it serves.
    #[track_caller]
    pub fn launch(&mut self, i: usize) {
        self.members[i].spawn(&self.jars, &self.options).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until every member that runs and is not paused serves.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        self.await_ready(0..self.members()).unwrap_or_else(|e| panic!("{}", Error::from(e)));
    }

    fn await_ready(&mut self, which: Range<usize>) -> Result<(), StartError> {
        let end = now() + PATIENCE;
        loop {
            for member in &mut self.members[which.clone()] {
                member.check_alive()?;
            }
            let mut members = self.members[which.clone()].iter();
            let Some(member) = members.find(|member| member.server.is_running() && mode(member).is_none())
            else {
                return Ok(());
            };
            if now() >= end {
                let text = format!(
                    "ZooKeeper member {} does not serve:\n{}",
                    member.number,
                    member.server.log_tail()
                );
                return Err(StartError::Other(Error::new(text)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The member that leads, as the members themselves say; waits until one does.
    #[track_caller]
    pub fn leader_index(&self) -> usize {
        let mut leader = None;
        wait_until(PATIENCE, || {
            let leads = |member: &Member| {
                member.server.is_running()
                    && mode(member).is_some_and(|mode| mode == "leader" || mode == "standalone")
            };
            leader = self.members.iter().position(leads);
            leader.is_some()
        });
        leader.unwrap_or_else(|| panic!("no ZooKeeper member leads"))
    }

    /// One of the figures that member `i` counts (`mntr`).
    pub fn figure(&self, i: usize, name: &str) -> u64 {
        let text = four_letters(&self.members[i], "mntr").unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        value.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(0.0) as u64
    }

    /// An operator's connection to the first member that runs, without TLS.
    #[track_caller]
    pub fn hand(&self) -> Hand {
        let member = self.members.iter().find(|member| member.server.is_running()).expect("a member runs");
        Hand::connect(&member.client.addr().to_string())
    }

    /// The command line tool of the same version, told to connect to all members.
    pub fn cli(&self) -> Command {
        let mut command = options::java();
        command.arg("-cp").arg(member::class_path(&self.jars));
        command.args(["org.apache.zookeeper.ZooKeeperMain", "-server", &self.endpoints().join(",")]);
        command
    }

    /// Lets the servers run on when this process ends, and gives their process ids. Their directory must have been
    /// chosen with [`Options::dir`].
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        assert!(self.options.dir.is_some(), "servers in a directory of this run cannot outlive it");
        self.members.iter_mut().filter_map(|member| member.server.leave_running()).collect()
    }

    /// The directory that holds the members' data and logs: `n0`, `n1` and so on.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Zookeeper {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.server.end();
        }
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// What a member is, once it serves.
fn mode(member: &Member) -> Option<String> {
    let text = four_letters(member, "srvr")?;
    text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(|mode| mode.trim().to_owned())
}

fn four_letters(member: &Member, word: &str) -> Option<String> {
    let second = Duration::from_secs(1);
    let mut connection = TcpStream::connect_timeout(&member.client.addr(), second).ok()?;
    connection.set_read_timeout(Some(second * 2)).ok()?;
    connection.write_all(word.as_bytes()).ok()?;
    let mut text = String::new();
    connection.read_to_string(&mut text).ok()?;
    Some(text)
}
