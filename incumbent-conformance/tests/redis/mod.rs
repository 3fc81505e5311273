//! A Redis server under the suite: a real one, reached through a relay, with the faults that operators and machines make.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use testkit::{Direction, Redis, Relay, Stall};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// A server that starts when it is first needed, with a replica if asked for.
pub(crate) struct Server {
    with_replica: bool,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    /// The primary first.
    servers: Mutex<Vec<Redis>>,
    relays: Vec<Relay>,
    stall: Mutex<Option<Stall>>,
}

impl Server {
    pub(crate) fn new(with_replica: bool) -> Server {
        Server { with_replica, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| {
            let start = |_| Redis::single().start().expect("redis starts");
            let servers: Vec<Redis> = (0..1 + usize::from(self.with_replica)).map(start).collect();
            if let [primary, replica] = &servers[..] {
                replica.replicate(primary);
            }
            let relays = servers.iter().map(|redis| Relay::to(&redis.endpoint())).collect();
            Running { servers: Mutex::new(servers), relays, stall: Mutex::default() }
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
    fn servers(&self) -> MutexGuard<'_, Vec<Redis>> {
        self.servers.lock().expect("an unbroken lock")
    }

    /// What redis-cli says of the primary.
    fn cli(&self, args: &[&str]) -> String {
        let primary = self.primary();
        self.servers()[primary].cli_ok(args)
    }

    fn primary(&self) -> usize {
        self.servers().iter().position(is_primary).expect("a primary")
    }

    fn number(&self, section: &str, name: &str) -> u64 {
        let info = self.cli(&["INFO", section]);
        let value = info.lines().find_map(|line| line.trim_end().strip_prefix(&format!("{name}:")));
        value.and_then(|value| value.parse().ok()).expect("a number")
    }
}

fn is_primary(redis: &Redis) -> bool {
    redis.cli_ok(&["INFO", "replication"]).contains("role:master")
}

impl Harness for Server {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let relays = &running.get().expect("it has started").relays;
            let hosts: Vec<String> = relays.iter().map(Relay::addr).collect();
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&format!("redis://{}/suite", hosts.join(",")), &settings)?()
        })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.by_hand(move |running| drop(running.cli(&["DEL", &key])))
    }

    /// Somebody uses the key for something else.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.by_hand(move |running| drop(running.cli(&["SET", &key, "somebody's"])))
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a record store has no queue")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| {
            let primary = running.primary();
            running.servers()[primary].restart();
        })
    }

    /// As an operator does it, who lets the replica catch up.
    fn fail_over(&self) -> Hook<'_> {
        if !self.with_replica {
            return Err("one server has nobody to fail over to");
        }
        self.by_hand(|running| {
            let primary = running.primary();
            let servers = running.servers();
            let (old, new) = (&servers[primary], &servers[1 - primary]);
            new.promote();
            old.replicate(new);
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.with_replica {
            return Err("done with one server");
        }
        self.by_hand(move |running| {
            let redis = &mut running.servers()[0];
            let data = redis.dir().join("appendonlydir");
            let copy = redis.dir().join("copy");
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            redis.stop();
            let _ = fs::remove_dir_all(&to);
            copy_all(&from, &to);
            redis.restart();
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stall = running.stall.lock().expect("an unbroken lock");
            *stall = None;
            if on {
                let primary = running.primary();
                *stall = Some(Stall::fdatasync(running.servers()[primary].pid(), STALL));
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
        Err(
            "done in a process with a wall clock of its own, by the test redis_wall_clock; the server cannot run under libfaketime",
        )
    }

    /// Keys, channels and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let keys: u64 = running.cli(&["DBSIZE"]).trim().parse().expect("a number");
            let channels = running.number("stats", "pubsub_channels");
            keys + channels + running.relays.iter().map(Relay::open).sum::<usize>() as u64
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        // One script is one request; what it calls counts for the server as commands of their own.
        self.by_hand(|running| {
            let stats = running.cli(&["INFO", "commandstats"]);
            let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval:calls="));
            calls.filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum()
        })
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}
