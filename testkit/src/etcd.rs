//! etcd servers: one, or a cluster, of a given version, with the faults that tests inject.

mod member;
mod options;

use std::fs;
use std::net::TcpStream;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::clock::{now, wait_until};
use crate::error::{Error, Result, StartError};
use crate::fetch::{self, Bundle};
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::stall::Stall;
use crate::tls::Certificates;
use member::Member;
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// A version of etcd that Debian ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.4.23 of Debian 12: it answers keep-alives of leases that are gone.
    V3_4,
    /// 3.5.16 of Debian 13.
    V3_5,
}

impl Version {
    /// Both.
    pub const ALL: [Version; 2] = [Version::V3_4, Version::V3_5];

    /// The packages that hold it.
    pub fn bundle(self) -> &'static Bundle {
        match self {
            Version::V3_4 => &fetch::ETCD_3_4,
            Version::V3_5 => &fetch::ETCD_3_5,
        }
    }
}

/// Running etcd servers; dropping it kills them, and removes their data unless a directory was chosen for it.
///
/// Members are counted from 0. A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Etcd {
    options: Options,
    bin: PathBuf,
    dir: PathBuf,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    auth_enabled: bool,
}

impl Etcd {
    /// One server; [`Options::start`] starts it.
    pub fn single(version: Version) -> Options {
        Options::new(version, 1)
    }

    /// A cluster of `members` servers; [`Options::start`] starts it.
    pub fn cluster(version: Version, members: usize) -> Options {
        Options::new(version, members)
    }

