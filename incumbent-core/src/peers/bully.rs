//! The Bully algorithm (Garcia-Molina, "Elections in a Distributed Computing System", 1982): whoever misses the
//! coordinator asks all greater peers; if one answers, it leaves the election to that one; if none does, it is the
//! coordinator and tells everybody.
//!
//! Each coordinator has an epoch of its own, durable, in all that it says, and goes on saying that it is there: its first
//! heartbeat is the paper's COORDINATOR. What the paper takes for granted, that a silent peer is dead, no network gives:
//! in one that falls apart every part has its coordinator. That is what happens without `majority`.
//!
//! With `majority` a coordinator leads only while a majority acknowledges it, by the rules of promises that hold for
//! [Raft](super::raft). Two things change for that:
//!
//! - ELECTION goes to everybody, and the answer says also whether the sender would acknowledge a claim now. Nobody claims
//!   an epoch that it cannot get, so that a peer which was cut off disturbs nobody when it is back.
//! - A greater peer that comes back does not take over by force. It asks around whether a majority hears it, then asks the
//!   leader to surrender.

mod message;

use std::collections::{BTreeMap, BTreeSet};

pub use self::message::Message;

use super::claim::Claimant;
use super::member::Member;
use super::peer::Peer;
use super::{Ballot, Claim, ClaimConfig, Criterion, Durable, Envelope, Refusal, Term};
use crate::error::Result;
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// One peer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Bully {
    peer: Peer<Message>,
    criterion: Criterion,
    state: State,
    attempts: u64,
    /// Until then it does not call itself greater: it could not get a majority, so a smaller one shall try.
    humble_until: BootInstant,
    /// It asks around for a leader's place only after that.
    takeover_at: BootInstant,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum State {
    Idle,
    /// It has asked, and waits for answers.
    Asking(Asking),
    /// A greater one has answered, and should lead soon.
    Waiting,
    /// It claims the next epoch as soon as that is durable.
    Claiming,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Asking {
    /// A smaller one leads: this is about its place.
    takeover: bool,
    until: BootInstant,
    asked: usize,
    /// Who answered, and whether it would acknowledge a claim.
    answered: BTreeMap<CandidateId, bool>,
    /// Those that may be greater and have not answered.
    silent: BTreeSet<CandidateId>,
}

impl Member for Bully {
    type Config = ClaimConfig;
    type Message = Message;

    fn make(config: ClaimConfig, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Bully> {
        let ClaimConfig { peers, majority, criterion } = config;
        let peer = Peer::new(peers, majority, durable, seed, started_at)?;
        Ok(Bully {
            peer,
            criterion,
            state: State::Idle,
            attempts: 0,
            humble_until: started_at,
            takeover_at: started_at,
        })
    }

    fn peer(&self) -> &Peer<Message> {
        &self.peer
    }

    fn peer_mut(&mut self) -> &mut Peer<Message> {
        &mut self.peer
    }

    fn check(&self, envelope: &Envelope<Message>) -> core::result::Result<(), Refusal> {
        match envelope.message {
            Message::Coordinator(Claim { established: true, .. }) | Message::TakeOver { .. } => {
                self.peer.check_leader(envelope, envelope.term, &envelope.from)
            }
            _ => self.peer.check(envelope),
        }
    }

    fn take(&mut self, now: BootInstant, from: CandidateId, term: Term, message: Message) {
        match message {
            Message::Election { attempt, ballot } => self.asked(now, from, attempt, ballot),
            Message::Answer { attempt, greater, ready } => {
                self.answered(now, from, term, attempt, greater, ready);
            }
            Message::Coordinator(claim) => self.heard(now, from, term, claim),
            Message::CoordinatorAnswer(acknowledgement) => {
                self.peer.acknowledged(now, from, term, acknowledgement);
            }
            Message::Yield { data_version } => self.asked_to_yield(now, from, data_version),
            Message::TakeOver { named } => self.told_to_take_over(now, term, named),
        }
    }

    fn proven(&mut self, now: BootInstant) {
        self.begin(now);
    }

    fn elect(&mut self, now: BootInstant) {
        match self.state {
            State::Asking(Asking { takeover: false, .. }) => self.settle(now, true),
            _ => self.hold_election(now),
        }
    }

    fn idle(&mut self) {
        self.state = State::Idle;
    }

    fn expire(&mut self, now: BootInstant) {
        let claimed = self.peer.lead.is_some() && self.peer.leadership().is_none();
        self.peer.expire(now);
        if claimed && self.peer.lead.is_none() {
            self.be_humble(now);
        }
        if !self.peer.stands(now) {
            self.idle();
        }
    }
}

impl Claimant for Bully {
    fn claim(&mut self, now: BootInstant) {
        self.state = if self.peer.claim(now) { State::Claiming } else { State::Idle };
        self.begin(now);
    }
}

impl Bully {
    fn be_humble(&mut self, now: BootInstant) {
        self.humble_until = self.peer.config.timing.promise_end(now);
    }

    // ---- the candidate ----

    /// Sees whether a greater peer is there, and with a majority who would acknowledge this one.
    fn hold_election(&mut self, now: BootInstant) {
        self.state = State::Idle;
        if !self.peer.may_elect(now) {
            return;
        }
        self.peer.follow(None);
        self.peer.election_at = self.peer.config.timing.answer_end(now);
        self.ask(now, false);
    }

    fn ask(&mut self, now: BootInstant, takeover: bool) {
        let by_id = self.criterion == Criterion::GreatestId;
        let may_be_greater = |peer: &CandidateId| !by_id || !self.peer.outranks(self.criterion, peer, 0);
        let everybody = self.peer.others();
        let silent: BTreeSet<_> = everybody.iter().filter(|peer| may_be_greater(peer)).cloned().collect();
        let asked = if self.peer.exclusive { everybody } else { silent.iter().cloned().collect() };
        self.attempts += 1;
        let until = self.peer.config.timing.answer_end(now);
        let answered = BTreeMap::new();
        self.state = State::Asking(Asking { takeover, until, asked: asked.len(), answered, silent });
        let question = Message::Election { attempt: self.attempts, ballot: self.peer.ballot() };
        for peer in asked {
            self.peer.send(peer, question.clone());
        }
        self.settle(now, false);
    }

    fn answered(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        term: Term,
        attempt: u64,
        greater: bool,
        ready: bool,
    ) {
        let State::Asking(asking) = &mut self.state else { return };
        if attempt != self.attempts {
            return;
        }
        if greater {
            if asking.takeover {
                self.state = State::Idle;
            } else {
                self.state = State::Waiting;
                self.peer.await_answers(now);
            }
            return;
        }
        asking.silent.remove(&from);
        asking.answered.insert(from, ready);
        if term > self.peer.durable.term && !asking.takeover {
            self.peer.adopt(now, term);
        }
        self.settle(now, false);
    }

    /// Sees whether the answers decide, or that the wait is over.
    fn settle(&mut self, now: BootInstant, over: bool) {
        let State::Asking(asking) = &self.state else { return };
        let over = over || now >= asking.until;
        if !over && !asking.silent.is_empty() {
            return;
        }
        let needed = self.peer.quorum() - 1;
        let ready = asking.answered.values().filter(|ready| **ready).count();
        let (takeover, complete) = (asking.takeover, asking.answered.len() == asking.asked);
        if takeover {
            let leader = self.peer.leader.clone().filter(|_| asking.answered.len() >= needed);
            if leader.is_some() || over || complete {
                self.state = State::Idle;
            }
            if let Some(leader) = leader {
                self.peer.send(leader, Message::Yield { data_version: self.peer.data_version });
            }
        } else if ready >= needed {
            self.claim(now);
        } else if over || complete {
            self.state = State::Idle;
            self.be_humble(now);
            self.peer.retry(now);
        }
    }

    /// Its claim is made once it is durable.
    fn begin(&mut self, now: BootInstant) {
        if self.state == State::Claiming && self.peer.has_claimed() {
            self.state = State::Idle;
            self.peer.lead(now, false);
            self.peer.send_round(now);
        }
    }

    // ---- everybody ----

    /// Another holds an election.
    fn asked(&mut self, now: BootInstant, from: CandidateId, attempt: u64, ballot: Ballot) {
        self.peer.learn_surrendered(ballot.surrendered);
        let greater = self.peer.stands(now)
            && now >= self.humble_until
            && self.peer.outranks(self.criterion, &from, ballot.data_version);
        let ready = self.peer.exclusive && self.peer.is_ready(now, self.criterion, ballot.data_version);
        if greater || self.peer.exclusive {
            self.peer.send(from, Message::Answer { attempt, greater, ready });
        }
        let idle = self.state == State::Idle && self.peer.lead.is_none();
        if greater && idle && !self.peer.hears_leader(now) {
            self.hold_election(now);
        }
    }

    /// A coordinator speaks. Without a majority, a greater peer bullies it out of its place.
    fn heard(&mut self, now: BootInstant, from: CandidateId, term: Term, claim: Claim) {
        let would_replace = self.peer.stands(now)
            && self.peer.would_replace(self.criterion, &from, claim.ballot.data_version);
        if !self.peer.exclusive && would_replace {
            if term > self.peer.durable.term {
                // Its own epoch must be later.
                self.peer.adopt(now, term);
                self.state = State::Idle;
            }
            if self.peer.lead.is_none() && self.state == State::Idle {
                self.hold_election(now);
            }
            return;
        }
        let accepted = self.peer.claimed(now, &from, term, claim, self.criterion);
        let leads = self.peer.leader.as_ref() == Some(&from);
        if (accepted || leads) && !matches!(self.state, State::Asking(Asking { takeover: true, .. })) {
            self.state = State::Idle;
        }
        if self.peer.exclusive && would_replace && leads {
            if self.state == State::Idle && now >= self.takeover_at && self.peer.is_saved() {
                self.takeover_at = self.peer.config.timing.promise_end(now);
                self.ask(now, true);
            }
            self.settle(now, false);
        }
    }

    /// A greater peer would lead in this one's place.
    fn asked_to_yield(&mut self, now: BootInstant, from: CandidateId, data_version: u64) {
        if self.peer.exclusive
            && self.peer.leadership().is_some()
            && self.peer.would_be_replaced(self.criterion, &from, data_version)
        {
            self.peer.hand_over(now, Some(from));
        }
    }
}
