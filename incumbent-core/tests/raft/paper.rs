//! One test for each rule of the papers. §5 is Ongaro & Ousterhout, "In Search of an Understandable Consensus
//! Algorithm"; the others are Ongaro's dissertation, "Consensus: Bridging Theory and Practice".

use std::collections::{BTreeMap, BTreeSet};

use incumbent_core::peers::raft::Message;
use incumbent_core::peers::{Ballot, Event, Loss, Protocol, Term, Trust};
use incumbent_core::timing::PeerTiming;

use crate::support::{FREE, LATE, Peer, TTL, answer, ballot, config, id, ms};

const HEARTBEAT: Message = Message::Heartbeat { round: 1 };

/// What is proven by a round that was sent at `sent_at`.
fn trust(term: u64, sent_at: u64) -> Trust {
    let sent_at = ms(sent_at);
    let valid_until = PeerTiming::new(TTL, 1_000).expect("intervals that fit").deadline(sent_at);
    Trust { term: Term(term), token: Some(Term(term).token()), sent_at, valid_until }
}

/// §5.1: a stale request is refused with the newer term.
#[test]
fn s5_1_an_old_term_is_refused() {
    let mut peer = Peer::of_three();
    peer.hears(1, "b", 5, HEARTBEAT);
    let said = peer.hears(2, "c", 4, HEARTBEAT);
    assert_eq!(said.sent, [(id("c"), Term(5), answer(4, 1, 0))]);
    assert_eq!(peer.raft.leader(), Some(&id("b")));
    assert!(!peer.votes(LATE, "c", 4, ballot()));
}

/// §5.1: the answer by which a peer of a later term refuses an old heartbeat acknowledges nothing of that later term.
#[test]
fn s5_1_an_answer_to_an_old_term_proves_nothing() {
    let mut peer = Peer::of_three();
    let first = peer.is_elected(LATE);
    peer.wakes(LATE + 900);
    let second = peer.is_elected(LATE * 2);
    let said = peer.hears(LATE * 2, "c", second, answer(first, 1, 0));
    assert_eq!((said.events, peer.raft.leadership()), (vec![], None));
}

/// §5.1: a leader that sees a greater term goes back to being a follower.
#[test]
fn s5_1_a_leader_steps_down_for_a_greater_term() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    let said = peer.hears(LATE, "c", term + 3, answer(term, 1, 0));
    assert_eq!((said.lost, peer.raft.leadership()), (vec![Loss::Superseded], None));
    assert_eq!(peer.raft.term(), Term(term + 3));
}

/// §5.2: one vote in each term, first come first served, restart included.
#[test]
fn s5_2_one_vote_in_a_term() {
    let mut peer = Peer::of_three();
    assert!(peer.votes(LATE, "b", 5, ballot()));
    assert!(!peer.votes(LATE, "c", 5, ballot()));
    assert!(peer.votes(LATE, "b", 5, ballot()), "the same vote may be told again");
    peer.restart(LATE);
    assert!(!peer.votes(LATE * 2, "c", 5, ballot()));
    assert!(peer.votes(LATE * 2, "c", 6, ballot()));
}

/// §5.2: a candidate votes for itself, asks all others in parallel, leads with a majority, and tells all at once.
#[test]
fn s5_2_a_majority_elects() {
    let members = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];
    let mut peer = Peer::new(config("a", &members));
    let attempt = peer.asks(LATE);
    peer.hears(LATE, "b", 0, Message::PreVoteAnswer { attempt, granted: true });
    let asked = peer.hears(LATE, "c", 0, Message::PreVoteAnswer { attempt, granted: true });
    let receivers: Vec<_> = asked.sent.iter().map(|(to, _, _)| to.as_str()).collect();
    assert_eq!(receivers, ["b", "c", "d", "e"]);
    assert!(
        asked.sent.iter().all(|(_, term, message)| *term == Term(1) && *message == Message::Vote(ballot()))
    );
    let vote = Message::VoteAnswer { asked: Term(1), granted: true };
    // The same vote twice is one vote.
    assert!(peer.hears(LATE, "b", 1, vote.clone()).sent.is_empty());
    assert!(peer.hears(LATE, "b", 1, vote.clone()).sent.is_empty());
    let won = peer.hears(LATE, "d", 1, vote);
    assert_eq!(won.sent.len(), 4);
    assert!(won.sent.iter().all(|(_, _, message)| *message == HEARTBEAT));
    // It calls itself leader only when a majority has acknowledged it.
    assert!(won.events.is_empty());
    assert!(peer.is_acknowledged(LATE, "b", 1, 1).events.is_empty());
    let elected = peer.is_acknowledged(LATE + 7, "e", 1, 1).events;
    assert_eq!(elected[0], Event::Elected(trust(1, LATE)));
}

