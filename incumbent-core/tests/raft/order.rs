//! What must be done before what: a message comes out only after the proof of what it depends on.

use incumbent_core::ErrorKind;
use incumbent_core::peers::raft::{Message, Raft};
use incumbent_core::peers::{Ballot, Durable, Envelope, Event, Loss, Output, Protocol, Refusal, Term};

use crate::support::{LATE, LIST, Peer, answer, ballot, cluster, config, id, ms};

fn vote_of_b(term: u64) -> Envelope<Message> {
    Envelope {
        cluster: cluster(),
        list: LIST,
        from: id("b"),
        to: id("a"),
        term: Term(term),
        message: Message::Vote(ballot()),
    }
}

#[test]
fn a_vote_comes_out_only_after_it_is_durable() {
    let mut peer = Peer::of_three();
    peer.raft.handle_message(ms(LATE), vote_of_b(5)).unwrap();
    let Some(Output::Save(save)) = peer.raft.poll_output() else { panic!("a save first") };
    assert_eq!(peer.raft.poll_output(), None);

    // A full disk: the peer stays mute, whatever happens, and the same save can be tried again.
    let (save, error) = save.with(|_| Err("disk full")).unwrap_err();
    assert_eq!((error, peer.raft.poll_output()), ("disk full", None));
    peer.raft.handle_message(ms(LATE + 1), vote_of_b(6)).unwrap();
    peer.raft.handle_timeout(ms(LATE * 2));
    assert_eq!(peer.raft.poll_output(), None);

    let mut stored = Vec::new();
    let proof = save.with(|state| {
        stored.push((state.term, state.voted_for.clone()));
        Ok::<_, ()>(())
    });
    assert_eq!(stored, [(Term(5), Some(id("b")))]);
    peer.raft.handle_proof(ms(LATE * 2), proof.unwrap());
    let Some(Output::Send(answer)) = peer.raft.poll_output() else { panic!("the vote of term 5 next") };
    assert_eq!(answer.message, Message::VoteAnswer { asked: Term(5), granted: true });
    // The vote of term 6 waits for a save of its own.
    assert!(matches!(peer.raft.poll_output(), Some(Output::Save(_))));
    assert_eq!(peer.raft.poll_output(), None);
}

#[test]
fn a_vote_in_a_term_that_is_durable_already_is_saved_first() {
    let mut peer = Peer::of_three();
    peer.hears(1, "c", 5, Message::Heartbeat { round: 1 });
    peer.raft.handle_message(ms(LATE), vote_of_b(5)).unwrap();
    assert!(matches!(peer.raft.poll_output(), Some(Output::Save(_))));
    assert_eq!(peer.raft.poll_output(), None);
}

#[test]
fn an_acknowledgement_comes_out_only_after_its_term_is_durable() {
    let mut peer = Peer::of_three();
    let message = Message::Heartbeat { round: 1 };
    let envelope = Envelope { message, ..vote_of_b(5) };
    peer.raft.handle_message(ms(1), envelope.clone()).unwrap();
    let mut seen = Vec::new();
    while let Some(output) = peer.raft.poll_output() {
        if let Output::Save(save) = output {
            seen.push("save");
            peer.raft.handle_proof(ms(1), save.with(|_| Ok::<_, ()>(())).unwrap());
        } else if let Output::Send(_) = output {
            seen.push("send");
        }
    }
    assert_eq!(seen, ["save", "send"]);
    // In steady state nothing is saved.
    peer.raft.handle_message(ms(2), envelope).unwrap();
    assert!(matches!(peer.raft.poll_output(), Some(Output::Send(_))));
}

#[test]
fn a_candidate_alone_leads_only_after_its_own_vote_is_durable() {
    let mut raft = Peer::new(config("a", &[("a", 1)])).raft;
    raft.handle_timeout(ms(LATE));
    let Some(Output::Save(save)) = raft.poll_output() else { panic!("a save first") };
    raft.handle_timeout(ms(LATE + 1));
    assert_eq!((raft.leadership(), raft.poll_output()), (None, None));
    raft.handle_proof(ms(LATE + 2), save.with(|_| Ok::<_, ()>(())).unwrap());
    assert!(matches!(raft.poll_output(), Some(Output::Event(Event::Elected(_)))));
}

