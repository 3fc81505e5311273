//! NATS servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use serde_json::Value;
use testkit::{Direction, Nats, NatsVersion, Relay, Stall};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers {
    members: usize,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    nats: Mutex<Nats>,
    relays: Vec<Relay>,
    stalls: Mutex<Vec<Stall>>,
}

impl Servers {
    pub(crate) fn new(members: usize) -> Servers {
        Servers { members, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| {
            let nats = Nats::cluster(&vec![NatsVersion::V2_10; self.members]).start().expect("nats starts");
            let relays = nats.endpoints().iter().map(|endpoint| Relay::to(endpoint)).collect();
            Running { nats: Mutex::new(nats), relays, stalls: Mutex::default() }
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
    fn nats(&self) -> MutexGuard<'_, Nats> {
        self.nats.lock().expect("an unbroken lock")
    }

    fn stream(&self) -> Value {
        self.nats().api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null)["state"].clone()
    }
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let running = running.get().expect("it has started");
            let hosts: Vec<String> = running.relays.iter().map(Relay::addr).collect();
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            let url = format!("nats://{}/{}/suite", hosts.join(","), Nats::BUCKET);
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.by_hand(move |running| running.nats().delete(Nats::BUCKET, &key))
    }

    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.by_hand(move |running| {
            running.nats().put(Nats::BUCKET, &key, &[], b"somebody's");
        })
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a record store has no queue")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| running.nats().restart_all())
    }

    fn fail_over(&self) -> Hook<'_> {
        if self.members == 1 {
            return Err("one server has nobody to fail over to");
        }
        self.by_hand(|running| {
            let nats = running.nats();
            let old = nats.leader_index();
            nats.api(&format!("STREAM.LEADER.STEPDOWN.KV_{}", Nats::BUCKET), &Value::Null);
            assert!(
                testkit::wait_until(STALL, || nats.leader_index() != old),
                "nobody else leads the bucket"
            );
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.members > 1 {
            return Err("done with one server");
        }
        self.by_hand(move |running| {
            let mut nats = running.nats();
            let (data, copy) = (nats.dir().join("n0"), nats.dir().join("copy"));
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            nats.stop(0);
            let _ = fs::remove_dir_all(&to);
            copy_all(&from, &to);
            nats.restart(0);
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stalls = running.stalls.lock().expect("an unbroken lock");
            stalls.clear();
            if on {
                let nats = running.nats();
                stalls.extend((0..nats.members()).map(|i| nats.stall_fsync(i, STALL)));
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
        Err("done in a process with a wall clock of its own, by the test nats_wall_clock")
    }

    /// Keys, consumers and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let state = running.stream();
            let number = |name: &str| state[name].as_u64().unwrap_or(0);
            let open = running.relays.iter().map(Relay::open).sum::<usize>() as u64;
            number("messages") + number("consumer_count") + open
        })
    }

    /// Questions to JetStream and writes.
    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let nats = running.nats();
            let asked =
                (0..nats.members()).map(|i| nats.monitor(i, "/jsz")["api"]["total"].as_u64().unwrap_or(0));
            let asked: u64 = asked.sum();
            drop(nats);
            asked + running.stream()["last_seq"].as_u64().unwrap_or(0)
        })
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a file type").is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}