/// §5.2: a candidate that hears of a leader of its term follows it.
#[test]
fn s5_2_a_candidate_follows_the_leader_of_its_term() {
    let mut peer = Peer::of_three();
    let attempt = peer.asks(LATE);
    peer.hears(LATE, "b", 0, Message::PreVoteAnswer { attempt, granted: true });
    assert_eq!(peer.raft.term(), Term(1));
    peer.hears(LATE, "c", 1, HEARTBEAT);
    assert_eq!(peer.raft.leader(), Some(&id("c")));
    let late = peer.hears(LATE, "b", 1, Message::VoteAnswer { asked: Term(1), granted: true });
    assert!(late.sent.is_empty());
}

/// §5.2: waits are random, so that split votes are rare.
#[test]
fn s5_2_waits_are_random() {
    let mut waits = BTreeSet::new();
    let mut peer = Peer::of_three();
    for round in 0..200 {
        peer.hears(LATE, "b", 5, Message::Heartbeat { round });
        waits.insert(peer.raft.poll_timeout().unwrap().since(ms(LATE)));
    }
    let (first, last) = (waits.first().unwrap(), waits.last().unwrap());
    assert!(waits.len() > 100 && *first >= TTL && *last < TTL * 13 / 10, "{first:?} to {last:?}");
    assert!(*last - *first > TTL / 5);
}

/// §5.2, with priorities: the peer of a smaller one waits longer than any of a greater one, and who has none never asks.
#[test]
fn s5_2_a_greater_priority_asks_first() {
    let members = [("a", 9), ("b", 5), ("c", 0)];
    let wait = |name| {
        let mut peer = Peer::new(config(name, &members));
        let from = if name == "a" { "b" } else { "a" };
        peer.hears(LATE, from, 5, HEARTBEAT);
        peer.raft.poll_timeout()
    };
    assert!(wait("a") < wait("b"));
    assert_eq!(wait("c"), None);
    let mut voter = Peer::new(config("c", &members));
    assert!(voter.wakes(LATE).sent.is_empty());
    assert!(voter.hears(LATE, "a", 1, Message::TimeoutNow).sent.is_empty());
}

/// §5.4.1: a voter refuses a candidate whose data is behind its own (here a data version in place of a log).
#[test]
fn s5_4_1_a_candidate_that_is_behind_is_refused() {
    let mut peer = Peer::of_three();
    peer.raft.set_data_version(3);
    assert!(!peer.votes(LATE, "b", 1, ballot()));
    assert!(peer.votes(LATE, "c", 1, Ballot { data_version: 4, surrendered: None }));
}

/// §3.10: TimeoutNow starts an election at once, without a pre-vote, though the follower is bound to the leader.
#[test]
fn s3_10_timeout_now_starts_an_election_at_once() {
    let mut peer = Peer::of_three();
    peer.hears(LATE, "b", 5, HEARTBEAT);
    let said = peer.hears(LATE + 1, "b", 5, Message::TimeoutNow);
    let shown = Ballot { data_version: 0, surrendered: Some(Term(5)) };
    assert_eq!(said.sent[0], (id("b"), Term(6), Message::Vote(shown)));
    // And voters that are bound to the same leader may give their votes.
    let mut voter = Peer::of_three();
    voter.hears(LATE, "b", 5, HEARTBEAT);
    assert!(!voter.votes(LATE + 1, "c", 6, Ballot { data_version: 0, surrendered: Some(Term(4)) }));
    assert!(voter.votes(LATE + 1, "c", 6, shown));
    // Doubled, it starts nothing again.
    assert!(peer.hears(LATE + 2, "b", 5, Message::TimeoutNow).sent.is_empty());
}

/// §3.10, §6.4.1: a leader that gave up never resumes its term.
#[test]
fn s3_10_a_surrendered_term_is_never_resumed() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    assert_eq!(peer.surrenders(LATE, Some("b")).lost, [Loss::Surrendered]);
    peer.stands(LATE);
    let late = peer.is_acknowledged(LATE + 1, "c", term, 1);
    assert_eq!((late.events, peer.raft.leadership()), (vec![], None));
    // It leaves the election to others, and needs a term of its own later.
    assert!(peer.raft.poll_timeout().unwrap() > ms(LATE) + TTL);
    assert_eq!(peer.is_elected(LATE * 2), term + 1);
}