fn next_but_events(peer: &mut Peer) -> Option<Output<Message>> {
    std::iter::from_fn(|| peer.raft.poll_output()).find(|output| !matches!(output, Output::Event(_)))
}

/// Asking promises nothing, so it does not wait for the disk; leading does.
#[test]
fn a_candidate_asks_for_votes_while_its_own_is_being_saved_and_leads_only_after_that() {
    let mut peer = Peer::of_three();
    peer.hears(1, "b", 1, Message::Heartbeat { round: 1 });
    let told = Envelope { term: Term(1), message: Message::TimeoutNow, ..vote_of_b(1) };
    peer.raft.handle_message(ms(2), told).unwrap();
    for voter in ["b", "c"] {
        let Some(Output::Send(asked)) = next_but_events(&mut peer) else { panic!("the questions first") };
        let surrendered = Some(Term(1));
        let ballot = Ballot { data_version: 0, surrendered };
        assert_eq!((asked.to, asked.term, asked.message), (id(voter), Term(2), Message::Vote(ballot)));
    }
    let Some(Output::Save(save)) = next_but_events(&mut peer) else { panic!("a save next") };
    // A majority without it votes for it: still nothing is said in that term before it is durable.
    let voted = |from| Envelope {
        from: id(from),
        term: Term(2),
        message: Message::VoteAnswer { asked: Term(2), granted: true },
        ..vote_of_b(2)
    };
    for voter in ["b", "c"] {
        peer.raft.handle_message(ms(3), voted(voter)).unwrap();
    }
    assert_eq!((peer.raft.poll_output(), peer.raft.leadership()), (None, None));
    peer.raft.handle_proof(ms(4), save.with(|_| Ok::<_, ()>(())).unwrap());
    let said = peer.drain(4);
    assert!(matches!(said.sent[0].2, Message::Heartbeat { round: 1 }), "{said:?}");
    assert!(said.events.is_empty() && peer.raft.leadership().is_none());
}

/// It has crashed before its vote for itself was durable: it is free to give that vote to another, and its own was not counted.
#[test]
fn a_candidate_that_crashed_before_its_save_votes_for_another_in_that_term_and_ignores_late_votes() {
    let mut peer = Peer::of_three();
    peer.hears(1, "b", 1, Message::Heartbeat { round: 1 });
    let told = Envelope { term: Term(1), message: Message::TimeoutNow, ..vote_of_b(1) };
    peer.raft.handle_message(ms(2), told).unwrap();
    assert!(matches!(next_but_events(&mut peer), Some(Output::Send(_))));
    peer.restart(3);
    assert_eq!(peer.raft.term(), Term(1));
    let late = Message::VoteAnswer { asked: Term(2), granted: true };
    assert!(peer.hears(4, "c", 2, late.clone()).sent.is_empty());
    assert!(peer.votes(LATE * 4, "c", 2, ballot()));
    assert!(!peer.votes(LATE * 4, "b", 2, ballot()));
    peer.hears(LATE * 4, "b", 2, late);
    assert_eq!(peer.raft.leadership(), None);
}

#[test]
fn a_leader_is_invalid_before_it_tells_its_successor() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    assert!(peer.raft.leadership().is_some());
    peer.raft.surrender(ms(LATE), None).unwrap();
    let Some(Output::Invalidate(invalidate)) = peer.raft.poll_output() else { panic!("invalidate first") };
    peer.raft.handle_message(ms(LATE + 1), vote_of_b(term + 1)).unwrap();
    assert_eq!((peer.raft.poll_output(), peer.raft.leadership()), (None, None));
    assert_eq!((invalidate.term, invalidate.reason), (Term(term), Loss::Surrendered));
    peer.raft.handle_proof(ms(LATE + 2), invalidate.with(|_, _| ()));
    let said = peer.drain(LATE + 2);
    assert_eq!(said.sent[0], (id("b"), Term(term), Message::TimeoutNow));
    assert!(matches!(said.sent[1].2, Message::VoteAnswer { granted: true, .. }));
}

