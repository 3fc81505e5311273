//! The command without a store: what holds on every store, and three machines' worth of processes that elect among themselves.

mod peers;
#[expect(dead_code, reason = "peers keep no record that somebody could touch")]
mod scenarios;

use std::sync::Mutex;

use testkit::{Proc, Signal, wait_until};

use peers::Peers;
use scenarios::harness::{SOON, code, wait_leading, wait_standby};
use scenarios::{JOB, Store, TTL, terms_of};

/// Peers for up to four candidates, who with the voters alone have a majority; and those of the rooms.
struct Raft {
    peers: Peers,
    rooms: Mutex<Vec<Raft>>,
}

impl Store for Raft {
    // It is the same at all peers, and a peer that starts is silent for one.
    const LONG_TTL: &str = TTL;
    const LISTS_CANDIDATES: bool = true;
    const BAD_URLS: &[(&str, &str)] = &[
        ("raft://a", "needs peers="),
        ("raft://a?peers=a=127.0.0.1:1", "need secret_file="),
        ("raft://a?peers=a=127.0.0.1:1&secret_file=/no/such/file", "/no/such/file cannot be read"),
        ("raft://a?peers=a=192.0.2.1:1&tls=off", "speak TLS only"),
        ("raft://b?peers=a=127.0.0.1:1&secret_file=/etc/passwd", "b is not among peers="),
        ("raft://a?peers=a=127.0.0.1:1&secret_file=/etc/passwd", "needs state="),
        ("raft://a?peers=a=127.0.0.1:1&secret_file=/etc/passwd&state=/no/such/dir", "incumbent peer init"),
        ("raft://?peers=a=127.0.0.1:1&secret_file=/etc/passwd", "must be one of the peers"),
        ("raft://a?peers=a=127.0.0.1:1&stat=x", "did you mean state?"),
    ];

    fn start() -> Raft {
        Raft::start_for("5s")
    }

    fn start_for(ttl: &'static str) -> Raft {
        Raft { peers: Peers::start(&["a", "b", "c", "d"], 5, ttl), rooms: Mutex::default() }
    }

    fn secured(_: &Raft) -> (Option<Raft>, String, &'static str) {
        let raft = Raft::start();
        let on = raft.peers.url_of("a");
        (Some(raft), on, "0123456789abcdef")
    }

    fn url(&self) -> String {
        self.peers.url()
    }

    fn place(on: &str, id: &str) -> String {
        peers::place(on, id)
    }

    fn room(&self, _: &str) -> String {
        let room = Raft::start();
        let url = room.url();
        self.rooms.lock().expect("unbroken").push(room);
        url
    }

    fn pause(&mut self) {
        self.peers.signal_voters(Signal::STOP);
    }

    fn resume(&mut self) {
        self.peers.signal_voters(Signal::CONT);
    }

    fn stop(&mut self) {
        self.peers.stop_voters();
    }

    fn restart(&mut self) {
        self.peers.restart_voters();
    }
}

scenarios::run_on!(Raft);

fn candidate(peers: &Peers, name: &str, ttl: &str) -> Proc {
    peers.world.run(&["--on", &peers.url_of(name), &format!("--id={name}"), &format!("--ttl={ttl}")], JOB)
}

/// One is killed and comes back, the next one is told to go; who only asks is told of it all.
#[test]
fn three_candidates_without_a_store_elect_among_themselves() {
    let peers = Peers::start(&["a", "b", "c"], 0, "2s");
    let mut all: Vec<_> = ["a", "b", "c"].map(|name| (name, candidate(&peers, name, "2s"))).into();
    let (killed, leader) = take_leader(&mut all);
    let first = wait_leading(&leader, 1);
    all.iter().for_each(|(_, other)| wait_standby(other));
    let status = || {
        let (code, out, err) = peers.world.output(&["status", "billing", "--on", &peers.url(), "--json"]);
        assert_eq!(code, 0, "{out}{err}");
        serde_json::from_str::<serde_json::Value>(&out).expect("JSON")
    };
    let answer = status();
    assert_eq!((&answer["leader"]["id"], &answer["leader"]["token"]), (&killed.into(), &first.into()));
    assert_eq!(answer["candidates"].as_array().map(Vec::len), Some(3), "{answer}");
    let observer = Proc::spawn(peers.world.incumbent(&["observe", "billing", "--on", &peers.url()]));
    observer.wait_line(|line| line.starts_with(&format!("billing is led by {killed} ")), SOON);
    leader.signal(Signal::KILL);
    let (name, leader) = take_leader(&mut all);
    let second = wait_leading(&leader, 1);
    assert!(second > first, "{second} after {first}");
    observer.wait_line(|line| line.starts_with(&format!("billing is led by {name} ")), SOON);
    come_back(&peers, &mut all, killed);
    leader.signal(Signal::TERM);
    assert_eq!(code(&leader), 128 + 15);
    let (name, leader) = take_leader(&mut all);
    let third = wait_leading(&leader, 1);
    assert!(third > second, "{third} after {second}");
    observer.wait_line(|line| line.starts_with(&format!("billing is led by {name} ")), SOON);
}

/// The one that leads, once one does.
fn take_leader(all: &mut Vec<(&'static str, Proc)>) -> (&'static str, Proc) {
    assert!(wait_until(SOON, || all.iter().any(|(_, process)| terms_of(process) > 0)), "nobody leads");
    let place = all.iter().position(|(_, process)| terms_of(process) > 0).expect("one leads");
    all.remove(place)
}

/// It starts again on its state, and stands by.
fn come_back(peers: &Peers, all: &mut Vec<(&'static str, Proc)>, name: &'static str) {
    let process = candidate(peers, name, "2s");
    wait_standby(&process);
    all.push((name, process));
}
