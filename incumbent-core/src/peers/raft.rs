//! Raft's election (Ongaro & Ousterhout §5.2, §5.4.1; Ongaro's dissertation §3.10, §4.2.3, §6.4.1, §9.6), without a log.

mod election;
mod message;

use std::collections::BTreeMap;

pub use self::message::Message;

use super::member::Member;
use super::peer::Peer;
use super::{Config, Durable, Envelope, Refusal, Term};
use crate::error::Result;
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// One peer. A voter refuses a candidate whose data version is smaller than its own (§5.4.1).
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Raft {
    peer: Peer<Message>,
    role: Role,
    attempts: u64,
}

/// What a peer that does not lead does; a leader is idle.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Role {
    Idle,
    PreCandidate(BTreeMap<CandidateId, bool>),
    Candidate(BTreeMap<CandidateId, bool>),
}

impl Member for Raft {
    type Config = Config;
    type Message = Message;

    fn make(config: Config, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Raft> {
        let peer = Peer::new(config, true, durable, seed, started_at)?;
        Ok(Raft { peer, role: Role::Idle, attempts: 0 })
    }

    fn peer(&self) -> &Peer<Message> {
        &self.peer
    }

    fn peer_mut(&mut self) -> &mut Peer<Message> {
        &mut self.peer
    }

    fn check(&self, envelope: &Envelope<Message>) -> core::result::Result<(), Refusal> {
        self.peer.check(envelope)?;
        let leads = matches!(envelope.message, Message::Heartbeat { .. } | Message::TimeoutNow);
        let led_by =
            if self.peer.lead.is_some() { Some(&self.peer.config.id) } else { self.peer.leader.as_ref() };
        if leads
            && envelope.term == self.peer.durable.term
            && led_by.is_some_and(|leader| *leader != envelope.from)
        {
            return Err(Refusal::SecondLeader);
        }
        Ok(())
    }

    fn take(&mut self, now: BootInstant, from: CandidateId, term: Term, message: Message) {
        match message {
            Message::PreVote { proposed, attempt, ballot } => {
                self.pre_vote_asked(now, from, proposed, attempt, ballot)
            }
            Message::PreVoteAnswer { attempt, granted } => {
                self.pre_vote_answered(now, from, term, attempt, granted)
            }
            Message::Vote(ballot) => self.vote_asked(now, from, term, ballot),
            Message::VoteAnswer { asked, granted } => self.vote_answered(now, from, term, asked, granted),
            Message::Heartbeat { round } => self.heard(now, from, term, round),
            Message::HeartbeatAnswer(acknowledgement) => {
                self.peer.acknowledged(now, from, term, acknowledgement);
            }
            Message::TimeoutNow => self.told_to_campaign(now, term),
        }
    }

    fn proven(&mut self, now: BootInstant) {
        self.count_own_vote(now);
    }

    fn elect(&mut self, now: BootInstant) {
        self.ask_for_pre_votes(now);
    }

    fn idle(&mut self) {
        self.role = Role::Idle;
    }
}
