//! The command on Raft among peers: what holds on every store, and what can be wrong with peers.

#[path = "peers/changes.rs"]
mod changes;
#[path = "peers/clocks.rs"]
mod clocks;
#[path = "peers/faults.rs"]
mod faults;
#[expect(dead_code, reason = "another test uses the rest of it")]
mod peers;
#[expect(dead_code, reason = "peers keep no record that somebody could touch")]
mod scenarios;

use std::sync::Mutex;

use testkit::Signal;

use peers::Peers;
use scenarios::{Store, TTL};

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
