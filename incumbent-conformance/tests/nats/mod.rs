//! NATS servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use serde_json::Value;
use testkit::{Nats, NatsVersion};

use crate::served::{self, Served};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers(Served<Nats>);

impl Servers {
    pub(crate) fn new(members: usize) -> Servers {
        let start = move || Nats::cluster(&vec![NatsVersion::V2_10; members]).start().expect("nats starts");
        Servers(Served::new(start, Nats::endpoints))
    }

    fn members(&self) -> usize {
        self.0.running().servers().members()
    }
}

fn stream(nats: &Nats) -> Value {
    nats.api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null)["state"].clone()
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let url = format!("nats://{}/{}/suite", self.0.running().hosts(), Nats::BUCKET);
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.0.by_hand(move |running| running.servers().delete(Nats::BUCKET, &key))
    }

    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.0.by_hand(move |running| {
            running.servers().put(Nats::BUCKET, &key, &[], b"somebody's");
        })
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a record store has no queue")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.0.by_hand(|running| running.servers().restart_all())
    }

    fn fail_over(&self) -> Hook<'_> {
        if self.members() == 1 {
            return Err("one server has nobody to fail over to");
        }
        self.0.by_hand(|running| {
            let nats = running.servers();
            let old = nats.leader_index();
            nats.api(&format!("STREAM.LEADER.STEPDOWN.KV_{}", Nats::BUCKET), &Value::Null);
            assert!(
                testkit::wait_until(STALL, || nats.leader_index() != old),
                "nobody else leads the bucket"
            );
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.members() > 1 {
            return Err("done with one server");
        }
        self.0.by_hand(move |running| {
            let mut nats = running.servers();
            nats.stop(0);
            served::back_up(&nats.dir().join("n0"), put_back);
            nats.restart(0);
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.0.stall(on, |nats| (0..nats.members()).map(|i| nats.stall_fsync(i, STALL)).collect())
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test nats_wall_clock")
    }

    /// Keys, consumers and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let state = stream(&running.servers());
            let number = |name: &str| state[name].as_u64().unwrap_or(0);
            number("messages") + number("consumer_count") + running.connections()
        })
    }

    /// Any server that has the stream answers a read at once; a write goes the way of all writes.
    fn reads_out_of_turn(&self) -> bool {
        true
    }

    /// Questions to JetStream and writes.
    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let nats = running.servers();
            let asked =
                (0..nats.members()).map(|i| nats.monitor(i, "/jsz")["api"]["total"].as_u64().unwrap_or(0));
            let asked: u64 = asked.sum();
            asked + stream(&nats)["last_seq"].as_u64().unwrap_or(0)
        })
    }
}
