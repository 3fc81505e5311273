//! NATS servers with JetStream: one, or a cluster, with the faults that tests inject.

mod member;
mod operator;
mod options;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::reaper::run_dir;
use crate::stall::Stall;
use crate::tls::Certificates;
use member::{Member, Ports, monitor};
use operator::Operator;
pub use options::{NatsVersion, Options};
pub use wire::Wire;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running NATS servers; dropping it kills them, and removes their data unless a directory was chosen for it.
///
/// Members are counted from 0. A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Nats {
    options: Options,
    dir: PathBuf,
    ports: Vec<Ports>,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    operator: Option<Operator>,
}

impl Nats {
    /// The bucket that is made when servers start: a replica on each member.
    pub const BUCKET: &'static str = "elections";

    /// One server; [`Options::start`] starts it.
    pub fn single(version: NatsVersion) -> Options {
        Options::new(vec![version])
    }

    /// A cluster with a member of each of these versions; [`Options::start`] starts it.
    pub fn cluster(versions: &[NatsVersion]) -> Options {
        Options::new(versions.to_vec())
    }

    fn start(options: Options) -> Result<Nats> {
        let mut programs = Vec::new();
        for version in &options.versions {
            programs.push(version.bundle().ensure()?.join("usr/sbin/nats-server"));
        }
        let mut attempts = 5;
        loop {
            attempts -= 1;
            let dir = options.dir.clone().unwrap_or_else(|| run_dir("nats"));
            fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
            let ports = options.versions.iter().map(|_| Ports::reserve()).collect();
            let members =
                programs.iter().enumerate().map(|(i, program)| Member::new(i, program.clone(), &dir));
            let members = members.collect();
            let certificates = options.tls.then(|| Certificates::make(&dir));
            let operator = options.is_operated.then(Operator::new);
            let mut nats = Nats { options: options.clone(), dir, ports, members, certificates, operator };
            match nats.start_all() {
                Ok(()) => return Ok(nats),
                Err(_) if attempts > 0 && nats.is_port_taken() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn start_all(&mut self) -> Result<()> {
        self.configure(false)?;
        for member in &mut self.members {
            member.spawn()?;
        }
        self.await_ready()?;
        if self.options.bucket {
            let replicas = self.members.len();
            self.make_bucket(Nats::BUCKET, &json!({"num_replicas": replicas}))?;
        }
        if self.options.tls {
            // The bucket was made without it: the testkit's own client knows no TLS.
            self.configure(true)?;
            for member in &mut self.members {
                member.server.end();
                member.spawn()?;
            }
            self.await_ready()?;
        }
        Ok(())
    }

    fn configure(&self, with_tls: bool) -> Result<()> {
        let tls = self.certificates.as_ref().filter(|_| with_tls);
        let operator = self.operator.as_ref();
        operator.map_or(Ok(()), |operator| operator.write_creds(&self.dir))?;
        let more = operator.map_or("", |operator| &operator.config);
        let texts = (0..self.members.len())
            .map(|i| self.options.configuration(i, &self.dir, &self.ports, tls) + more);
        self.members.iter().zip(texts).try_for_each(|(member, text)| member.configure(&text))
    }

    fn is_port_taken(&self) -> bool {
        self.members.iter().any(|member| member.server.log().contains("address already in use"))
    }

    fn await_ready(&mut self) -> Result<()> {
        let mut ended = None;
        let ready = wait_until(PATIENCE, || {
            ended = (0..self.members.len()).find(|i| self.members[*i].server.has_exited());
            ended.is_some() || (0..self.members.len()).all(|i| self.serves(i))
        });
        match ended {
            None if ready => Ok(()),
            _ => {
                let i = ended.or_else(|| (0..self.members.len()).find(|i| !self.serves(*i))).unwrap_or(0);
                Err(Error::new(format!(
                    "nats member {i} does not serve:\n{}",
                    self.members[i].server.log_tail()
                )))
            }
        }
    }

    fn serves(&self, i: usize) -> bool {
        monitor(&self.ports[i].monitor, "/healthz").is_some_and(|health| health["status"] == "ok")
    }

    /// Makes a bucket as `nats kv add` does, with `changes` to its stream's configuration, and waits until the servers can.
    pub fn make_bucket(&self, bucket: &str, changes: &Value) -> Result<()> {
        let mut config = json!({
            "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")], "retention": "limits",
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": 1,
            "max_msg_size": -1, "discard": "new", "storage": "file", "num_replicas": 1,
            "duplicate_window": 120_000_000_000_u64, "deny_delete": true, "allow_rollup_hdrs": true,
            "allow_direct": true,
        });
        if let (Some(config), Some(changes)) = (config.as_object_mut(), changes.as_object()) {
            config.extend(changes.clone());
        }
        let mut last = String::new();
        // A cluster that has just started may have no suitable peers for a while.
        let made = wait_until(PATIENCE, || {
            let answer = self.operator().api(&format!("STREAM.CREATE.KV_{bucket}"), &config);
            last = match answer {
                Ok(answer) if answer["error"].is_null() => return true,
                Ok(answer) => answer["error"].to_string(),
                Err(error) => error.to_string(),
            };
            false
        });
        if made { Ok(()) } else { Err(Error::new(format!("the bucket {bucket} cannot be made: {last}"))) }
    }

    /// A connection of an operator, who may do everything, to the first member that runs.
    #[track_caller]
    pub fn operator(&self) -> Wire {
        let i =
            self.members.iter().position(|member| member.server.is_running()).expect("a member that runs");
        self.operator_at(i)
    }

    /// The same, to member `i`.
    #[track_caller]
    pub fn operator_at(&self, i: usize) -> Wire {
        let login = |nonce: &str| match (&self.operator, self.options.token_of_testkit()) {
            (Some(operator), _) => operator.login(nonce),
            (None, Some(token)) => json!({"auth_token": token}),
            (None, None) => json!({"user": "testkit", "pass": "testkit"}),
        };
        let addr = self.ports[i].client.addr().to_string();
        Wire::connect_with(&addr, login).unwrap_or_else(|e| panic!("{e}"))
    }

    /// What the API of JetStream answers an operator, without an error.
    #[track_caller]
    pub fn api(&self, subject: &str, request: &Value) -> Value {
        let answer = self.operator().api(subject, request).unwrap_or_else(|e| panic!("{e}"));
        assert!(answer["error"].is_null(), "{subject}: {answer}");
        answer
    }

    /// Writes a key by hand, as `nats kv put` does, and gives its revision.
    #[track_caller]
    pub fn put(&self, bucket: &str, key: &str, headers: &[(&str, &str)], value: &[u8]) -> u64 {
        let subject = format!("$KV.{bucket}.{key}");
        let answer = self.operator().request(&subject, headers, value).unwrap_or_else(|e| panic!("{e}"));
        let answer: Value = serde_json::from_slice(&answer).expect("an answer of JetStream");
        answer["seq"].as_u64().filter(|_| answer["error"].is_null()).unwrap_or_else(|| panic!("{answer}"))
    }

    /// Deletes a key by hand, as `nats kv del` does.
    #[track_caller]
    pub fn delete(&self, bucket: &str, key: &str) {
        self.put(bucket, key, &[("KV-Operation", "DEL")], b"");
    }

    /// The client addresses, each as `127.0.0.1:PORT`.
    pub fn endpoints(&self) -> Vec<String> {
        self.ports.iter().map(|ports| ports.client.addr().to_string()).collect()
    }

    /// The URL that gives `incumbent` all endpoints, the bucket, and what it needs to be let in.
    pub fn url(&self) -> String {
        self.url_of(&self.endpoints())
    }

    /// The same with other addresses.
    pub fn url_of(&self, endpoints: &[String]) -> String {
        let login = match &self.options.login {
            Some((user, password)) => format!("{user}:{password}@"),
            None => String::new(),
        };
        let mut url = format!("nats://{login}{}/{}", endpoints.join(","), Nats::BUCKET);
        if let Some(tls) = &self.certificates {
            url.push_str(&format!("?tls=on&ca={}", tls.ca.display()));
            if self.options.client_auth {
                let (cert, key) = (tls.client_cert.display(), tls.client_key.display());
                url.push_str(&format!("&cert={cert}&key={key}"));
            }
        }
        url
    }

    /// The credentials file of the user whom an [operator](Options::operator) lets in.
    pub fn creds(&self) -> PathBuf {
        self.dir.join("creds")
    }

    /// The certificates in use, if TLS is.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// What the monitoring port of member `i` says, as at `/varz`.
    #[track_caller]
    pub fn monitor(&self, i: usize, path: &str) -> Value {
        monitor(&self.ports[i].monitor, path).unwrap_or_else(|| panic!("nats member {i} tells nothing"))
    }

    /// The process id of member `i`, which must be running.
    #[track_caller]
    pub fn pid(&self, i: usize) -> u32 {
        self.members[i].server.pid().unwrap_or_else(|| panic!("nats member {i} is not running"))
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

    /// Makes each `fsync` of member `i` begin `delay` late for as long as the answer lives.
    #[track_caller]
    pub fn stall_fsync(&self, i: usize, delay: Duration) -> Stall {
        Stall::fsync(self.pid(i), delay)
    }

    /// Starts member `i` again on its data, killing it first if it runs, and waits until it serves.
    #[track_caller]
    pub fn restart(&mut self, i: usize) {
        // The port is reserved against other test runs, but a stray program may hold it for a moment.
        let started = wait_until(PATIENCE, || {
            self.launch(i);
            wait_until(PATIENCE, || self.members[i].server.has_exited() || self.serves(i)) && self.serves(i)
        });
        assert!(started, "nats member {i} does not serve:\n{}", self.members[i].server.log_tail());
    }

    /// Kills all members, starts them again on their data and waits until they serve.
    #[track_caller]
    pub fn restart_all(&mut self) {
        for member in &mut self.members {
            member.server.end();
        }
        if let [_] = self.members[..] {
            return self.restart(0);
        }
        for i in 0..self.members.len() {
            self.launch(i);
        }
        self.await_ready().unwrap_or_else(|e| panic!("{e}"));
        self.leader_index();
    }

    /// Starts member `i` again on its data, killing it first if it runs, and does not wait until it serves.
    #[track_caller]
    pub fn launch(&mut self, i: usize) {
        self.members[i].spawn().unwrap_or_else(|e| panic!("{e}"));
    }

    /// The member that leads the bucket's stream; waits until one does.
    #[track_caller]
    pub fn leader_index(&self) -> usize {
        let mut leader = None;
        wait_until(PATIENCE, || {
            let info = self.operator().api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null);
            let name = info.ok().and_then(|info| info["cluster"]["leader"].as_str().map(str::to_owned));
            leader = name.and_then(|name| name.strip_prefix('n')?.parse().ok());
            leader.is_some()
        });
        leader.expect("no member leads the bucket")
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

    /// The directory that holds the members' data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.server.end();
        }
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
