//! How the peers change: one is added, one is removed, one at a time.

use std::thread;

use testkit::{Port, Proc, Signal};

use crate::peers::{CLUSTER, Peers, place};
use crate::scenarios::harness::{SOON, wait_leading};
use crate::scenarios::{JOB, TTL};

impl Peers {
    /// `peer add` or `peer remove`.
    fn change(&self, change: &[&str]) -> (i32, String, String) {
        let url = self.url();
        let on = ["--on", &url];
        self.world.output(&[&["peer"], change, &on].concat())
    }

    /// Makes the state of a peer that is to be added, and starts it.
    fn newcomer(&self, name: &str, port: &Port) -> Proc {
        let state = self.state(name);
        let state = state.to_str().expect("UTF-8");
        let init = ["peer", "init", "--join", "--state", state, "--name", name, "--cluster", CLUSTER];
        let (code, out, err) = self.world.output(&init);
        assert_eq!(code, 0, "{out}{err}");
        let own = format!("peers={name}=127.0.0.1:{},", port.number());
        let on = place(&self.url().replace("peers=", &own), name);
        let process = Proc::spawn(self.world.incumbent(&["peer", "run", "--on", &on, TTL]));
        process.wait_line(|line| line.starts_with("peer: "), SOON);
        process
    }
}

/// A peer is lost for good: another one takes its place, and then the loss of one more is borne.
#[test]
fn a_lost_peer_is_replaced_by_an_addition_and_then_a_removal() {
    let mut peers = Peers::start(&["a"], 2, "5s");
    let a = peers.world.run(&["--on", &peers.url_of("a"), "--id=a", TTL], JOB);
    let token = wait_leading(&a, 1);
    let on = peers.url();
    let (code, out, err) = peers.world.output(&["checkpoint", "set", "billing", "before", "--on", &on]);
    eprintln!("checkpoint: {code} {out}{err}");
    peers.voters.retain(|(name, _)| name != "v2");
    let port = Port::reserve();
    let v3 = peers.newcomer("v3", &port);
    let (code, out, err) = peers.change(&["add", &format!("v3=127.0.0.1:{}", port.number())]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.starts_with("list 2 is durable at majorities of itself and of the one before: "), "{out}");
    let (code, out, err) = peers.change(&["remove", "v2"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.starts_with("list 3 is durable"), "{out}");
    assert!(err.contains("waits "), "nothing was said of the wait for a ttl: {err}");
    // With v2 and v1 gone, two of three are left. Their URLs still say the first list.
    peers.voters.clear();
    let (code, out, err) = peers.world.output(&["status", "billing", "--on", &on, "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(&format!("\"token\":{token}")), "{out}");
    // A leader that comes later is elected by the two, with a greater token.
    a.signal(Signal::KILL);
    drop(a);
    let again = peers.world.run(&["--on", &peers.url_of("a"), "--id=a", TTL], JOB);
    assert!(wait_leading(&again, 1) > token);
    assert_eq!(v3.try_wait(), None, "{}", v3.transcript());
}

/// Of two changes that are asked for at one time one is made, and the other says that it was not.
#[test]
fn of_two_changes_at_one_time_one_is_made() {
    let peers = Peers::start(&[], 3, "5s");
    let ports = [Port::reserve(), Port::reserve()];
    let newcomers = [peers.newcomer("n1", &ports[0]), peers.newcomer("n2", &ports[1])];
    let outcomes: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = ["n1", "n2"]
            .iter()
            .zip(&ports)
            .map(|(name, port)| {
                let peers = &peers;
                scope.spawn(move || peers.change(&["add", &format!("{name}=127.0.0.1:{}", port.number())]))
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    let mut codes: Vec<_> = outcomes.iter().map(|(code, ..)| *code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{outcomes:?}");
    let (_, out, _) = outcomes.iter().find(|(code, ..)| *code == 1).expect("one");
    assert!(out.starts_with("another change was made at the same time"), "{out}");
    drop(newcomers);
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let peers = Peers::start(&[], 3, "5s");
    for (change, hint) in [
        (["add", "v1=127.0.0.1:1"], "v1 is a member already"),
        (["remove", "x"], "x is no member"),
        (["add", "x=127.0.0.1"], "is no HOST:PORT"),
    ] {
        let (code, out, err) = peers.change(&change);
        assert_eq!((code, out.as_str()), (125, ""), "{err}");
        assert!(err.contains(hint), "{err}");
    }
}
