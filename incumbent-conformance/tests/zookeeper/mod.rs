//! ZooKeeper servers under the suite: real ones, reached through relays, with the faults that operators and machines make.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use testkit::zookeeper::{Hand, Version};
use testkit::{Direction, Relay, Stall, Zookeeper};

/// Longer than any case stalls a disk.
const STALL: Duration = Duration::from_secs(60);

/// Servers that start when they are first needed.
pub(crate) struct Servers {
    version: Version,
    members: usize,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    zookeeper: Mutex<Zookeeper>,
    relays: Vec<Relay>,
    stalls: Mutex<Vec<Stall>>,
}

impl Servers {
    pub(crate) fn new(version: Version, members: usize) -> Servers {
        Servers { version, members, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| {
            let options = Zookeeper::ensemble(self.version, self.members);
            let zookeeper = options.tick_ms(200).start().expect("ZooKeeper starts");
            let relays = zookeeper.endpoints().iter().map(|endpoint| Relay::to(endpoint)).collect();
            Running { zookeeper: Mutex::new(zookeeper), relays, stalls: Mutex::default() }
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
    fn zookeeper(&self) -> MutexGuard<'_, Zookeeper> {
        self.zookeeper.lock().expect("an unbroken lock")
    }

    fn hand(&self) -> Hand {
        self.zookeeper().hand()
    }

    fn figure(&self, name: &str) -> u64 {
        let zookeeper = self.zookeeper();
        (0..zookeeper.members()).map(|i| zookeeper.figure(i, name)).sum()
    }

    fn data(&self) -> PathBuf {
        self.zookeeper().dir().join("n0/data")
    }
}

/// The node of the leader.
fn leader(hand: &mut Hand, election: &ElectionName) -> String {
    let first = hand.children(&format!("/{election}")).into_iter().next().expect("somebody leads");
    format!("/{election}/{first}")
}

impl Harness for Servers {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let relays = &running.get().expect("it has started").relays;
            let hosts: Vec<String> = relays.iter().map(Relay::addr).collect();
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&format!("zookeeper://{}", hosts.join(",")), &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let mut hand = running.hand();
            let leader = leader(&mut hand, &election);
            hand.delete(&leader);
        })
    }

    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let mut hand = running.hand();
            let leader = leader(&mut hand, &election);
            hand.set(&leader, "somebody");
        })
    }

    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        let claim = claim.clone();
        self.by_hand(move |running| {
            let mut hand = running.hand();
            let (dir, nonce) = (format!("/{}", claim.election), claim.nonce.to_string());
            let children = hand.children(&dir);
            let name = children.iter().find(|name| name.starts_with(&nonce)).expect("it waits");
            hand.delete(&format!("{dir}/{name}"));
        })
    }

    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let election = election.clone();
        self.by_hand(move |running| {
            let mut hand = running.hand();
            let leader = leader(&mut hand, &election);
            let owner = hand.get(&leader).expect("somebody leads").owner;
            let endpoint = running.zookeeper().endpoints().remove(0);
            Hand::end_session(&endpoint, owner);
        })
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| {
            let mut zookeeper = running.zookeeper();
            let members = zookeeper.members();
            (0..members).for_each(|i| zookeeper.kill(i));
            (0..members).for_each(|i| zookeeper.launch(i));
            zookeeper.wait_ready();
        })
    }

    fn fail_over(&self) -> Hook<'_> {
        if self.members == 1 {
            return Err("one member has nobody to fail over to");
        }
        self.by_hand(|running| {
            let mut zookeeper = running.zookeeper();
            let leader = zookeeper.leader_index();
            zookeeper.kill(leader);
            assert_ne!(zookeeper.leader_index(), leader);
            zookeeper.restart(leader);
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.members > 1 {
            return Err("an old copy on one member of three is brought up to date by the others");
        }
        self.by_hand(move |running| {
            let data = running.data();
            let copy = data.with_extension("copy");
            let mut zookeeper = running.zookeeper();
            zookeeper.stop(0);
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            zookeeper.restart(0);
        })
    }

    /// Of every member, so that no other one takes over.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut stalls = running.stalls.lock().expect("an unbroken lock");
            stalls.clear();
            if on {
                let zookeeper = running.zookeeper();
                stalls.extend((0..zookeeper.members()).map(|i| zookeeper.stall_fsync(i, STALL)));
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
        Err("done in a process with a wall clock of its own, by the test zookeeper_wall_clock")
    }

    /// Nodes, sessions, watches and connections. Every member has the same nodes.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let connections: usize = running.relays.iter().map(Relay::open).sum();
            let nodes = running.zookeeper().figure(0, "zk_znode_count");
            let figures = running.figure("zk_watch_count") + running.figure("zk_global_sessions");
            connections as u64 + nodes + figures
        })
    }

    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| running.figure("zk_packets_received"))
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
