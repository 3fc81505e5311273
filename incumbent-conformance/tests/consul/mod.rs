//! Consul servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use serde_json::Value;
use testkit::{Consul, Direction, Relay, Stall};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers {
    members: usize,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    consul: Mutex<Consul>,
    relays: Vec<Relay>,
    stalls: Mutex<Vec<Stall>>,
}

impl Servers {
    pub(crate) fn new(members: usize) -> Servers {
        Servers { members, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| {
            let consul = Consul::cluster(self.members).start().expect("Consul starts");
            let relays = consul.endpoints().iter().map(|endpoint| Relay::to(endpoint)).collect();
            Running { consul: Mutex::new(consul), relays, stalls: Mutex::default() }
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
    fn consul(&self) -> MutexGuard<'_, Consul> {
        self.consul.lock().expect("an unbroken lock")
    }
}

fn lock(election: &ElectionName) -> String {
    format!("{election}/.lock")
}

fn count(json: &str) -> usize {
    serde_json::from_str::<Value>(json).ok().and_then(|value| value.as_array().map(Vec::len)).unwrap_or(0)
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let relays = &running.get().expect("it has started").relays;
            let hosts: Vec<String> = relays.iter().map(Relay::addr).collect();
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&format!("consul://{}", hosts.join(",")), &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.by_hand(move |running| {
            running.consul().call("DELETE", &format!("/v1/kv/{key}"), "");
        })
    }

    /// Somebody writes his own value; the session that holds the key still does.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.by_hand(move |running| {
            running.consul().call("PUT", &format!("/v1/kv/{key}"), "somebody");
        })
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("who waits has nothing in the store")
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.by_hand(move |running| {
            let session = running.consul().holder(&key).expect("somebody leads");
            running.consul().call("PUT", &format!("/v1/session/destroy/{session}"), "");
        })
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| {
            let mut consul = running.consul();
            let members = consul.members();
            (0..members).for_each(|i| consul.kill(i));
            (0..members).for_each(|i| consul.launch(i));
            consul.wait_ready();
        })
    }

    fn fail_over(&self) -> Hook<'_> {
        if self.members == 1 {
            return Err("one server has nobody to fail over to");
        }
        self.by_hand(|running| {
            let mut consul = running.consul();
            let leader = consul.leader_index();
            consul.kill(leader);
            assert_ne!(consul.leader_index(), leader);
            consul.restart(leader);
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.members > 1 {
            return Err("an old copy on one server of three is brought up to date by the others");
        }
        self.by_hand(move |running| {
            let mut consul = running.consul();
            let data = consul.data(0);
            let copy = data.with_extension("copy");
            consul.stop(0);
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            consul.restart(0);
        })
    }

    /// Of every member, so that no other one takes over.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stalls = running.stalls.lock().expect("an unbroken lock");
            stalls.clear();
            if on {
                let consul = running.consul();
                stalls.extend((0..consul.members()).map(|i| Stall::fdatasync(consul.pid(i), STALL)));
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
        Err("done in a process with a wall clock of its own, by the test consul_wall_clock")
    }

    /// Keys, sessions and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let keys = count(&running.consul().call("GET", "/v1/kv/?keys", ""));
            let sessions = count(&running.consul().call("GET", "/v1/session/list", ""));
            let connections: usize = running.relays.iter().map(Relay::open).sum();
            (keys + sessions + connections) as u64
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| running.consul().requests())
    }
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