/// A leader that has seen a later term is invalid before it votes in it.
#[test]
fn a_superseded_leader_is_invalid_before_anything_else() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    let envelope = Envelope { message: Message::Heartbeat { round: 1 }, ..vote_of_b(term + 1) };
    peer.raft.handle_message(ms(LATE + 1), envelope).unwrap();
    let Some(Output::Invalidate(invalidate)) = peer.raft.poll_output() else { panic!("invalidate first") };
    assert_eq!((invalidate.reason, peer.raft.poll_output()), (Loss::Superseded, None));
}

/// A disk that hangs for long makes nothing grow without bound.
#[test]
fn messages_that_wait_for_the_disk_are_bounded() {
    let mut peer = Peer::of_three();
    for term in 1..10_000 {
        peer.raft.handle_message(ms(LATE), vote_of_b(term)).unwrap();
    }
    let (mut saves, mut sends) = (0, 0);
    while let Some(output) = peer.raft.poll_output() {
        match output {
            Output::Save(save) => {
                saves += 1;
                peer.raft.handle_proof(ms(LATE), save.with(|_| Ok::<_, ()>(())).unwrap());
            }
            Output::Send(_) => sends += 1,
            _ => {}
        }
    }
    // One save of the newest state covers all that wait.
    assert!(saves == 1 && (1..100).contains(&sends), "{saves} saves, {sends} sends");
}

#[test]
fn foreign_messages_are_refused_and_change_nothing() {
    let mut peer = Peer::of_three();
    let before = peer.raft.clone();
    let good = Envelope { message: Message::Heartbeat { round: 1 }, ..vote_of_b(5) };
    let other_cluster = incumbent_core::Authority::new("cluster-2");
    let too_great = Term(Term::LEAP_MAX + 1);
    let (attempt, proposed) = (1, too_great);
    for (refusal, envelope) in [
        (Refusal::OtherCluster, Envelope { cluster: other_cluster, ..good.clone() }),
        (Refusal::UnknownSender, Envelope { from: id("d"), ..good.clone() }),
        (Refusal::UnknownSender, Envelope { from: id("a"), ..good.clone() }),
        (Refusal::OlderList, Envelope { list: LIST - 1, ..good.clone() }),
        (Refusal::NewerList, Envelope { list: LIST + 2, ..good.clone() }),
        (Refusal::OlderList, Envelope { list: LIST - 2, message: answer(1, 1, 0), ..good.clone() }),
        (Refusal::NewerList, Envelope { list: LIST + 1, message: answer(1, 1, 0), ..good.clone() }),
        (Refusal::OtherReceiver, Envelope { to: id("c"), ..good.clone() }),
        (Refusal::TermTooGreat, Envelope { term: too_great, ..good.clone() }),
        (
            Refusal::TermTooGreat,
            Envelope { message: Message::PreVote { proposed, attempt, ballot: ballot() }, ..good.clone() },
        ),
    ] {
        assert_eq!(peer.raft.handle_message(ms(1), envelope), Err(refusal));
        assert_eq!(peer.raft, before);
    }
    assert_eq!(peer.raft.handle_message(ms(1), good), Ok(()));
}

/// Two peers with one name, or a state that was copied.
#[test]
fn a_second_leader_of_a_term_is_refused() {
    let mut peer = Peer::of_three();
    peer.hears(1, "b", 5, Message::Heartbeat { round: 1 });
    assert_eq!(peer.takes(2, "c", 5, Message::Heartbeat { round: 1 }), Err(Refusal::SecondLeader));
    assert_eq!(peer.takes(2, "c", 5, Message::TimeoutNow), Err(Refusal::SecondLeader));

    let mut leader = Peer::of_three();
    let term = leader.is_elected(LATE);
    assert_eq!(leader.takes(LATE, "c", term, Message::Heartbeat { round: 1 }), Err(Refusal::SecondLeader));
}

