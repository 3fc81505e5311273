//! How the peers change: one is added, one is removed, one at a time.

use std::thread;
use std::time::Duration;

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

/// Writes a checkpoint, and then leads on.
const KEEPER: &str = "echo before | \"$INCUMBENT\" checkpoint put && echo \"leading $INCUMBENT_TOKEN\"; \
                      while :; do sleep 0.1; done";

/// A peer is lost for good: another one takes its place, and then the loss of one more is borne. What the peers keep is kept,
/// although in the end none of those is asked that it was first written to.
#[test]
fn a_lost_peer_is_replaced_by_an_addition_and_then_a_removal() {
    let mut peers = Peers::start(&["a"], 2, "5s");
    peers.voter_lines("v1").0.signal(Signal::STOP);
    let a = peers.world.run(&["--on", &peers.url_of("a"), "--id=a", TTL], KEEPER);
    let token = wait_leading(&a, 1);
    peers.voter_lines("v1").0.signal(Signal::CONT);
    let on = peers.url();
    let checkpoint = || peers.world.output(&["checkpoint", "get", "billing", "--on", &on]);
    assert_eq!(checkpoint().1, "before\n");
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
    // It was written at a and v2; v1 and v3 have it from the changes.
    a.signal(Signal::KILL);
    drop(a);
    let (code, out, err) = peers.world.output(&["checkpoint", "get", "billing", "--on", &on]);
    assert_eq!((code, out.as_str()), (0, "before\n"), "{err}");
    // With v2 and v1 gone, two of three are left, and elect with a greater token. Their URLs still say the first list.
    peers.voters.clear();
    let again = peers.world.run(&["--on", &peers.url_of("a"), "--id=a", TTL], JOB);
    let second = wait_leading(&again, 1);
    assert!(second > token);
    let (code, out, err) = peers.world.output(&["status", "billing", "--on", &on, "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(&format!("\"token\":{second}")), "{out}");
    assert_eq!(v3.try_wait(), None, "{}", v3.transcript());
}

/// Two peers are down while the list changes twice. The one that is still in it takes the new list before it takes part; the
/// other one is told that it is out.
#[test]
fn who_slept_through_two_changes_catches_up_or_is_told_that_it_is_out() {
    let mut peers = Peers::start(&["a"], 4, "5s");
    let a = peers.world.run(&["--on", &peers.url_of("a"), "--id=a", TTL], JOB);
    let token = wait_leading(&a, 1);
    peers.voters.retain(|(name, _)| name != "v1" && name != "v4");
    for (name, version) in [("v4", 2), ("v3", 3)] {
        let (code, out, err) = peers.change(&["remove", name]);
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.starts_with(&format!("list {version} is durable")), "{out}");
    }
    let start = |name| Proc::spawn(peers.voter(name));
    let (v1, v4) = (start("v1"), start("v4"));
    let told = format!(
        "list 3 of the peers is in force, and the URL says another one: write peers=a=127.0.0.1:{}",
        peers.port("a")
    );
    v1.wait_line(|line| line.contains(&told), SOON);
    v4.wait_line(|line| line.contains("refuses this peer: v4 is not in list 3 of "), SOON);
    assert!(v4.lines().iter().any(|line| line.text.contains("add it with incumbent peer add")));
    // Of list 3 it is the second of three that are needed: a leads on, without v2.
    peers.voters.clear();
    thread::sleep(Duration::from_secs(8));
    let (code, out, err) = peers.world.output(&["status", "billing", "--on", &peers.url(), "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(&format!("\"token\":{token}")), "{out}{}", a.transcript());
    assert_eq!((v1.try_wait(), v4.try_wait()), (None, None));
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
