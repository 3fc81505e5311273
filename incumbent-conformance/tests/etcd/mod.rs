//! etcd servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use serde_json::Value;
use testkit::{Etcd, Version};

use crate::cluster::{self, Cluster};
use crate::served::Served;

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers(Served<Etcd>);

impl Servers {
    pub(crate) fn new(version: Version, members: usize) -> Servers {
        let options = Etcd::cluster(version, members);
        Servers(Served::new(move || options.clone().start().expect("etcd starts"), Etcd::endpoints))
    }
}

impl Cluster for Etcd {
    fn members(&self) -> usize {
        Etcd::members(self)
    }

    fn leader_index(&self) -> usize {
        Etcd::leader_index(self)
    }

    fn stop(&mut self, i: usize) {
        Etcd::stop(self, i);
    }

    fn kill(&mut self, i: usize) {
        Etcd::kill(self, i);
    }

    fn launch(&mut self, i: usize) {
        Etcd::launch(self, i);
    }

    fn restart(&mut self, i: usize) {
        Etcd::restart(self, i);
    }

    fn wait_ready(&mut self) {
        // One that waits for a majority is asked for longer than it is waited for.
        (0..self.members()).for_each(|_| Etcd::wait_ready(self));
    }

    fn data(&self) -> PathBuf {
        self.dir().join("n0")
    }
}

/// The keys of an election in the order of their creation, and the lease of each.
fn queue(etcd: &Etcd, election: &ElectionName) -> Vec<(String, String, i64)> {
    let prefix = format!("{election}/");
    let text = etcd.etcdctl_ok(&["get", "--prefix", &prefix, "--sort-by=CREATE", "-w", "json"]);
    let answer: Value = serde_json::from_str(&text).expect("json");
    let keys = answer["kvs"].as_array().cloned().unwrap_or_default();
    let text = |key: &Value, field: &str| {
        String::from_utf8(from_base64(key[field].as_str().unwrap_or(""))).unwrap_or_default()
    };
    keys.iter()
        .map(|key| (text(key, "key"), text(key, "value"), key["lease"].as_i64().unwrap_or(0)))
        .collect()
}

fn leader(etcd: &Etcd, election: &ElectionName) -> (String, i64) {
    let (key, _, lease) = queue(etcd, election).into_iter().next().expect("somebody leads");
    (key, lease)
}

/// A metric of all members together.
fn metrics(etcd: &Etcd, name: &str) -> u64 {
    etcd.endpoints().iter().map(|endpoint| metric(endpoint, name)).sum()
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let url = format!("etcd://{}", self.0.running().hosts());
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.0.by_hand(move |running| {
            let (key, _) = leader(&running.servers(), &election);
            running.servers().etcdctl_ok(&["del", &key]);
        })
    }

    /// Somebody writes his own value, under a lease of his own.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.0.by_hand(move |running| {
            let (key, _) = leader(&running.servers(), &election);
            let granted = running.servers().etcdctl_ok(&["lease", "grant", "2"]);
            let lease = granted.split_whitespace().nth(1).expect("lease ID granted with TTL(2s)");
            running.servers().etcdctl_ok(&["put", &format!("--lease={lease}"), &key, "somebody"]);
        })
    }

    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        let claim = claim.clone();
        self.0.by_hand(move |running| {
            let nonce = claim.nonce.to_string();
            let queue = queue(&running.servers(), &claim.election);
            let (key, ..) = queue.iter().find(|(_, value, _)| value.contains(&nonce)).expect("it waits");
            running.servers().etcdctl_ok(&["del", key]);
        })
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.0.by_hand(move |running| {
            let (_, lease) = leader(&running.servers(), &election);
            running.servers().etcdctl_ok(&["lease", "revoke", &format!("{lease:x}")]);
        })
    }

    fn restart(&self) -> Hook<'_> {
        cluster::restart(&self.0)
    }

    fn fail_over(&self) -> Hook<'_> {
        cluster::fail_over(&self.0)
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        cluster::back_up_all(&self.0, put_back)
    }

    /// Of every member, so that no other one takes over.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.0.stall(on, |etcd| (0..etcd.members()).map(|i| etcd.stall_fsync(i, STALL)).collect())
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test etcd_wall_clock")
    }

    /// Each call is a stream of its own, and a member serves them side by side.
    fn reads_out_of_turn(&self) -> bool {
        true
    }

    /// Keys, leases, watchers and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let etcd = running.servers();
            let keys = etcd.etcdctl_ok(&["get", "", "--prefix", "--keys-only"]);
            let keys = keys.lines().filter(|line| !line.is_empty()).count();
            let leases = etcd.etcdctl_ok(&["lease", "list"]).lines().count();
            (keys + leases) as u64
                + running.connections()
                + metrics(&etcd, "etcd_debugging_mvcc_watcher_total")
        })
    }

    fn kept(&self) -> u64 {
        0
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| metrics(&running.servers(), "grpc_server_msg_received_total"))
    }
}

/// The sum of all series of a metric at one member.
fn metric(endpoint: &str, name: &str) -> u64 {
    let mut connection = TcpStream::connect(endpoint).expect("the member answers");
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("an answer");
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let values = text.lines().filter(of_name).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

fn from_base64(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}