/// §3.10: from the surrender to the successor's leadership five messages pass one after the other, two and a half round
/// trips: TimeoutNow, a vote and its answer, a heartbeat and its answer. Of all that is saved meanwhile only the vote is
/// waited for: the candidate saves its own while its request is under way.
#[test]
fn s3_10_a_transfer_takes_five_messages_and_one_save() {
    let members = [("a", 1), ("b", 1), ("c", 1)];
    let mut peers: BTreeMap<_, _> =
        ["a", "b", "c"].into_iter().map(|name| (id(name), Peer::new(config(name, &members)))).collect();
    let term = peers.get_mut(&id("a")).unwrap().is_elected(LATE);
    for name in ["b", "c"] {
        peers.get_mut(&id(name)).unwrap().hears(LATE, "a", term, HEARTBEAT);
        peers.get_mut(&id("a")).unwrap().is_acknowledged(LATE, name, term, 1);
    }
    let said = peers.get_mut(&id("a")).unwrap().surrenders(LATE + 1, Some("b"));
    assert_eq!(said.saves_before, [0]);
    let mut flying: Vec<_> = said.sent.into_iter().map(|sent| (id("a"), 0, sent)).collect();
    let (mut hops, mut saves) = (0, 0);
    while peers[&id("b")].raft.leadership().is_none() {
        assert!(!flying.is_empty(), "nothing is under way after {hops} messages");
        hops += 1;
        for (from, before, (to, term, message)) in std::mem::take(&mut flying) {
            saves = saves.max(before);
            let said = peers.get_mut(&to).unwrap().hears(LATE + 1 + hops, from.as_str(), term.0, message);
            let waited = said.saves_before.into_iter().map(|saves| before + saves);
            flying.extend(said.sent.into_iter().zip(waited).map(|(sent, waited)| (to.clone(), waited, sent)));
        }
    }
    assert_eq!((hops, saves, peers[&id("b")].raft.term()), (5, 1, Term(term + 1)));
}

/// §4.2.3: a voter that hears from a leader neither votes for another nor follows its term.
#[test]
fn s4_2_3_a_leader_is_not_disrupted() {
    let mut peer = Peer::of_three();
    peer.hears(LATE, "b", 5, HEARTBEAT);
    assert!(!peer.votes(LATE + 1_000, "c", 9, ballot()));
    assert_eq!((peer.raft.term(), peer.raft.leader()), (Term(5), Some(&id("b"))));
    // For one ttl on its own clock, and its drift.
    assert!(peer.votes(LATE + 1_001, "c", 9, ballot()));
}

/// §4.2.3: nor does the leader itself.
#[test]
fn s4_2_3_a_leader_ignores_candidates() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    assert!(!peer.votes(LATE + 10, "c", term + 4, ballot()));
    assert!(peer.raft.leadership().is_some());
}

/// §6.4.1: the lease begins at the send of the round that a majority acknowledged, whenever the answers come.
#[test]
fn s6_4_1_the_lease_counts_from_the_send() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    let elected = peer.is_acknowledged(LATE + 400, "c", term, 1);
    assert_eq!(elected.events[0], Event::Elected(trust(term, LATE)));
    // Round 2 left at 400, when the peer next looked at the time.
    let extended = peer.is_acknowledged(LATE + 700, "b", term, 2);
    assert_eq!(extended.events, [Event::Extended(trust(term, LATE + 400))]);
    // An old answer changes nothing.
    assert_eq!(peer.is_acknowledged(LATE + 701, "c", term, 1).events, []);
}

/// §6.4.1, and check-quorum: without a majority the leader steps down, and a late answer never revives it.
#[test]
fn s6_4_1_a_lapsed_lease_is_the_end_of_the_term() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    peer.wakes(LATE + 100);
    let late = peer.is_acknowledged(LATE + 899, "b", term, 2);
    assert_eq!((late.lost, late.events), (vec![Loss::Expired], vec![Event::LeaderChanged(None)]));
    assert_eq!(peer.is_elected(LATE * 2), term + 1, "a new term, a new token");
}

/// Check-quorum (§6.2): who won but never hears from a majority gives up, too.
#[test]
fn s6_2_a_leader_that_nobody_hears_steps_down() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    let said = peer.wakes(LATE + 900);
    assert_eq!((said.lost, said.events), (vec![], vec![]));
    let late = peer.is_acknowledged(LATE + 901, "b", term, 1);
    assert_eq!((late.events, peer.raft.leadership()), (vec![], None));
}

