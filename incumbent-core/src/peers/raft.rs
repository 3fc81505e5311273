//! Raft's election (Ongaro & Ousterhout §5.2, §5.4.1; Ongaro's dissertation §3.10, §4.2.3, §6.4.1, §9.6), without a log,
//! as a pure state machine of one peer. Messages in, outputs out, time passed in.
//!
//! A caller loops: hand over what happened ([`Raft::handle_message`]) or that time has passed ([`Raft::handle_timeout`]),
//! then take every [`Output`], do it, and hand in the [`Proof`] where there is one ([`Raft::handle_proof`]), then wait
//! until [`Raft::poll_timeout`] or the next message.
//!
//! Why two leaderships are never valid at one instant:
//!
//! - A leader trusts a round of heartbeats only if a quorum acknowledged it, counted from its send. Each acknowledgement
//!   is a promise to vote for nobody until later than that trust ends ([`PeerTiming`]). A later leader needs the vote
//!   of one of them, who gives it after its promise.
//! - A promise survives a restart: a peer that starts votes for nobody for as long as a promise made just before lasts.
//! - A promise ends early only by surrender: the leader of that term, or of a later one, has been marked invalid and says
//!   so. A leader marks itself invalid before anything that it sends afterwards, and never leads in that term again.
//! - Term and vote are durable before any message that depends on them.
//!
//! It holds while clocks keep to the bound of their rates, whatever the network and the processes do.

mod election;
mod lead;
mod message;
mod output;

use std::collections::BTreeMap;

pub use self::message::{Ballot, Envelope, Message, Refusal, Term};
pub use self::output::{Durable, Event, Invalidate, Loss, Output, Proof, Save};

use self::election::Promise;
use self::lead::Lead;
use self::output::Outbox;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, CandidateId, FencingToken};
use crate::rng::Rng;
use crate::time::BootInstant;
use crate::timing::PeerTiming;

/// Who leads rather than others: the peer with the greatest one asks for votes first. With 0 it never asks: it only votes.
pub type Priority = u8;

/// What a peer is told once. Cluster, members and timing must be the same at all peers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct RaftConfig {
    /// The cluster; messages of others are refused.
    pub cluster: Authority,
    /// This peer.
    pub id: CandidateId,
    /// All peers, this one too. An even number is allowed: 4 stand the loss of one, as 3 do.
    pub members: BTreeMap<CandidateId, Priority>,
    /// The intervals in force.
    pub timing: PeerTiming,
}

/// One peer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Raft {
    config: RaftConfig,
    /// How many peers have a greater priority.
    rank: u32,
    rng: Rng,
    durable: Durable,
    outbox: Outbox,
    role: Role,
    /// Who leads in this term, as far as known.
    leader: Option<CandidateId>,
    promise: Promise,
    /// The latest term that is known to be over for good.
    surrendered: Option<Term>,
    data_version: u64,
    /// When this peer asks for votes, unless it leads.
    election_at: BootInstant,
    attempts: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Role {
    Follower,
    PreCandidate(BTreeMap<CandidateId, bool>),
    Candidate(BTreeMap<CandidateId, bool>),
    Leader(Lead),
}

impl Raft {
    /// A peer that starts at `started_at`, by the boot clock, with what it made durable before. `seed` must be random and
    /// another one at every start: the random waits come from it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`]: the peer is not among the members, or `durable` is another peer's.
    pub fn new(config: RaftConfig, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Raft> {
        durable.check(&config.cluster, &config.id)?;
        let Some(&priority) = config.members.get(&config.id) else {
            let message = format!("peer {} is not in its own list of peers; add it there", config.id);
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        };
        let rank = config.members.values().filter(|other| **other > priority).count();
        let promise = Promise { until: config.timing.promise_end(started_at), term: durable.term };
        let mut raft = Raft {
            rank: rank.try_into().unwrap_or(u32::MAX),
            rng: Rng::new(seed),
            outbox: Outbox::new(durable.clone(), 64 + 4 * config.members.len()),
            durable,
            role: Role::Follower,
            leader: None,
            promise,
            surrendered: None,
            data_version: 0,
            election_at: BootInstant::ZERO,
            attempts: 0,
            config,
        };
        raft.await_election(raft.promise.until);
        Ok(raft)
    }

    /// The settings in force.
    pub fn config(&self) -> &RaftConfig {
        &self.config
    }

    /// The latest term that this peer has seen. May not be durable yet.
    pub fn term(&self) -> Term {
        self.durable.term
    }

    /// Who leads, as far as this peer knows. Itself only once a quorum has acknowledged it.
    pub fn leader(&self) -> Option<&CandidateId> {
        self.leader.as_ref()
    }

    /// The token and the end of trust of this peer's own leadership, if it leads. For tests and displays: who acts on it
    /// reads the clock at the point of use.
    pub fn leadership(&self) -> Option<(FencingToken, BootInstant)> {
        match &self.role {
            Role::Leader(lead) if lead.established() => {
                Some((self.durable.term.token(), lead.deadline(&self.config.timing)))
            }
            _ => None,
        }
    }

    /// How recent this peer's data is: it votes for nobody with a smaller number. 0 until told.
    pub fn set_data_version(&mut self, data_version: u64) {
        self.data_version = data_version;
    }

    /// Takes a message. `now` must be read *after* the message was received: the promise in the answer counts from it.
    ///
    /// # Errors
    /// Why it was refused. It changed nothing.
    pub fn handle_message(
        &mut self,
        now: BootInstant,
        envelope: Envelope,
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
            Message::HeartbeatAnswer { asked, round, data_version } => {
                self.acknowledged(now, from, term, asked, round, data_version);
            }
            Message::TimeoutNow => self.told_to_campaign(now, term),
        }
        self.advance(now);
        Ok(())
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: BootInstant) {
        self.expire(now);
        self.advance(now);
    }

