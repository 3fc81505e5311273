//! Consul servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use serde_json::Value;
use testkit::{Consul, Stall};

use crate::cluster::{self, Cluster};
use crate::served::Served;

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers(Served<Consul>);

impl Servers {
    pub(crate) fn new(members: usize) -> Servers {
        let start = move || Consul::cluster(members).start().expect("Consul starts");
        Servers(Served::new(start, Consul::endpoints))
    }
}

impl Cluster for Consul {
    fn members(&self) -> usize {
        Consul::members(self)
    }

    fn leader_index(&self) -> usize {
        Consul::leader_index(self)
    }

    fn stop(&mut self, i: usize) {
        Consul::stop(self, i);
    }

    fn kill(&mut self, i: usize) {
        Consul::kill(self, i);
    }

    fn launch(&mut self, i: usize) {
        Consul::launch(self, i);
    }

    fn restart(&mut self, i: usize) {
        Consul::restart(self, i);
    }

    fn wait_ready(&mut self) {
        Consul::wait_ready(self);
    }

    fn data(&self) -> PathBuf {
        Consul::data(self, 0)
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
            let url = format!("consul://{}", self.0.running().hosts());
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.0.by_hand(move |running| {
            running.servers().call("DELETE", &format!("/v1/kv/{key}"), "");
        })
    }

    /// Somebody writes his own value; the session that holds the key still does.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.0.by_hand(move |running| {
            running.servers().call("PUT", &format!("/v1/kv/{key}"), "somebody");
        })
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("who waits has nothing in the store")
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = lock(election);
        self.0.by_hand(move |running| {
            let session = running.servers().holder(&key).expect("somebody leads");
            running.servers().call("PUT", &format!("/v1/session/destroy/{session}"), "");
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
        self.0.stall(on, |consul| {
            (0..consul.members()).map(|i| Stall::fdatasync(consul.pid(i), STALL)).collect()
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test consul_wall_clock")
    }

    /// Requests go side by side, over several connections.
    fn reads_out_of_turn(&self) -> bool {
        true
    }

    /// Keys, sessions and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let keys = count(&running.servers().call("GET", "/v1/kv/?keys", ""));
            let sessions = count(&running.servers().call("GET", "/v1/session/list", ""));
            (keys + sessions) as u64 + running.connections()
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| running.servers().requests())
    }
}