/// §6.4.1: a promise survives a restart: the voter is silent for one ttl on its clock, and its drift.
#[test]
fn s6_4_1_a_voter_that_starts_is_silent() {
    let mut peer = Peer::of_three();
    assert!(!peer.votes(FREE - 1, "c", 1, ballot()), "not even the first time");
    peer.hears(LATE, "b", 5, HEARTBEAT);
    peer.restart(LATE);
    assert!(!peer.votes(LATE + 1_000, "c", 6, ballot()));
    assert!(peer.raft.poll_timeout().unwrap() > ms(LATE + 1_001));
    // It may acknowledge, which forbids more, not less.
    assert_eq!(peer.hears(LATE + 1_000, "b", 5, HEARTBEAT).sent.len(), 1);
    peer.restart(LATE + 2_000);
    assert!(peer.votes(LATE + 3_001, "c", 6, ballot()));
    // A surrender frees it: all that it may have promised was to that leader or to earlier ones.
    peer.restart(LATE + 4_000);
    let surrendered = Ballot { data_version: 0, surrendered: Some(Term(6)) };
    assert!(peer.votes(LATE + 4_001, "c", 7, surrendered));
}

/// §9.6: a pre-vote changes nothing, at the asker and at the asked; it is refused while a leader is heard.
#[test]
fn s9_6_a_pre_vote_changes_nothing() {
    let mut peer = Peer::of_three();
    let pre_vote = |proposed| Message::PreVote { proposed: Term(proposed), attempt: 3, ballot: ballot() };
    let answer = |granted| Message::PreVoteAnswer { attempt: 3, granted };
    assert_eq!(peer.hears(FREE, "b", 8, pre_vote(9)).sent, [(id("b"), Term(0), answer(true))]);
    assert_eq!(peer.hears(FREE, "c", 8, pre_vote(9)).sent, [(id("c"), Term(0), answer(true))]);
    peer.hears(FREE, "b", 9, HEARTBEAT);
    assert_eq!(peer.hears(FREE, "c", 9, pre_vote(10)).sent, [(id("c"), Term(9), answer(false))]);
    assert_eq!(peer.disk.term, Term(9));
    peer.asks(LATE * 2);
    assert_eq!(peer.raft.term(), Term(9));
}

/// §9.6: who cannot win a pre-vote never raises its term, however long it is cut off, and learns of a greater one.
#[test]
fn s9_6_a_peer_that_is_cut_off_does_not_raise_its_term() {
    let mut peer = Peer::of_three();
    for second in 10..100 {
        peer.wakes(second * 1_000);
    }
    assert_eq!(peer.raft.term(), Term(0));
    let attempt = peer.asks(LATE * 20);
    peer.hears(LATE * 20, "b", 7, Message::PreVoteAnswer { attempt, granted: false });
    assert_eq!(peer.raft.term(), Term(7));
    // Answers to an earlier attempt do not count.
    let attempt = peer.asks(LATE * 30);
    assert!(
        peer.hears(LATE * 30, "b", 7, Message::PreVoteAnswer { attempt: attempt - 1, granted: true })
            .sent
            .is_empty()
    );
    assert_eq!(peer.raft.term(), Term(7));
}

/// An even number needs more than half; one peer elects itself.
#[test]
fn any_number_of_peers() {
    let mut four = Peer::new(config("a", &[("a", 1), ("b", 1), ("c", 1), ("d", 1)]));
    let attempt = four.asks(LATE);
    assert!(four.hears(LATE, "b", 0, Message::PreVoteAnswer { attempt, granted: true }).sent.is_empty());
    assert_eq!(four.hears(LATE, "c", 0, Message::PreVoteAnswer { attempt, granted: true }).sent.len(), 3);

    let mut one = Peer::new(config("a", &[("a", 1)]));
    let elected = one.wakes(LATE).events;
    assert!(matches!(elected[0], Event::Elected(trust) if trust.token == Some(Term(1).token())));
    assert!(matches!(one.wakes(LATE + 100).events[0], Event::Extended(_)));
    // Frozen past its deadline, it needs a new term, too.
    assert_eq!(one.wakes(LATE * 2).lost, [Loss::Expired]);
    let again = one.wakes(LATE * 3).events;
    assert!(matches!(again[0], Event::Elected(trust) if trust.token == Some(Term(2).token())));
}
