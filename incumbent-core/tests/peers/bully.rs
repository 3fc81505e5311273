//! Garcia-Molina, "Elections in a Distributed Computing System", 1982: the Bully algorithm; and the rules of a majority.

use incumbent_core::ErrorKind;
use incumbent_core::peers::bully::{Bully, Message};
use incumbent_core::peers::{
    Acknowledgement, Ballot, Claim, ClaimConfig, Config, Criterion, Loss, Protocol, Refusal, Term,
};

use crate::net::{Net, Node, Said, config, id, ms};

/// Later than any wait for an election.
const LATE: u64 = 10_000;
const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];
/// With a majority a peer may acknowledge a claim from then on, if it started at 0.
const FREE: u64 = 1_001;

fn members(names: &[&'static str]) -> Vec<(&'static str, u8)> {
    names.iter().map(|name| (*name, 1)).collect()
}

fn bully(peers: &Config, majority: bool) -> ClaimConfig {
    ClaimConfig { peers: peers.clone(), majority, criterion: Criterion::GreatestId }
}

fn net(names: &[&'static str], majority: bool) -> Net<Bully> {
    let configs = names.iter().map(|name| config(name, &members(names)));
    Net::new(configs.map(|peers| {
        let config = bully(&peers, majority);
        (peers, config)
    }))
}

/// Peer `name` of five.
fn node(name: &str, majority: bool) -> Node<Bully> {
    let peers = config(name, &members(&FIVE));
    Node::new(bully(&peers, majority), &peers, 0)
}

fn ballot(surrendered: Option<u64>) -> Ballot {
    Ballot { data_version: 0, surrendered: surrendered.map(Term) }
}

/// A claim that nobody has acknowledged yet.
fn claim(surrendered: Option<u64>) -> Message {
    Message::Coordinator(Claim { round: 1, established: false, ballot: ballot(surrendered) })
}

fn heartbeat(round: u64) -> Message {
    Message::Coordinator(Claim { round, established: true, ballot: ballot(None) })
}

/// Whether it has acknowledged a coordinator of `epoch`.
fn acknowledges(said: &Said<Message>, epoch: u64) -> bool {
    said.sent.iter().any(|(_, term, message)| {
        let Message::CoordinatorAnswer(Acknowledgement { asked, .. }) = message else { return false };
        (*term, *asked) == (Term(epoch), Term(epoch))
    })
}

// ---- the paper ----

/// A peer that misses the coordinator asks all greater peers, and no other; greater ones that it asks answer, and hold an
/// election themselves.
#[test]
fn a_peer_asks_the_greater_ones() {
    let mut peer = node("c", false);
    let said = peer.wakes(LATE);
    let asked: Vec<_> = said.sent.iter().map(|(to, _, _)| to.as_str()).collect();
    assert_eq!(asked, ["d", "e"]);
    let question = Message::Election { attempt: 9, ballot: ballot(None) };
    let mut peer = node("c", false);
    let said = peer.hears(1, "a", 0, question.clone());
    let answer = Message::Answer { attempt: 9, greater: true, ready: false };
    assert_eq!(said.sent[0], (id("a"), Term(0), answer));
    assert!(matches!(said.sent[1].2, Message::Election { .. }));
    // A smaller one does not even answer.
    assert!(peer.hears(1, "e", 0, question).sent.is_empty());
}

/// Whoever gets an answer waits for the coordinator, and begins anew if none comes; whoever gets none is the coordinator.
#[test]
fn a_peer_leads_when_no_greater_one_answers() {
    let mut peer = node("c", false);
    peer.wakes(LATE);
    let said = peer.wakes(LATE + 249);
    assert!(said.sent.is_empty() && said.elected.is_empty());
    let said = peer.wakes(LATE + 250);
    assert_eq!(said.elected, [Term(1)]);
    let told: Vec<_> = said.sent.iter().map(|(to, _, message)| (to.as_str(), message.clone())).collect();
    assert_eq!(told, ["a", "b", "d", "e"].map(|peer| (peer, heartbeat(1))));

    let mut peer = node("c", false);
    peer.wakes(LATE);
    peer.hears(LATE + 1, "d", 0, Message::Answer { attempt: 1, greater: true, ready: false });
    assert!(peer.wakes(LATE + 400).sent.is_empty());
    let said = peer.wakes(LATE + 1_100);
    assert!(matches!(said.sent[0].2, Message::Election { attempt: 2, .. }));
    // The late answer to an earlier question is none.
    peer.hears(LATE + 1_101, "e", 0, Message::Answer { attempt: 1, greater: true, ready: false });
    assert_eq!(peer.wakes(LATE + 1_400).elected, [Term(1)]);
}

#[test]
fn the_greatest_leads_and_is_followed_by_the_next_one() {
    for majority in [false, true] {
        let mut net = net(&FIVE, majority);
        net.run(5_000);
        assert_eq!(net.leaders(), [("e", 1)]);
        assert!(FIVE.iter().all(|name| net.nodes[&id(name)].peer.leader() == Some(&id("e"))));
        net.kill("e");
        net.run(5_000);
        let leaders = net.leaders();
        assert!(matches!(leaders[..], [("d", 2..)]), "{majority}: {leaders:?}");
    }
}

/// A greater peer that comes back takes over: by force, or with a majority by asking the leader to surrender.
#[test]
fn a_greater_peer_that_comes_back_takes_over() {
    for majority in [false, true] {
        let mut net = net(&FIVE, majority);
        net.kill("e");
        net.run(5_000);
        assert!(matches!(net.leaders()[..], [("d", _)]));
        let peers = config("e", &members(&FIVE));
        net.revive("e", bully(&peers, majority));
        net.lost.clear();
        net.run(5_000);
        assert!(matches!(net.leaders()[..], [("e", 2..)]));
        let reason = if majority { Loss::Surrendered } else { Loss::Superseded };
        assert_eq!(net.lost, [(id("d"), reason)]);
        // It is there to stay.
        let leaders: Vec<_> =
            net.leaders().into_iter().map(|(name, epoch)| (name.to_owned(), epoch)).collect();
        net.run(60_000);
        assert_eq!(
            net.leaders(),
            leaders.iter().map(|(name, epoch)| (name.as_str(), *epoch)).collect::<Vec<_>>()
        );
    }
}

/// Where the network falls apart each part has its coordinator, unless a majority decides; healed, there is one.
#[test]
fn a_partition_has_two_leaders_without_a_majority() {
    for (majority, leaders) in [(false, 2), (true, 1)] {
        let mut net = net(&FIVE, majority);
        net.run(5_000);
        net.split(&[&["a", "b", "c"], &["d", "e"]]);
        net.run(5_000);
        assert_eq!(net.leaders().len(), leaders, "{:?}", net.leaders());
        assert_eq!(net.leaders()[0].0, "c");
        net.split(&[]);
        net.run(5_000);
        assert!(matches!(net.leaders()[..], [("e", 2..)]), "{:?}", net.leaders());
        net.lost.clear();
        net.run(60_000);
        assert_eq!((net.leaders().len(), net.lost.len()), (1, 0));
    }
}

/// Of two coordinators that meet, the smaller one gives way, whose epoch ever is later.
#[test]
fn of_two_coordinators_the_smaller_gives_way() {
    for (own, other) in [(1, 1), (1, 4), (4, 1)] {
        let mut peer = node("c", false);
        (peer.disk.term, peer.disk.voted_for) = (Term(own - 1), None);
        let peers = config("c", &members(&FIVE));
        let mut peer = Node::<Bully>::start(bully(&peers, false), peer.disk, 0);
        peer.wakes(LATE);
        assert_eq!(peer.wakes(LATE + 250).elected, [Term(own)]);
        // A smaller one is not followed.
        let said = peer.hears(LATE + 251, "b", other, heartbeat(1));
        assert!(!acknowledges(&said, other));
        if other <= own {
            assert!(peer.peer.leadership().is_some());
        } else {
            // It claims an epoch that is later still.
            let elected: Vec<_> =
                (252..1_000).step_by(10).flat_map(|at| peer.wakes(LATE + at).elected).collect();
            assert_eq!((said.lost, elected), (vec![Loss::Superseded], vec![Term(other + 1)]));
        }
        let said = peer.hears(LATE + 1_000, "e", other + 1, heartbeat(1));
        if other + 1 >= peer.disk.term.0 {
            assert!(acknowledges(&said, other + 1) && peer.peer.leadership().is_none());
        } else {
            // A greater one whose epoch is older learns the later one, and will be back with one of its own.
            assert_eq!(said.sent[0].1, peer.disk.term);
        }
    }
}

/// Without a majority there is no fencing token.
#[test]
fn only_a_majority_gives_a_token() {
    for majority in [false, true] {
        let mut net = net(&FIVE, majority);
        net.run(5_000);
        let trust = net.node("e").peer.leadership().unwrap();
        assert_eq!(trust.token, majority.then(|| trust.term.token()));
    }
}

// ---- a majority ----

/// One coordinator in an epoch, and a restart does not make it forget.
#[test]
fn one_coordinator_is_acknowledged_in_an_epoch() {
    let mut peer = node("a", true);
    assert!(acknowledges(&peer.hears(LATE, "b", 5, claim(None)), 5));
    assert!(acknowledges(&peer.hears(LATE, "b", 5, claim(None)), 5), "the same one again");
    for late in [LATE, LATE * 2] {
        assert!(!acknowledges(&peer.hears(late, "e", 5, claim(None)), 5));
        assert!(!acknowledges(&peer.hears(late, "e", 5, claim(Some(5))), 5));
    }
    let peers = config("a", &members(&FIVE));
    let mut peer = Node::<Bully>::start(bully(&peers, true), peer.disk, LATE * 3);
    assert!(!acknowledges(&peer.hears(LATE * 4, "e", 5, claim(Some(5))), 5));
    assert!(acknowledges(&peer.hears(LATE * 4, "e", 6, claim(None)), 6));
}

/// Whoever has acknowledged a coordinator, or its heartbeat, acknowledges no claim to a later epoch for one ttl by its own
/// clock and its drift, unless that coordinator has surrendered.
#[test]
fn an_acknowledgement_is_a_promise() {
    let mut peer = node("a", true);
    assert!(acknowledges(&peer.hears(LATE, "b", 5, claim(None)), 5));
    assert!(!acknowledges(&peer.hears(LATE + 1_000, "e", 6, claim(None)), 6));
    assert_eq!(peer.peer.term(), Term(5), "it does not even follow the epoch");
    assert!(acknowledges(&peer.hears(LATE + 1_000, "b", 5, heartbeat(9)), 5));
    assert!(!acknowledges(&peer.hears(LATE + 2_000, "e", 6, claim(Some(4))), 6));
    assert!(acknowledges(&peer.hears(LATE + 2_001, "e", 6, claim(None)), 6));
    // Surrender ends it at once.
    assert!(acknowledges(&peer.hears(LATE + 2_002, "d", 7, claim(Some(6))), 7));
}

/// Restart included.
#[test]
fn a_peer_that_starts_is_silent() {
    let mut peer = node("a", true);
    assert!(!acknowledges(&peer.hears(FREE - 1, "b", 1, claim(None)), 1));
    assert!(acknowledges(&peer.hears(FREE, "b", 1, claim(None)), 1));
    let peers = config("a", &members(&FIVE));
    let mut peer = Node::<Bully>::start(bully(&peers, true), peer.disk, LATE);
    assert!(!acknowledges(&peer.hears(LATE + 1_000, "e", 2, claim(None)), 2));
    // A coordinator that a majority has acknowledged asks for no vote.
    assert!(acknowledges(&peer.hears(LATE + 1_000, "b", 1, heartbeat(7)), 1));
    assert!(acknowledges(&peer.hears(LATE + 1_000, "d", 2, heartbeat(7)), 2));
}

/// It claims an epoch only if a majority would acknowledge it, so that a peer that is cut off disturbs nobody later.
#[test]
fn a_peer_that_is_cut_off_does_not_raise_its_epoch() {
    let mut net = net(&FIVE, true);
    net.run(5_000);
    net.split(&[&["a", "b", "c", "d"], &["e"]]);
    net.run(60_000);
    assert_eq!((net.leaders(), net.nodes[&id("e")].peer.term()), (vec![("d", 2)], Term(1)));
    net.split(&[&["a", "e"], &["b", "c", "d"]]);
    net.run(60_000);
    assert_eq!((net.leaders(), net.nodes[&id("e")].peer.term()), (vec![("d", 2)], Term(2)));
    // Back again, a smaller peer deposes nobody.
    net.split(&[]);
    net.run(5_000);
    assert_eq!(net.leaders(), [("e", 3)]);
    net.split(&[&["a"], &["b", "c", "d", "e"]]);
    net.run(60_000);
    net.split(&[]);
    net.run(5_000);
    assert_eq!(net.leaders(), [("e", 3)]);
}

/// A leader is asked for its place only by a peer that a majority hears.
#[test]
fn a_greater_peer_that_few_hear_does_not_take_over() {
    let answer = Message::Answer { attempt: 1, greater: false, ready: false };
    let asking = || {
        let mut peer = node("e", true);
        assert_eq!(peer.hears(LATE, "d", 5, heartbeat(1)).sent.len(), 1, "its new epoch is not durable yet");
        let said = peer.hears(LATE + 100, "d", 5, heartbeat(2));
        assert_eq!(said.sent.len(), 5, "an acknowledgement and four questions");
        peer
    };
    let mut peer = asking();
    peer.hears(LATE + 101, "d", 5, answer.clone());
    for late in [LATE + 500, LATE + 600] {
        assert_eq!(peer.hears(late, "d", 5, heartbeat(3)).sent.len(), 1, "an acknowledgement only");
    }
    let mut peer = asking();
    peer.hears(LATE + 101, "d", 5, answer.clone());
    let said = peer.hears(LATE + 101, "a", 5, answer);
    assert_eq!(said.sent, [(id("d"), Term(5), Message::Yield { data_version: 0 })]);
    assert!(peer.hears(LATE + 102, "d", 5, Message::TakeOver { named: true }).sent.iter().all(
        |(_, term, message)| {
            let Message::Coordinator(claim) = message else { return false };
            (*term, claim.ballot.surrendered, claim.established) == (Term(6), Some(Term(5)), false)
        }
    ));
}

/// A leader yields to greater peers only, and is invalid before it says so.
#[test]
fn a_leader_yields_to_greater_peers_only() {
    let mut net = net(&["a", "b", "c"], true);
    net.kill("c");
    net.run(5_000);
    let term = net.node("b").peer.term().0;
    let now = u64::try_from(net.now.since(ms(0)).as_millis()).unwrap();
    let leader = net.node("b");
    assert!(leader.hears(now, "a", term, Message::Yield { data_version: 0 }).lost.is_empty());
    let said = leader.hears(now, "c", term, Message::Yield { data_version: 0 });
    assert_eq!(
        (said.lost, said.sent),
        (vec![Loss::Surrendered], vec![(id("c"), Term(term), Message::TakeOver { named: true })])
    );
}

/// A peer that could not get a majority does not call itself greater for a while: a smaller one that can shall lead.
#[test]
fn a_greater_peer_that_few_hear_keeps_nobody_waiting() {
    let mut peer = node("e", true);
    let question = Message::Election { attempt: 1, ballot: ballot(None) };
    let greater = |said: Said<Message>| {
        said.sent.iter().any(|(_, _, message)| matches!(message, Message::Answer { greater: true, .. }))
    };
    assert!(greater(peer.hears(LATE, "d", 0, question.clone())));
    peer.hears(LATE + 1, "d", 0, Message::Answer { attempt: 1, greater: false, ready: true });
    peer.wakes(LATE + 250);
    assert!(!greater(peer.hears(LATE + 251, "d", 0, question.clone())));
    assert!(greater(peer.hears(LATE + 1_300, "d", 0, question)));
}

/// Two peers with one name, or a state that was copied.
#[test]
fn a_second_coordinator_of_an_epoch_is_refused() {
    let mut peer = node("a", true);
    peer.hears(LATE, "b", 5, heartbeat(1));
    assert_eq!(peer.takes(LATE, "c", 5, heartbeat(1)).unwrap_err(), Refusal::SecondLeader);
    assert_eq!(
        peer.takes(LATE, "c", 5, Message::TakeOver { named: true }).unwrap_err(),
        Refusal::SecondLeader
    );
    assert!(peer.takes(LATE, "c", 5, claim(None)).is_ok(), "that is a claim like any other");
}

/// Told that nobody leads, since nobody was known to stand, all hold an election: they do not all claim the next epoch.
#[test]
fn peers_that_are_told_of_an_end_do_not_all_claim() {
    for majority in [false, true] {
        let mut net = net(&FIVE, majority);
        for name in ["a", "b", "c", "d"] {
            let now = net.now;
            net.node(name).peer.stand(now, now);
        }
        net.run(5_000);
        assert_eq!(net.leaders(), [("e", 1)]);
        for name in ["a", "b", "c", "d"] {
            let now = net.now;
            net.node(name).peer.stand(now, incumbent_core::BootInstant::FAR_FUTURE);
        }
        let now = net.now;
        net.node("e").peer.surrender(now, None).unwrap();
        net.run(600);
        assert_eq!(net.leaders(), [("d", 2)], "{majority}");
    }
}

// ---- who is the greatest ----

#[test]
fn the_most_recent_data_leads() {
    for majority in [false, true] {
        let configs = FIVE.map(|name| config(name, &members(&FIVE)));
        let mut net = Net::<Bully>::new(configs.map(|peers| {
            let config = ClaimConfig { criterion: Criterion::MostRecentData, ..bully(&peers, majority) };
            (peers, config)
        }));
        for (name, data_version) in [("a", 4), ("b", 7), ("c", 7), ("d", 6), ("e", 1)] {
            net.node(name).peer.set_data_version(data_version);
        }
        net.run(5_000);
        assert_eq!(net.leaders(), [("c", 1)], "{majority}");
    }
    let peers = config("a", &members(&FIVE));
    let config = ClaimConfig { criterion: Criterion::MostRecentData, ..bully(&peers, true) };
    let mut peer = Node::<Bully>::new(config, &peers, 0);
    peer.peer.set_data_version(3);
    assert!(!acknowledges(&peer.hears(LATE, "b", 1, claim(None)), 1), "older data than its own");
}

/// Who does not stand is none of the candidates, but acknowledges.
#[test]
fn a_peer_that_does_not_stand_only_votes() {
    let mut net = net(&FIVE, true);
    for name in ["d", "e"] {
        let now = net.now;
        net.node(name).peer.stand(now, now);
    }
    net.run(5_000);
    assert_eq!(net.leaders(), [("c", 1)]);
    net.kill("a");
    net.kill("b");
    net.run(5_000);
    assert_eq!(net.leaders(), [("c", 1)]);
    // Nobody is told to lead who does not want to.
    let now = net.now;
    let error = net.node("c").peer.surrender(now, Some(&id("e"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// One peer leads alone once its epoch is durable.
#[test]
fn one_peer() {
    let peers = config("a", &[("a", 1)]);
    for majority in [false, true] {
        let mut peer = Bully::new(
            bully(&peers, majority),
            incumbent_core::peers::Durable::new(peers.cluster.clone(), id("a")),
            1,
            ms(0),
        )
        .unwrap();
        peer.stand(ms(0), ms(LATE * 2));
        peer.handle_timeout(ms(LATE));
        let Some(incumbent_core::peers::Output::Save(save)) = peer.poll_output() else {
            panic!("a save first")
        };
        peer.handle_timeout(ms(LATE + 1));
        assert_eq!((peer.leadership(), peer.poll_output()), (None, None));
        peer.handle_proof(ms(LATE + 2), save.with(|_| Ok::<_, ()>(())).unwrap());
        assert!(peer.leadership().is_some());
    }
}
