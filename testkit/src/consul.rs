//! Consul servers: one, or a cluster, with the faults that tests inject.

mod member;
mod options;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::fetch::CONSUL;
use crate::reaper::run_dir;
use crate::tls::Certificates;
use member::Member;
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);
/// The token of the one who may do everything.
const MASTER: &str = "00000000-0000-0000-0000-00000000aced";

/// Running Consul servers; dropping it kills them, and removes their data unless a directory was chosen for it.
///
/// They keep sessions from 1 s on. Members are counted from 0. A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Consul {
    options: Options,
    bin: PathBuf,
    dir: PathBuf,
    members: Vec<Member>,
    certificates: Option<Certificates>,
}

impl Consul {
    /// One server; [`Options::start`] starts it.
    pub fn single() -> Options {
        Options::new(1)
    }

    /// A cluster of `members` servers; [`Options::start`] starts it.
    pub fn cluster(members: usize) -> Options {
        Options::new(members)
    }

    fn start(options: Options) -> Result<Consul> {
        let bin = CONSUL.ensure()?.join("usr/bin/consul");
        let mut attempts = 5;
        loop {
            attempts -= 1;
            let dir = options.dir.clone().unwrap_or_else(|| run_dir("consul"));
            fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
            let certificates = options.tls.then(|| Certificates::make(&dir));
            let members: Vec<Member> = (0..options.members).map(|number| Member::new(number, &dir)).collect();
            let peers: Vec<String> = members.iter().map(Member::serf_addr).collect();
            for member in &members {
                member.configure(&options, &peers, certificates.as_ref())?;
            }
            let mut consul =
                Consul { options: options.clone(), bin: bin.clone(), dir, members, certificates };
            for member in &mut consul.members {
                member.spawn(&bin)?;
            }
            match consul.await_ready() {
                Ok(()) => return Ok(consul),
                Err(error) if attempts > 0 && error.to_string().contains("address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn await_ready(&mut self) -> Result<()> {
        let mut ended = None;
        let ready = wait_until(PATIENCE, || {
            ended = self.members.iter_mut().position(|member| member.server.has_exited());
            ended.is_some()
                || self.members.iter().filter(|member| member.server.is_running()).all(|member| {
                    // A write shows that there is a leader.
                    member
                        .call("PUT", "/v1/kv/ready", "")
                        .is_ok_and(|(status, body)| status == 200 && body == "true")
                })
        });
        match ended {
            None if ready => Ok(()),
            _ => {
                let number = ended.unwrap_or_default();
                Err(Error::new(format!(
                    "Consul server n{number} does not serve:\n{}",
                    self.members[number].server.log_tail()
                )))
            }
        }
    }

    /// The addresses for clients, each as `127.0.0.1:PORT`.
    pub fn endpoints(&self) -> Vec<String> {
        let port = |member: &Member| {
            if self.certificates.is_some() { member.https.addr() } else { member.http.addr() }
        };
        self.members.iter().map(|member| port(member).to_string()).collect()
    }

    /// The URL that gives `incumbent` all endpoints and the certificates that it needs to be let in, but no token.
    pub fn url(&self) -> String {
        let mut url = format!("consul://{}", self.endpoints().join(","));
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
        self.members[i].server.pid().unwrap_or_else(|| panic!("Consul server {i} is not running"))
    }

    /// What member `i` has logged since its first start, debug lines included.
    pub fn log(&self, i: usize) -> String {
        self.members[i].server.log()
    }

    /// Where member `i` keeps its data.
    pub fn data(&self, i: usize) -> PathBuf {
        self.members[i].data()
    }

    /// How many requests the members have answered since they were first started.
    pub fn requests(&self) -> u64 {
        let finished = |member: &Member| member.server.log().matches("Request finished").count() as u64;
        self.members.iter().map(finished).sum()
    }

    /// Stops member `i` politely (SIGTERM) and waits until it is gone.
    #[track_caller]
    pub fn stop(&mut self, i: usize) {
        self.members[i].server.stop(Signal::TERM, PATIENCE);
    }

    /// Kills member `i` (SIGKILL).
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

    /// Starts member `i` again on its data, killing it first if it runs.
    #[track_caller]
    pub fn launch(&mut self, i: usize) {
        let bin = self.bin.clone();
        self.members[i].spawn(&bin).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until every member that runs and is not paused takes a write.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        self.await_ready().unwrap_or_else(|e| panic!("{e}"));
    }

    /// [`launch`](Consul::launch)es member `i` and waits until all serve.
    #[track_caller]
    pub fn restart(&mut self, i: usize) {
        self.launch(i);
        self.wait_ready();
    }

    /// The member that leads, as the members say; waits until one does.
    #[track_caller]
    pub fn leader_index(&self) -> usize {
        let mut leader = None;
        wait_until(PATIENCE, || {
            let member = self.members.iter().find(|member| member.server.is_running());
            let answer =
                member.and_then(|member| member.call("GET", "/v1/operator/raft/configuration", "").ok());
            let servers: Value =
                answer.and_then(|(_, body)| serde_json::from_str(&body).ok()).unwrap_or_default();
            let servers = servers["Servers"].as_array().cloned().unwrap_or_default();
            let leads = servers.iter().find(|server| server["Leader"] == true);
            let name = leads.and_then(|server| server["Node"].as_str()).unwrap_or_default();
            leader = self.members.iter().position(|member| member.name == name && member.server.is_running());
            leader.is_some()
        });
        leader.unwrap_or_else(|| panic!("no Consul server leads"))
    }

    /// One request to a member that runs, as the one who may do everything; it must succeed. Gives the answer.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &str) -> String {
        match self.ask(method, path, body) {
            Some((200, answer)) => answer,
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    /// Asks one member after the other until one answers: while there is no leader, none does.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut answer = None;
        wait_until(PATIENCE, || {
            let mut running = self.members.iter().filter(|member| member.server.is_running());
            answer = running.find_map(|member| {
                member.call(method, path, body).ok().filter(|(status, _)| !matches!(status, 0 | 500..))
            });
            answer.is_some()
        });
        answer
    }

    /// A key as the store has it; `None` if it is absent.
    #[track_caller]
    pub fn key(&self, key: &str) -> Option<Value> {
        match self.ask("GET", &format!("/v1/kv/{key}?consistent"), "") {
            Some((404, _)) => None,
            Some((200, body)) => serde_json::from_str::<Value>(&body).ok().map(|keys| keys[0].clone()),
            other => panic!("{key}: {other:?}"),
        }
    }

    /// The session that holds a key, as a server shows it that asks no other, and may be wrong.
    #[track_caller]
    pub fn holder_as_shown(&self, key: &str) -> Option<String> {
        let keys: Value = serde_json::from_str(&self.call("GET", &format!("/v1/kv/{key}?stale"), "")).ok()?;
        keys[0]["Session"].as_str().map(str::to_owned)
    }

    /// The session that holds a key.
    #[track_caller]
    pub fn holder(&self, key: &str) -> Option<String> {
        self.key(key)?["Session"].as_str().map(str::to_owned)
    }

    /// A new token that may do what `rules` say, in Consul's policy language.
    #[track_caller]
    pub fn token(&self, name: &str, rules: &str) -> String {
        self.call("PUT", "/v1/acl/policy", &json!({ "Name": name, "Rules": rules }).to_string());
        let token = json!({ "Policies": [{ "Name": name }] }).to_string();
        let token: Value = serde_json::from_str(&self.call("PUT", "/v1/acl/token", &token)).expect("JSON");
        token["SecretID"].as_str().expect("a token").to_owned()
    }

    /// The `consul` command of the same version, which knows the first endpoint and may do everything.
    pub fn command(&self) -> Command {
        let mut command = program(&self.bin);
        let member =
            self.members.iter().find(|member| member.server.is_running()).unwrap_or(&self.members[0]);
        command.env("CONSUL_HTTP_ADDR", member.http.addr().to_string());
        if self.options.acl {
            command.env("CONSUL_HTTP_TOKEN", MASTER);
        }
        command
    }

    /// Runs it with `args` to its end.
    #[track_caller]
    pub fn consul(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap_or_else(|e| panic!("cannot run consul: {e}"))
    }

    /// Lets the servers run on when this process ends, and gives their process ids. Their directory must have been chosen with
    /// [`Options::dir`].
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        assert!(self.options.dir.is_some(), "servers in a directory of this run cannot outlive it");
        self.members.iter_mut().filter_map(|member| member.server.leave_running()).collect()
    }

    /// The directory that holds the members' data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.server.end();
        }
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A program of Consul, without the settings for it that may be in this process's environment.
fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONSUL_")) {
        command.env_remove(name);
    }
    command
}
