//! A Redis server under the suite: a real one, reached through a relay, with the faults that operators and machines make.

use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::{Redis, Stall};

use crate::served::{self, Served};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// A server that starts when it is first needed, with a replica if asked for.
pub(crate) struct Server {
    with_replica: bool,
    served: Served<Pair>,
}

/// One server, or two of which one is the replica.
struct Pair(Vec<Redis>);

impl Server {
    pub(crate) fn new(with_replica: bool) -> Server {
        let start = move || {
            let start = |_| Redis::single().start().expect("redis starts");
            let servers: Vec<Redis> = (0..1 + usize::from(with_replica)).map(start).collect();
            if let [primary, replica] = &servers[..] {
                replica.replicate(primary);
            }
            Pair(servers)
        };
        let served = Served::new(start, |pair: &Pair| pair.0.iter().map(Redis::endpoint).collect());
        Server { with_replica, served }
    }
}

impl Pair {
    fn place(&self) -> usize {
        self.0.iter().position(is_primary).expect("a primary")
    }

    fn primary(&mut self) -> &mut Redis {
        let place = self.place();
        &mut self.0[place]
    }

    /// The primary and the replica.
    fn both(&self) -> (&Redis, &Redis) {
        let place = self.place();
        (&self.0[place], &self.0[1 - place])
    }

    /// What redis-cli says of the primary.
    fn cli(&mut self, args: &[&str]) -> String {
        self.primary().cli_ok(args)
    }

    fn number(&mut self, section: &str, name: &str) -> u64 {
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
            let url = format!("redis://{}/suite", self.served.running().hosts());
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.served.by_hand(move |running| drop(running.servers().cli(&["DEL", &key])))
    }

    /// Somebody uses the key for something else.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let key = format!("suite/{election}");
        self.served.by_hand(move |running| drop(running.servers().cli(&["SET", &key, "somebody's"])))
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("a record store has no queue")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.served.by_hand(|running| running.servers().primary().restart())
    }

    /// As an operator does it, who lets the replica catch up.
    fn fail_over(&self) -> Hook<'_> {
        if !self.with_replica {
            return Err("one server has nobody to fail over to");
        }
        self.served.by_hand(|running| {
            let servers = running.servers();
            let (old, new) = servers.both();
            new.promote();
            old.replicate(new);
        })
    }

    fn lose_writes(&self, promote: bool) -> Hook<'_> {
        if !self.with_replica {
            return Err("one server has no replica");
        }
        self.served.by_hand(move |running| {
            let servers = running.servers();
            let (old, new) = servers.both();
            match promote {
                true => {
                    new.promote();
                    old.replicate(new);
                }
                // It has what was written so far, and looks for a primary where there is none.
                false => {
                    old.cli_ok(&["WAIT", "1", "10000"]);
                    new.cli_ok(&["REPLICAOF", "127.0.0.1", "1"]);
                }
            }
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.with_replica {
            return Err("done with one server");
        }
        self.served.by_hand(move |running| {
            let mut servers = running.servers();
            let redis = servers.primary();
            redis.stop();
            served::back_up(&redis.dir().join("appendonlydir"), put_back);
            redis.restart();
        })
    }

    fn stall(&self, on: bool) -> Hook<'_> {
        self.served.stall(on, |servers| vec![Stall::fdatasync(servers.primary().pid(), STALL)])
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.served.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err(
            "done in a process with a wall clock of its own, by the test redis_wall_clock; the server cannot run under libfaketime",
        )
    }

    /// Keys, channels and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.served.by_hand(|running| {
            let keys: u64 = running.servers().cli(&["DBSIZE"]).trim().parse().expect("a number");
            let channels = running.servers().number("stats", "pubsub_channels");
            keys + channels + running.connections()
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        // One script is one request; what it calls counts for the server as commands of their own.
        self.served.by_hand(|running| {
            let stats = running.servers().cli(&["INFO", "commandstats"]);
            let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval:calls="));
            calls.filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum()
        })
    }
}