    /// Takes the proof that a [`Save`] or [`Invalidate`] was done: what waited for it comes out next.
    pub fn handle_proof(&mut self, now: BootInstant, proof: Proof) {
        self.expire(now);
        self.outbox.done(&proof);
        self.count_own_vote(now);
        self.advance(now);
    }

    /// The next thing to do; take them all before waiting. `None` also while a barrier is not proven done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.poll(&self.durable)
    }

    /// When [`Raft::handle_timeout`] is due next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<BootInstant> {
        match &self.role {
            Role::Leader(lead) => Some(lead.deadline(&self.config.timing).min(lead.next_round_at)),
            _ if self.may_lead(&self.config.id) => Some(self.election_at),
            _ => None,
        }
    }

    /// Ends what may not outlive `now`: a late answer finds its term over.
    fn expire(&mut self, now: BootInstant) {
        if let Role::Leader(lead) = &self.role
            && now >= lead.deadline(&self.config.timing)
        {
            self.step_down(Loss::Expired);
            self.retry(now);
        }
    }

    /// Starts what is due at `now`.
    fn advance(&mut self, now: BootInstant) {
        match &self.role {
            Role::Leader(lead) if now >= lead.next_round_at => self.send_round(now),
            Role::Leader(_) => {}
            _ if now >= self.election_at && self.may_lead(&self.config.id) => self.ask_for_pre_votes(now),
            _ => {}
        }
    }

    /// Refuses what must not be looked at.
    fn check(&self, envelope: &Envelope) -> core::result::Result<(), Refusal> {
        let Envelope { cluster, from, to, term, message } = envelope;
        let proposed = match message {
            Message::PreVote { proposed, .. } => *proposed,
            _ => Term(0),
        };
        let leads = matches!(message, Message::Heartbeat { .. } | Message::TimeoutNow);
        if *cluster != self.config.cluster {
            Err(Refusal::OtherCluster)
        } else if *from == self.config.id || !self.config.members.contains_key(from) {
            Err(Refusal::UnknownSender)
        } else if *to != self.config.id {
            Err(Refusal::OtherReceiver)
        } else if term.max(&proposed).0 > self.durable.term.0.saturating_add(Term::LEAP_MAX) {
            Err(Refusal::TermTooGreat)
        } else if leads && *term == self.durable.term && !self.may_be_leader(from) {
            Err(Refusal::SecondLeader)
        } else {
            Ok(())
        }
    }

    fn may_lead(&self, peer: &CandidateId) -> bool {
        self.config.members.get(peer).is_some_and(|priority| *priority > 0)
    }

    fn quorum(&self) -> usize {
        self.config.members.len() / 2 + 1
    }

    fn others(&self) -> Vec<CandidateId> {
        self.config.members.keys().filter(|peer| **peer != self.config.id).cloned().collect()
    }

    fn send(&mut self, to: CandidateId, message: Message) {
        let envelope = Envelope {
            cluster: self.config.cluster.clone(),
            from: self.config.id.clone(),
            to,
            term: self.durable.term,
            message,
        };
        self.outbox.send(&self.durable, envelope);
    }

    fn broadcast(&mut self, message: &Message) {
        for peer in self.others() {
            self.send(peer, message.clone());
        }
    }

    fn follow(&mut self, leader: Option<CandidateId>) {
        if self.leader != leader {
            self.leader = leader.clone();
            self.outbox.event(Event::LeaderChanged(leader));
        }
    }
}
