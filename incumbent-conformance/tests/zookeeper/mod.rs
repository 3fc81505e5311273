//! ZooKeeper servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::Zookeeper;
use testkit::zookeeper::{Hand, Version};

use crate::cluster::{self, Cluster};
use crate::served::Served;

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers(Served<Zookeeper>);

impl Servers {
    pub(crate) fn new(version: Version, members: usize) -> Servers {
        let options = Zookeeper::ensemble(version, members).tick_ms(200);
        Servers(Served::new(move || options.clone().start().expect("ZooKeeper starts"), Zookeeper::endpoints))
    }
}

impl Cluster for Zookeeper {
    fn members(&self) -> usize {
        Zookeeper::members(self)
    }

    fn leader_index(&self) -> usize {
        Zookeeper::leader_index(self)
    }

    fn stop(&mut self, i: usize) {
        Zookeeper::stop(self, i);
    }

    fn kill(&mut self, i: usize) {
        Zookeeper::kill(self, i);
    }

    fn launch(&mut self, i: usize) {
        Zookeeper::launch(self, i);
    }

    fn restart(&mut self, i: usize) {
        Zookeeper::restart(self, i);
    }

    fn wait_ready(&mut self) {
        Zookeeper::wait_ready(self);
    }

    fn data(&self) -> PathBuf {
        self.dir().join("n0/data")
    }
}

/// A figure of all members together.
fn figure(zookeeper: &Zookeeper, name: &str) -> u64 {
    (0..zookeeper.members()).map(|i| zookeeper.figure(i, name)).sum()
}

/// The node of the leader.
fn leader(hand: &mut Hand, election: &ElectionName) -> String {
    let first = hand.children(&format!("/{election}")).into_iter().next().expect("somebody leads");
    format!("/{election}/{first}")
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let url = format!("zookeeper://{}", self.0.running().hosts());
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
            let mut hand = running.servers().hand();
            let leader = leader(&mut hand, &election);
            hand.delete(&leader);
        })
    }

    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.0.by_hand(move |running| {
            let mut hand = running.servers().hand();
            let leader = leader(&mut hand, &election);
            hand.set(&leader, "somebody");
        })
    }

    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        let claim = claim.clone();
        self.0.by_hand(move |running| {
            let mut hand = running.servers().hand();
            let (dir, nonce) = (format!("/{}", claim.election), claim.nonce.to_string());
            let children = hand.children(&dir);
            let name = children.iter().find(|name| name.starts_with(&nonce)).expect("it waits");
            hand.delete(&format!("{dir}/{name}"));
        })
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.0.by_hand(move |running| {
            let mut hand = running.servers().hand();
            let leader = leader(&mut hand, &election);
            let owner = hand.get(&leader).expect("somebody leads").owner;
            let endpoint = running.servers().endpoints().remove(0);
            Hand::end_session(&endpoint, owner);
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
        self.0.stall(on, |zookeeper| {
            (0..zookeeper.members()).map(|i| zookeeper.stall_fsync(i, STALL)).collect()
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test zookeeper_wall_clock")
    }

    /// Nodes, sessions, watches and connections. Every member has the same nodes.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let zookeeper = running.servers();
            let nodes = zookeeper.figure(0, "zk_znode_count");
            let figures = figure(&zookeeper, "zk_watch_count") + figure(&zookeeper, "zk_global_sessions");
            running.connections() + nodes + figures
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| figure(&running.servers(), "zk_packets_received"))
    }
}
