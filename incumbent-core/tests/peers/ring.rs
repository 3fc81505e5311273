//! Chang and Roberts, "An Improved Algorithm for Decentralized Extrema-Finding in Circular Configurations of Processes",
//! 1979; the form that collects; the repair of the ring; and the rules of a majority.

use incumbent_core::peers::ring::{Circulation, Message, Number, Ring, RingConfig, Word};
use incumbent_core::peers::{Ballot, Claim, ClaimConfig, Config, Criterion, Protocol, Term};

use crate::net::{Net, Node, Said, config, id};

/// Later than any wait for an election.
const LATE: u64 = 10_000;
const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];
const BOTH: [Circulation; 2] = [Circulation::Greatest, Circulation::Collect];

fn members(names: &[&'static str]) -> Vec<(&'static str, u8)> {
    names.iter().map(|name| (*name, 1)).collect()
}

fn ring(peers: &Config, majority: bool, circulation: Circulation) -> RingConfig {
    let criterion = Criterion::GreatestId;
    RingConfig { claim: ClaimConfig { peers: peers.clone(), majority, criterion }, circulation }
}

fn net(majority: bool, circulation: Circulation) -> Net<Ring> {
    let configs = FIVE.map(|name| config(name, &members(&FIVE)));
    Net::new(configs.map(|peers| {
        let config = ring(&peers, majority, circulation);
        (peers, config)
    }))
}

/// Peer `name` of five.
fn node(name: &str, majority: bool) -> Node<Ring> {
    let peers = config(name, &members(&FIVE));
    Node::new(ring(&peers, majority, Circulation::Greatest), &peers, 0)
}

fn election(name: &str, hops: u32, ready: u32) -> Word {
    attempted(name, 1, hops, ready)
}

/// The seed of every peer here is 7.
fn attempted(name: &str, attempt: u64, hops: u32, ready: u32) -> Word {
    let attempt = (7 << 32) + attempt;
    let number = Number { id: id(name), data_version: 0 };
    Word::Election { number, attempt, surrendered: None, hops, ready }
}

fn pass(word: Word) -> Message {
    Message::Pass { hop: 1, word }
}

/// What it passes on, and to whom.
fn passed(said: Said<Message>) -> Vec<(String, Word)> {
    let words = said.sent.into_iter().filter_map(|(to, _, message)| match message {
        Message::Pass { word, .. } => Some((to.to_string(), word)),
        _ => None,
    });
    words.collect()
}

/// A greater number is passed on; instead of a smaller one a peer sends its own, once.
#[test]
fn a_smaller_number_is_swallowed() {
    let mut peer = node("c", false);
    assert_eq!(
        passed(peer.hears(1, "b", 0, pass(election("b", 1, 1)))),
        [("d".to_owned(), election("c", 1, 1))]
    );
    assert_eq!(passed(peer.hears(1, "b", 0, pass(election("a", 2, 1)))), []);
    let said = peer.hears(1, "b", 0, pass(election("e", 3, 1)));
    assert!(said.sent.contains(&(id("b"), Term(0), Message::Received { hop: 1 })));
    // Without a majority nobody counts.
    assert!(matches!(&passed(said)[..], [(to, Word::Election { hops: 4, .. })] if to == "d"));
    // Having passed a greater one on, it does not start anew at once.
    let mut peer = node("c", false);
    peer.hears(1, "b", 0, pass(election("e", 3, 1)));
    assert_eq!(passed(peer.hears(1, "b", 0, pass(election("a", 1, 1)))), []);
}

/// A number that comes back is the greatest: its owner is elected and says so, around the ring.
#[test]
fn a_number_that_comes_back_is_elected() {
    let mut peer = node("c", false);
    assert_eq!(passed(peer.wakes(LATE)), [("d".to_owned(), election("c", 1, 1))]);
    let said = peer.hears(LATE + 1, "b", 0, pass(election("c", 5, 1)));
    assert_eq!(said.elected, [Term(1)]);
    let elected = passed(said);
    assert!(matches!(&elected[..], [(to, Word::Elected { epoch: Term(1), hops: 1, .. })] if to == "d"));
    // A doubled one changes nothing.
    assert_eq!(passed(peer.hears(LATE + 1, "b", 0, pass(election("c", 5, 1)))), []);
}

/// In an election each peer speaks only to its neighbour, and back to confirm.
#[test]
fn a_peer_speaks_to_its_neighbour() {
    let mut net = net(false, Circulation::Greatest);
    let starter = id("b");
    net.now = net.nodes[&starter].due();
    net.wake(&starter);
    net.deliver();
    assert_eq!(net.leaders(), [("e", 1)]);
    let place =
        |peer: &incumbent_core::CandidateId| FIVE.iter().position(|name| *name == peer.as_str()).unwrap();
    for (from, to) in &net.pairs {
        let around = (place(to) + 5 - place(from)) % 5;
        // And each follower acknowledges the coordinator.
        assert!(around == 1 || around == 4 || to.as_str() == "e", "{from} to {to}");
    }
}

#[test]
fn the_greatest_leads_and_is_followed_by_the_next_one() {
    for circulation in BOTH {
        for majority in [false, true] {
            let mut net = net(majority, circulation);
            net.run(5_000);
            assert_eq!(net.leaders(), [("e", 1)], "{circulation:?} {majority}");
            assert!(FIVE.iter().all(|name| net.nodes[&id(name)].peer.leader() == Some(&id("e"))));
            net.kill("e");
            net.run(5_000);
            assert!(
                matches!(net.leaders()[..], [("d", 2..)]),
                "{circulation:?} {majority}: {:?}",
                net.leaders()
            );
            net.lost.clear();
            net.run(60_000);
            assert_eq!((net.leaders().len(), net.lost.len()), (1, 0));
        }
    }
}

/// A neighbour that does not confirm is passed by, however many there are side by side.
#[test]
fn the_ring_is_repaired_past_dead_neighbours() {
    for circulation in BOTH {
        for (dead, leader) in [(&["c", "d"][..], "e"), (&["d", "e"], "c"), (&["a", "b", "c", "d"], "e")] {
            let mut net = net(false, circulation);
            for name in dead {
                net.kill(name);
            }
            net.run(10_000);
            assert!(matches!(net.leaders()[..], [(name, _)] if name == leader), "{circulation:?} {dead:?}");
        }
    }
    let mut peer = node("c", false);
    peer.wakes(LATE);
    assert_eq!(passed(peer.wakes(LATE + 99)), []);
    assert_eq!(passed(peer.wakes(LATE + 100)), [("e".to_owned(), election("c", 1, 1))]);
    // The dead one is passed by from now on, until it is heard.
    assert!(passed(peer.hears(LATE + 101, "b", 0, pass(election("e", 1, 1))))[0].0 == "e");
    peer.hears(LATE + 102, "d", 0, Message::Received { hop: 1 });
    assert!(passed(peer.hears(LATE + 103, "b", 0, pass(attempted("e", 2, 1, 1))))[0].0 == "d");
    // A word that comes twice, since its hop was repeated, is passed on once.
    assert_eq!(passed(peer.hears(LATE + 104, "b", 0, pass(attempted("e", 2, 1, 1)))), []);
}

/// Of what overtakes each other on a slow network, each attempt is passed on once, and none that came after a later one.
#[test]
fn an_attempt_is_passed_on_once() {
    let mut peer = node("c", false);
    let mut passes = |life: u64, attempt| {
        let number = Number { id: id("e"), data_version: 0 };
        let attempt = (life << 32) + attempt;
        let word = Word::Election { number, attempt, surrendered: None, hops: 1, ready: 1 };
        !passed(peer.hears(1, "b", 0, pass(word))).is_empty()
    };
    for (life, attempt, new) in [
        (7, 1, true),
        (7, 2, true),
        (7, 1, false),
        (7, 2, false),
        // It was started again; what it said before may still come.
        (3, 1, true),
        (7, 2, false),
        (7, 3, true),
        (3, 1, false),
        (3, 2, true),
    ] {
        assert_eq!(passes(life, attempt), new, "{life} {attempt}");
    }
}

/// A number whose owner has died does not go around for ever.
#[test]
fn a_number_without_an_owner_dies() {
    let mut peer = node("c", false);
    assert_eq!(passed(peer.hears(1, "b", 0, pass(attempted("e", 1, 4, 1)))).len(), 1);
    assert_eq!(passed(peer.hears(1, "b", 0, pass(attempted("e", 2, 5, 1)))).len(), 0);
}

/// Whoever sees a coordinator alive holds no election for another.
#[test]
fn a_peer_that_hears_a_coordinator_passes_nothing_on() {
    let mut peer = node("c", false);
    let claim = Claim { round: 2, established: true, ballot: Ballot { data_version: 0, surrendered: None } };
    peer.hears(LATE, "d", 3, Message::Heartbeat(claim));
    assert_eq!(passed(peer.hears(LATE + 900, "b", 3, pass(election("e", 1, 1)))), []);
    assert_eq!(passed(peer.hears(LATE + 1_001, "b", 3, pass(attempted("e", 2, 1, 1)))).len(), 1);
}

/// Where the network falls apart each part has its coordinator, unless a majority decides; healed, there is one.
#[test]
fn a_partition_has_two_leaders_without_a_majority() {
    for circulation in BOTH {
        for (majority, leaders) in [(false, 2), (true, 1)] {
            let mut net = net(majority, circulation);
            net.run(5_000);
            net.split(&[&["a", "b", "c"], &["d", "e"]]);
            net.run(10_000);
            assert_eq!(net.leaders().len(), leaders, "{:?}", net.leaders());
            assert_eq!(net.leaders()[0].0, "c");
            net.split(&[]);
            net.run(10_000);
            assert_eq!(net.leaders().len(), 1, "{:?}", net.leaders());
            net.lost.clear();
            net.run(60_000);
            assert_eq!((net.leaders().len(), net.lost.len()), (1, 0));
        }
    }
}

/// With a majority a number counts who would acknowledge its owner, and too few are not enough.
#[test]
fn too_few_that_would_acknowledge_elect_nobody() {
    for (ready, epoch) in [(2, 0), (3, 1)] {
        let mut peer = node("c", true);
        peer.wakes(LATE);
        peer.hears(LATE + 1, "b", 0, pass(election("c", 5, ready)));
        assert_eq!(peer.peer.term(), Term(epoch));
    }
    // Who is bound passes it on all the same.
    let mut peer = node("c", true);
    assert!(matches!(
        passed(peer.hears(1, "b", 0, pass(election("e", 1, 1))))[0].1,
        Word::Election { ready: 1, hops: 2, .. }
    ));
    let mut peer = node("c", true);
    assert!(matches!(
        passed(peer.hears(LATE, "b", 0, pass(election("e", 1, 1))))[0].1,
        Word::Election { ready: 2, hops: 2, .. }
    ));
}

/// A coordinator gives up for another one without a wait.
#[test]
fn a_coordinator_hands_over() {
    for majority in [false, true] {
        let mut net = net(majority, Circulation::Greatest);
        net.run(5_000);
        let now = net.now;
        net.node("e").peer.surrender(now, Some(&id("b"))).unwrap();
        net.run(1);
        assert_eq!(net.leaders(), [("b", 2)]);
        net.run(60_000);
        assert_eq!(net.leaders(), [("b", 2)], "a greater one that comes back does not take over on a ring");
    }
}