    fn start(options: Options) -> Result<Etcd> {
        let bin = options.version.bundle().ensure()?.join("usr/bin");
        let mut attempts = 5;
        loop {
            attempts -= 1;
            let dir = match &options.dir {
                Some(dir) => dir.clone(),
                None => run_dir("etcd"),
            };
            fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
            let certificates = options.tls.then(|| Certificates::make(&dir));
            let members = Member::plan(&options, &dir, certificates.as_ref());
            let (options, bin) = (options.clone(), bin.clone());
            let mut etcd = Etcd { options, bin, dir, members, certificates, auth_enabled: false };
            match etcd.start_all() {
                Ok(()) => return Ok(etcd),
                Err(StartError::PortTaken) if attempts > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start_all(&mut self) -> Result<(), StartError> {
        for member in &mut self.members {
            member.spawn(&self.bin)?;
        }
        self.await_ready(0..self.members())?;
        if let Some((user, password)) = self.options.user.clone() {
            self.enable_auth(&user, &password);
        }
        Ok(())
    }

    /// The client addresses, each as `127.0.0.1:PORT`.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.addr().to_string()).collect()
    }

    /// The URL that gives `incumbent` all endpoints, and what it needs to be let in.
    pub fn url(&self) -> String {
        let user = match &self.options.user {
            Some((user, password)) => format!("{user}:{password}@"),
            None => String::new(),
        };
        let mut url = format!("etcd://{user}{}", self.endpoints().join(","));
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

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The process id of member `i`, which must be running.
    #[track_caller]
    pub fn pid(&self, i: usize) -> u32 {
        self.members[i].server.pid().unwrap_or_else(|| panic!("etcd member {i} is not running"))
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

    /// Starts member `i` again on its data, killing it first if it runs, and waits until it serves. In a cluster it
    /// can do so only together with a majority: see [`launch`](Etcd::launch).
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
        assert!(started, "the port of etcd member {i} stayed taken");
    }

    /// Starts member `i` again on its data, killing it first if it runs, and does not wait until it serves.
    #[track_caller]
    pub fn launch(&mut self, i: usize) {
        self.members[i].spawn(&self.bin).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until every member that runs and is not paused answers a linearizable read.
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
            let Some(member) = members.find(|member| member.server.is_running() && !self.serves(member))
            else {
                return Ok(());
            };
            if now() >= end {
                let text =
                    format!("etcd member {} does not serve:\n{}", member.name, member.server.log_tail());
                return Err(StartError::Other(Error::new(text)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn serves(&self, member: &Member) -> bool {
        let addr = member.client.addr();
        // A cheap look first: each etcdctl is a process.
        TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
            && self
                .etcdctl_to(&addr.to_string())
                .args(["--command-timeout=2s", "endpoint", "health"])
                .output()
                .is_ok_and(|output| output.status.success())
    }

    /// The member that leads, as the members themselves say; waits until one does.
    ///
    /// A member that is cut off or stalled may still call itself the leader: the highest raft term decides.
    #[track_caller]
    pub fn leader_index(&self) -> usize {
        let mut leader = None;
        wait_until(PATIENCE, || {
            leader = self.find_leader();
            leader.is_some()
        });
        leader.unwrap_or_else(|| panic!("no etcd member leads"))
    }

    fn find_leader(&self) -> Option<usize> {
        let claims = self.members.iter().enumerate().filter(|(_, member)| member.server.is_running());
        claims
            .filter_map(|(i, member)| {
                let output = self
                    .etcdctl_to(&member.client.addr().to_string())
                    .args(["--command-timeout=2s", "endpoint", "status", "-w", "json"])
                    .output()
                    .ok()?;
                let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
                let status = &answer[0]["Status"];
                let leads = status["leader"].as_u64()? == status["header"]["member_id"].as_u64()?;
                leads.then_some((status["raftTerm"].as_u64()?, i))
            })
            .max()
            .map(|(_, i)| i)
    }

    /// An etcdctl of the same version that knows the endpoints, certificates and, as root, the password.
    pub fn etcdctl_command(&self) -> Command {
        self.etcdctl_to(&self.endpoints().join(","))
    }

    fn etcdctl_to(&self, endpoints: &str) -> Command {
        let mut command = program(&self.bin.join("etcdctl"));
        command.env("ETCDCTL_API", "3");
        match &self.certificates {
            None => command.env("ETCDCTL_ENDPOINTS", endpoints),
            Some(tls) => command
                .env("ETCDCTL_ENDPOINTS", format!("https://{}", endpoints.replace(',', ",https://")))
                .env("ETCDCTL_CACERT", &tls.ca)
                .env("ETCDCTL_CERT", &tls.client_cert)
                .env("ETCDCTL_KEY", &tls.client_key),
        };
        if self.auth_enabled {
            command.env("ETCDCTL_USER", format!("root:{ROOT_PASSWORD}"));
        }
        command
    }

    /// Runs etcdctl with `args` to its end.
    #[track_caller]
    pub fn etcdctl(&self, args: &[&str]) -> Output {
        self.etcdctl_command().args(args).output().unwrap_or_else(|e| panic!("cannot run etcdctl: {e}"))
    }

    /// Runs etcdctl, which must succeed, and gives what it printed.
    #[track_caller]
    pub fn etcdctl_ok(&self, args: &[&str]) -> String {
        let output = self.etcdctl(args);
        assert!(output.status.success(), "etcdctl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn enable_auth(&mut self, user: &str, password: &str) {
        let root = format!("root:{ROOT_PASSWORD}");
        self.etcdctl_ok(&["user", "add", &root]);
        // 3.4 makes this role by itself, later, when authentication is switched on.
        self.etcdctl(&["role", "add", "root"]);
        self.etcdctl_ok(&["user", "grant-role", "root", "root"]);
        self.etcdctl_ok(&["role", "add", "all"]);
        self.etcdctl_ok(&["role", "grant-permission", "all", "--prefix=true", "readwrite", ""]);
        self.etcdctl_ok(&["user", "add", &format!("{user}:{password}")]);
        self.etcdctl_ok(&["user", "grant-role", user, "all"]);
        self.etcdctl_ok(&["auth", "enable"]);
        self.auth_enabled = true;
    }

    /// Lets the servers run on when this process ends, and gives their process ids. Their directory must have been
    /// chosen with [`Options::dir`].
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        self.let_run_on()
    }

    pub(crate) fn let_run_on(&mut self) -> Vec<u32> {
        assert!(self.options.dir.is_some(), "servers in a directory of this run cannot outlive it");
        self.members.iter_mut().filter_map(|member| member.server.leave_running()).collect()
    }

    /// The directory that holds the members' data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

const ROOT_PASSWORD: &str = "root-password";

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.server.end();
        }
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A program of etcd, without the settings for it that may be in this process's environment.
fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD")) {
        command.env_remove(name);
    }
    command
}

fn reserve_ports() -> (Port, Port) {
    (Port::reserve(), Port::reserve())
}