#[test]
fn a_state_of_another_peer_or_cluster_is_refused() {
    let a = config("a", &[("a", 1), ("b", 1)]);
    let start = |config: &_, durable| Raft::new(Clone::clone(config), durable, 1, ms(0)).map(|_| ());
    let kind = |result: Result<(), incumbent_core::Error>| result.unwrap_err().kind();
    assert!(start(&a, Durable::new(cluster(), id("a"))).is_ok());
    assert_eq!(kind(start(&a, Durable::new(cluster(), id("b")))), ErrorKind::InvalidConfig);
    let other = incumbent_core::Authority::new("cluster-2");
    assert_eq!(kind(start(&a, Durable::new(other, id("a")))), ErrorKind::InvalidConfig);
    let absent = config("c", &[("a", 1), ("b", 1)]);
    assert_eq!(kind(start(&absent, Durable::new(cluster(), id("c")))), ErrorKind::InvalidConfig);
}

#[test]
fn a_term_is_not_surrendered_to_whoever_may_not_lead() {
    let mut peer = Peer::new(config("a", &[("a", 1), ("b", 1), ("c", 0)]));
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "c", term, 1);
    for (unfit, kind) in [
        ("a", ErrorKind::InvalidConfig),
        ("c", ErrorKind::InvalidConfig),
        ("d", ErrorKind::InvalidConfig),
        // It has not said that it stands.
        ("b", ErrorKind::NotFound),
    ] {
        let error = peer.raft.surrender(ms(LATE), Some(&id(unfit))).unwrap_err();
        assert_eq!((unfit, error.kind()), (unfit, kind));
    }
    assert!(peer.raft.leadership().is_some());
    // Only a voter has answered: nobody is known to stand, so all are told that the term is over.
    let said = peer.surrenders(LATE, None);
    let told = ["b", "c"].map(|peer| (peer, Term(1), Message::TimeoutNow));
    assert_eq!(said.lost, vec![Loss::Surrendered]);
    assert!(said.sent.iter().map(|(to, term, message)| (to.as_str(), *term, message.clone())).eq(told));
}

#[test]
fn the_successor_has_the_most_recent_data() {
    let members = [("a", 9), ("b", 2), ("c", 1), ("d", 3), ("e", 9)];
    let mut peer = Peer::new(config("a", &members));
    let attempt = peer.asks(LATE);
    for voter in ["b", "c"] {
        peer.hears(LATE, voter, 0, Message::PreVoteAnswer { attempt, granted: true });
    }
    for voter in ["b", "c"] {
        peer.hears(LATE, voter, 1, Message::VoteAnswer { asked: Term(1), granted: true });
    }
    for (follower, data_version) in [("b", 7), ("c", 7), ("d", 6)] {
        peer.hears(LATE, follower, 1, answer(1, 1, data_version));
    }
    assert_eq!(peer.surrenders(LATE, None).sent, [(id("b"), Term(1), Message::TimeoutNow)]);
}

#[test]
fn a_ballot_of_a_peer_that_is_behind_is_refused() {
    let mut peer = Peer::of_three();
    peer.raft.set_data_version(10);
    let behind = Ballot { data_version: 9, surrendered: None };
    let even = Ballot { data_version: 10, surrendered: None };
    let pre = Message::PreVote { proposed: Term(1), attempt: 1, ballot: behind };
    let said = peer.hears(LATE, "b", 0, pre);
    assert_eq!(said.sent[0].2, Message::PreVoteAnswer { attempt: 1, granted: false });
    assert!(!peer.votes(LATE, "b", 1, behind));
    assert!(peer.votes(LATE, "c", 1, even));
}

