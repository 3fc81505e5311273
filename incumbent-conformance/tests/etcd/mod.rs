//! etcd servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use serde_json::Value;
use testkit::{Direction, Etcd, Relay, Stall, Version};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers {
    version: Version,
    members: usize,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    etcd: Mutex<Etcd>,
    relays: Vec<Relay>,
    stalls: Mutex<Vec<Stall>>,
}

impl Servers {
    pub(crate) fn new(version: Version, members: usize) -> Servers {
        Servers { version, members, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| {
            let etcd = Etcd::cluster(self.version, self.members).start().expect("etcd starts");
            let relays = etcd.endpoints().iter().map(|endpoint| Relay::to(endpoint)).collect();
            Running { etcd: Mutex::new(etcd), relays, stalls: Mutex::default() }
        });
        self.running.clone()
    }

    /// Does what takes long on a thread that may block.
    fn by_hand<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Running) -> T + Send + 'static,
    ) -> Hook<'static, T> {
        let running = self.running();
        Ok(Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || act(running.get().expect("it has started"))).await;
            done.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error))
        }))
    }
}

impl Running {
    fn etcd(&self) -> MutexGuard<'_, Etcd> {
        self.etcd.lock().expect("an unbroken lock")
    }

    /// The keys of an election in the order of their creation, and the lease of each.
    fn queue(&self, election: &ElectionName) -> Vec<(String, String, i64)> {
        let prefix = format!("{election}/");
        let text = self.etcd().etcdctl_ok(&["get", "--prefix", &prefix, "--sort-by=CREATE", "-w", "json"]);
        let answer: Value = serde_json::from_str(&text).expect("json");
        let keys = answer["kvs"].as_array().cloned().unwrap_or_default();
        let text = |key: &Value, field: &str| {
            String::from_utf8(from_base64(key[field].as_str().unwrap_or(""))).unwrap_or_default()
        };
        keys.iter()
            .map(|key| (text(key, "key"), text(key, "value"), key["lease"].as_i64().unwrap_or(0)))
            .collect()
    }

    fn leader(&self, election: &ElectionName) -> (String, i64) {
        let (key, _, lease) = self.queue(election).into_iter().next().expect("somebody leads");
        (key, lease)
    }

    fn metric(&self, name: &str) -> u64 {
        self.etcd().endpoints().iter().map(|endpoint| metric(endpoint, name)).sum()
    }

    fn data(&self) -> PathBuf {
        self.etcd().dir().join("n0")
    }
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let relays = &running.get().expect("it has started").relays;
            let hosts: Vec<String> = relays.iter().map(Relay::addr).collect();
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&format!("etcd://{}", hosts.join(",")), &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let (key, _) = running.leader(&election);
            running.etcd().etcdctl_ok(&["del", &key]);
        })
    }

    /// Somebody writes his own value, under a lease of his own.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let (key, _) = running.leader(&election);
            let granted = running.etcd().etcdctl_ok(&["lease", "grant", "2"]);
            let lease = granted.split_whitespace().nth(1).expect("lease ID granted with TTL(2s)");
            running.etcd().etcdctl_ok(&["put", &format!("--lease={lease}"), &key, "somebody"]);
        })
    }

    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        let claim = claim.clone();
        self.by_hand(move |running| {
            let nonce = claim.nonce.to_string();
            let queue = running.queue(&claim.election);
            let (key, ..) = queue.iter().find(|(_, value, _)| value.contains(&nonce)).expect("it waits");
            running.etcd().etcdctl_ok(&["del", key]);
        })
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let (_, lease) = running.leader(&election);
            running.etcd().etcdctl_ok(&["lease", "revoke", &format!("{lease:x}")]);
        })
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| {
            let mut etcd = running.etcd();
            let members = etcd.members();
            (0..members).for_each(|i| etcd.kill(i));
            (0..members).for_each(|i| etcd.launch(i));
            (0..members).for_each(|_| etcd.wait_ready());
        })
    }

    fn fail_over(&self) -> Hook<'_> {
        if self.members == 1 {
            return Err("one member has nobody to fail over to");
        }
        self.by_hand(|running| {
            let mut etcd = running.etcd();
            let leader = etcd.leader_index();
            etcd.kill(leader);
            assert_ne!(etcd.leader_index(), leader);
            etcd.restart(leader);
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.members > 1 {
            return Err("an old copy on one member of three is brought up to date by the others");
        }
        self.by_hand(move |running| {
            let data = running.data();
            let copy = data.with_extension("copy");
            let mut etcd = running.etcd();
            etcd.stop(0);
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            etcd.restart(0);
        })
    }

    /// Of every member, so that no other one takes over.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stalls = running.stalls.lock().expect("an unbroken lock");
            stalls.clear();
            if on {
                let etcd = running.etcd();
                stalls.extend((0..etcd.members()).map(|i| etcd.stall_fsync(i, STALL)));
            }
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            for relay in &running.relays {
                match on {
                    true => relay.hold(Direction::Answers),
                    false => relay.pass(Direction::Answers),
                }
            }
        })
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test etcd_wall_clock")
    }

    /// Keys, leases, watchers and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let keys = running.etcd().etcdctl_ok(&["get", "", "--prefix", "--keys-only"]);
            let keys = keys.lines().filter(|line| !line.is_empty()).count();
            let leases = running.etcd().etcdctl_ok(&["lease", "list"]).lines().count();
            let connections: usize = running.relays.iter().map(Relay::open).sum();
            (keys + leases + connections) as u64 + running.metric("etcd_debugging_mvcc_watcher_total")
        })
    }

    fn kept(&self) -> u64 {
        0
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| running.metric("grpc_server_msg_received_total"))
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

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}
