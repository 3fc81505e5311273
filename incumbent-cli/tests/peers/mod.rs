//! Peers on this machine: those of a test that elect among themselves, each with a state and a port of its own.

use std::path::PathBuf;
use std::process::Command;

use testkit::{Certificates, Port, Proc, Signal};

use crate::scenarios::harness::{SOON, World};

/// The name of the peers together.
pub(crate) const CLUSTER: &str = "test";

/// Some peers. Those that vote run, the others are for candidates.
pub(crate) struct Peers {
    pub(crate) world: World,
    members: Vec<(String, Port)>,
    pub(crate) voters: Vec<(String, Option<Proc>)>,
    ttl: &'static str,
    /// How they elect, and the parameters of all URLs for that or for TLS.
    scheme: &'static str,
    parameters: String,
}

impl Peers {
    /// Makes the states of all, and starts the voters.
    pub(crate) fn start(candidates: &[&str], voters: usize, ttl: &'static str) -> Peers {
        let mut peers = Peers::make(candidates, voters, ttl);
        peers.restart_voters();
        peers
    }

    /// Candidates without voters that elect as `scheme` says, with its `parameters`, each of which begins with `&`.
    pub(crate) fn electing(
        scheme: &'static str,
        parameters: &str,
        candidates: &[&str],
        ttl: &'static str,
    ) -> Peers {
        Peers { scheme, parameters: parameters.to_owned(), ..Peers::make(candidates, 0, ttl) }
    }

    /// A candidate `a` and two voters that speak TLS.
    pub(crate) fn secured() -> Peers {
        let mut peers = Peers::make(&["a"], 2, "5s");
        let certificates = Certificates::make(&peers.world.path(""));
        let path = |path: &PathBuf| path.display().to_string();
        let (cert, key) = (path(&certificates.server_cert), path(&certificates.server_key));
        peers.parameters = format!("&tls=on&ca={}&cert={cert}&key={key}", path(&certificates.ca));
        peers.restart_voters();
        peers
    }

    fn make(candidates: &[&str], voters: usize, ttl: &'static str) -> Peers {
        let voters: Vec<String> = (1..=voters).map(|number| format!("v{number}")).collect();
        let names = candidates.iter().map(|name| (*name).to_owned()).chain(voters.iter().cloned());
        let members = names.map(|name| (name, Port::reserve())).collect();
        let voters = voters.into_iter().map(|name| (name, None)).collect();
        let peers =
            Peers { world: World::new(), members, voters, ttl, scheme: "raft", parameters: String::new() };
        std::fs::write(peers.secret(), "0123456789abcdef0123456789abcdef\n").expect("written");
        for (name, _) in &peers.members {
            peers.init(name, name, CLUSTER);
        }
        peers
    }

    /// `peer init`, into the folder `dir`.
    pub(crate) fn init(&self, dir: &str, name: &str, cluster: &str) {
        let state = self.state(dir);
        let state = state.to_str().expect("UTF-8");
        let (code, out, err) =
            self.world.output(&["peer", "init", "--state", state, "--name", name, "--cluster", cluster]);
        assert_eq!(code, 0, "{out}{err}");
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.world.path(&format!("peer-{name}"))
    }

    pub(crate) fn secret(&self) -> PathBuf {
        self.world.path("secret")
    }

    pub(crate) fn port(&self, name: &str) -> u16 {
        let (_, port) = self.members.iter().find(|(member, _)| member == name).expect("a member");
        port.number()
    }

    /// As the parameter `peers=` says it.
    pub(crate) fn list(&self) -> String {
        let member = |(name, port): &(String, Port)| format!("{name}=127.0.0.1:{}", port.number());
        self.members.iter().map(member).collect::<Vec<_>>().join(",")
    }

    /// The URL of who only asks.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.plain_url(), self.parameters)
    }

    /// The same without TLS.
    pub(crate) fn plain_url(&self) -> String {
        format!("{}://?peers={}&secret_file={}", self.scheme, self.list(), self.secret().display())
    }

    /// The URL of the peer `name`.
    pub(crate) fn url_of(&self, name: &str) -> String {
        place(&self.url(), name)
    }

    /// The command that runs the peer `name` as a voter.
    pub(crate) fn voter(&self, name: &str) -> Command {
        let ttl = format!("--ttl={}", self.ttl);
        self.world.incumbent(&["peer", "run", "--on", &self.url_of(name), &ttl])
    }

    /// The candidate `name` with the job, told also `flags`.
    pub(crate) fn candidate(&self, name: &str, flags: &[&str], job: &str) -> Proc {
        let (on, id, ttl) = (self.url_of(name), format!("--id={name}"), format!("--ttl={}", self.ttl));
        self.world.run(&[&["--on", &on, &id, &ttl], flags].concat(), job)
    }

    /// Starts the voters that do not run, and waits until they listen.
    pub(crate) fn restart_voters(&mut self) {
        let mut voters = std::mem::take(&mut self.voters);
        for (name, process) in &mut voters {
            process.get_or_insert_with(|| Proc::spawn(self.voter(name)));
        }
        for (_, process) in &voters {
            process.as_ref().expect("started").wait_line(|line| line.starts_with("peer: "), SOON);
        }
        self.voters = voters;
    }

    pub(crate) fn stop_voters(&mut self) {
        self.voters.iter_mut().for_each(|(_, process)| *process = None);
    }

    /// A voter, and what it has said.
    pub(crate) fn voter_lines(&self, name: &str) -> (&Proc, Vec<String>) {
        let found =
            self.voters.iter().find(|(voter, _)| voter == name).and_then(|(_, process)| process.as_ref());
        let process = found.expect("a voter that runs");
        (process, process.lines().into_iter().map(|line| line.text).collect())
    }

    pub(crate) fn signal_voters(&self, signal: Signal) {
        self.voters.iter().flat_map(|(_, process)| process).for_each(|process| process.signal(signal));
    }
}

/// The URL of the peer `name`, from that of who only asks; its state stands beside the secret.
pub(crate) fn place(on: &str, name: &str) -> String {
    let (_, secret) = on.split_once("secret_file=").expect("a secret");
    let (dir, _) = secret.split_once("secret").expect("the secret's folder");
    format!("{}&state={dir}peer-{name}", on.replacen("://?", &format!("://{name}?"), 1))
}
