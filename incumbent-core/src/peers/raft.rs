//! Raft's election (Ongaro & Ousterhout §5.2, §5.4.1; Ongaro's dissertation §3.10, §4.2.3, §6.4.1, §9.6), without a log.

mod election;
mod message;

use std::collections::BTreeMap;

pub use self::message::Message;

use super::peer::Peer;
use super::{Config, Durable, Envelope, List, Output, Proof, Protocol, Refusal, Term, Trust};
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

impl Protocol for Raft {
    type Config = Config;
    type Message = Message;

    fn new(config: Config, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Raft> {
        let peer = Peer::new(config, true, durable, seed, started_at)?;
        Ok(Raft { peer, role: Role::Idle, attempts: 0 })
    }

    fn config(&self) -> &Config {
        &self.peer.config
    }

    fn handle_message(
        &mut self,
        now: BootInstant,
        envelope: Envelope<Message>,
    ) -> core::result::Result<(), Refusal> {
        self.expire(now);
        self.check(&envelope)?;
        let Envelope { from, term, message, .. } = envelope;
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
        self.advance(now);
        Ok(())
    }

    fn handle_timeout(&mut self, now: BootInstant) {
        self.expire(now);
        self.advance(now);
    }

    fn handle_proof(&mut self, now: BootInstant, proof: Proof) {
        self.expire(now);
        self.peer.outbox.done(&proof);
        self.count_own_vote(now);
        self.advance(now);
    }

    fn poll_output(&mut self) -> Option<Output<Message>> {
        self.peer.outbox.poll(&self.peer.durable)
    }

    fn poll_timeout(&self) -> Option<BootInstant> {
        self.peer.lead_due().or_else(|| self.peer.election_due())
    }

    fn stand(&mut self, now: BootInstant, until: BootInstant) {
        self.peer.standing_until = until;
        self.expire(now);
        self.advance(now);
    }

    fn surrender(&mut self, now: BootInstant, to: Option<&CandidateId>) -> Result<()> {
        self.expire(now);
        self.peer.surrender(now, to)
    }

    fn set_list(&mut self, now: BootInstant, list: List) {
        if self.peer.set_list(now, list) {
            self.role = Role::Idle;
            self.expire(now);
            self.advance(now);
        }
    }

    fn set_data_version(&mut self, data_version: u64) {
        self.peer.data_version = data_version;
    }

    fn leader(&self) -> Option<&CandidateId> {
        self.peer.leader.as_ref()
    }

    fn leadership(&self) -> Option<Trust> {
        self.peer.leadership()
    }

    fn term(&self) -> Term {
        self.peer.durable.term
    }
}

impl Raft {
    fn expire(&mut self, now: BootInstant) {
        self.peer.expire(now);
        if !self.peer.stands(now) {
            self.role = Role::Idle;
        }
    }

    /// Starts what is due at `now`.
    fn advance(&mut self, now: BootInstant) {
        match &self.peer.lead {
            Some(lead) if now >= lead.next_round_at => self.peer.send_round(now),
            Some(_) => {}
            None if now >= self.peer.election_at && self.peer.stands(now) => self.ask_for_pre_votes(now),
            None => {}
        }
    }

    /// Refuses what must not be looked at: also what only one peer may say in a term, from a second one.
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
}