/// A voter that has a later list of peers than its leader knows refuses it; the leader counts the answers of voters that
/// are one list behind.
#[test]
fn a_leader_of_an_older_list_is_not_acknowledged() {
    let mut peer = Peer::of_three();
    let mut list = peer.raft.config().list.clone();
    (list.version, _) = (LIST + 1, list.members.insert(id("d"), list.members[&id("b")].clone()));
    let heartbeat = Envelope { message: Message::Heartbeat { round: 1 }, ..vote_of_b(5) };
    // It hears a newer one before it has it itself, one step.
    let newer = Envelope { list: LIST + 1, ..heartbeat.clone() };
    assert_eq!(peer.raft.handle_message(ms(1), newer), Ok(()));
    peer.raft.set_list(ms(1), list.clone());
    assert_eq!(peer.raft.handle_message(ms(2), heartbeat), Err(Refusal::OlderList));

    // With four members two are no quorum any more.
    let mut leader = Peer::of_three();
    let term = leader.is_elected(LATE);
    leader.is_acknowledged(LATE, "b", term, 1);
    leader.raft.set_list(ms(LATE), list.clone());
    leader.raft.handle_timeout(ms(LATE + 100));
    assert!(leader.is_acknowledged(LATE + 100, "b", term, 2).events.is_empty());
    assert!(matches!(leader.is_acknowledged(LATE + 100, "c", term, 2).events[0], Event::Extended(_)));
    // A member that was removed gives up at once.
    let mut removed = leader.raft.config().list.clone();
    (removed.version, _) = (LIST + 2, removed.members.remove(&id("a")));
    leader.raft.set_list(ms(LATE + 101), removed);
    assert_eq!(leader.drain(LATE + 101).lost, [Loss::Surrendered]);
    // What was won under an earlier list, and never acknowledged, is not led in.
    let mut winner = Peer::of_three();
    let term = winner.is_elected(LATE);
    winner.raft.set_list(ms(LATE), list);
    assert!(winner.is_acknowledged(LATE, "b", term, 1).events.is_empty());
    assert!(winner.is_acknowledged(LATE, "c", term, 1).events.is_empty());
}

/// Two lists further on, no acknowledgement of a leader counts, even if it was cut off while they were made.
#[test]
fn a_leader_that_missed_a_list_steps_down() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    let mut list = peer.raft.config().list.clone();
    (list.version, _) = (LIST + 2, list.members.remove(&id("c")));
    peer.raft.set_list(ms(LATE + 1), list);
    assert_eq!(peer.drain(LATE + 1).lost, [Loss::Superseded]);
}

/// Who vanished keeps nothing: a leader gives up when its standing lapses, and hands over to a peer that stands.
#[test]
fn a_leader_that_does_not_stand_any_more_gives_up() {
    let mut peer = Peer::of_three();
    let term = peer.is_elected(LATE);
    peer.is_acknowledged(LATE, "b", term, 1);
    peer.raft.stand(ms(LATE), ms(LATE + 50));
    assert_eq!(peer.raft.poll_timeout(), Some(ms(LATE + 50)));
    assert_eq!(peer.wakes(LATE + 49).lost, []);
    let said = peer.wakes(LATE + 50);
    assert_eq!((said.lost, &said.sent[0].2), (vec![Loss::Surrendered], &Message::TimeoutNow));
    // It has nothing to do, but votes.
    assert_eq!(peer.raft.poll_timeout(), None);
    assert!(peer.wakes(LATE * 2).sent.is_empty());
    assert!(peer.votes(LATE * 2, "c", term + 1, ballot()));
    // Asked to lead again, it asks for votes when it is free to.
    peer.stands(LATE * 4);
    assert!(peer.drain(LATE * 4).sent.iter().all(|(_, _, said)| matches!(said, Message::PreVote { .. })));
    assert!(peer.raft.poll_timeout().is_some());
}

/// A candidate whose standing lapses before its votes come does not lead.
#[test]
fn votes_for_a_peer_that_does_not_stand_any_more_elect_nobody() {
    let mut peer = Peer::of_three();
    let attempt = peer.asks(LATE);
    peer.hears(LATE, "b", 0, Message::PreVoteAnswer { attempt, granted: true });
    peer.raft.stand(ms(LATE), ms(LATE + 50));
    let late = peer.hears(LATE + 50, "b", 1, Message::VoteAnswer { asked: Term(1), granted: true });
    assert!(late.sent.is_empty() && late.events.is_empty());
}
