//! What Bully and Ring have in common: nobody votes for a candidate that asks. Who came out greatest claims the next epoch
//! by its first heartbeats, and the acknowledgements are the votes.
//!
//! With a majority the rules are those of [Raft](super::raft) under other names. A peer acknowledges one coordinator of an
//! epoch, which is durable before the acknowledgement goes out. While it is bound by a promise it acknowledges no claim to
//! a later epoch; a coordinator that a majority has acknowledged already is no claim any more, and is acknowledged like
//! Raft's leader.

use super::member::Member;
use super::message::{Claim, Envelope, Refusal, Term, Words};
use super::output::Loss;
use super::peer::Peer;
use super::{Config, Priority};
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// What a peer of Bully or Ring is told once. All of it but the peer's id must be the same at all peers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct ClaimConfig {
    /// Who takes part.
    pub peers: Config,
    /// Whether a coordinator needs the acknowledgement of a majority. Without it there is a coordinator in every part of a
    /// network that falls apart: several lead at one time, and there is no fencing token.
    pub majority: bool,
    /// Who is the greatest.
    pub criterion: Criterion,
}

/// Who is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Criterion {
    /// The peer of the greatest priority, of equal ones that with the greatest id, compared as text.
    GreatestId,
    /// The peer with the most recent data, of equal ones by priority and id. With a majority, nobody acknowledges a claim
    /// of a peer whose data is older than its own.
    MostRecentData,
}

/// A peer that comes to lead by a claim.
pub(super) trait Claimant: Member {
    /// Takes the next epoch for itself, and leads in it once that is durable.
    fn claim(&mut self, now: BootInstant);

    /// The coordinator of `term` has surrendered it, and asks this peer to take over, or all to elect another.
    fn told_to_take_over(&mut self, now: BootInstant, term: Term, named: bool) {
        if term < self.peer().durable.term {
            return;
        }
        if term > self.peer().durable.term {
            self.peer_mut().adopt(now, term);
        }
        self.peer_mut().learn_surrendered(Some(term));
        if self.peer().lead.is_some() {
            return;
        }
        if named {
            self.claim(now);
        } else {
            self.idle();
            self.peer_mut().follow(None);
            self.peer_mut().retry(now);
        }
    }
}

/// Whoever has the greatest one should lead.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(super) struct Rank {
    data_version: u64,
    priority: Priority,
    id: CandidateId,
}

impl<M> Peer<M> {
    /// The rank of `peer`, whose data is of `data_version`.
    pub(super) fn rank_of(&self, criterion: Criterion, peer: &CandidateId, data_version: u64) -> Rank {
        Rank {
            data_version: if criterion == Criterion::MostRecentData { data_version } else { 0 },
            priority: self.config.list.priority(peer),
            id: peer.clone(),
        }
    }

    /// Whether this peer outranks `peer`.
    pub(super) fn outranks(&self, criterion: Criterion, peer: &CandidateId, data_version: u64) -> bool {
        self.rank_of(criterion, &self.config.id, self.data_version)
            > self.rank_of(criterion, peer, data_version)
    }

    /// Whether `peer` outranks `other` whatever their data.
    fn is_greater(&self, peer: &CandidateId, other: &CandidateId) -> bool {
        let rank = |of| self.rank_of(Criterion::GreatestId, of, 0);
        rank(peer) > rank(other)
    }

    /// Whether this peer would take the place of a leader: a greater one, unless its data is older. (That it is newer is
    /// no reason: a leader's data is a little older or newer than a follower's at every moment.)
    pub(super) fn would_replace(
        &self,
        criterion: Criterion,
        leader: &CandidateId,
        data_version: u64,
    ) -> bool {
        self.is_greater(&self.config.id, leader)
            && (criterion == Criterion::GreatestId || self.data_version >= data_version)
    }

    /// Whether `peer` would take this leader's place.
    pub(super) fn would_be_replaced(
        &self,
        criterion: Criterion,
        peer: &CandidateId,
        data_version: u64,
    ) -> bool {
        self.is_greater(peer, &self.config.id)
            && (criterion == Criterion::GreatestId || data_version >= self.data_version)
    }

    /// Whether another peer leads, and is taken to be alive.
    pub(super) fn hears_leader(&self, now: BootInstant) -> bool {
        self.lead.is_none() && self.leader.is_some() && now < self.promise.until
    }

    /// Whether this peer would acknowledge a claim of a candidate with that data.
    pub(super) fn is_ready(&self, now: BootInstant, criterion: Criterion, data_version: u64) -> bool {
        let behind = criterion == Criterion::MostRecentData && data_version < self.data_version;
        !self.bound(now) && !behind
    }
}

impl<M: Words> Peer<M> {
    /// Refuses what only one peer may say in an epoch, from a second one.
    pub(super) fn check_leader(
        &self,
        envelope: &Envelope<M>,
        epoch: Term,
        leader: &CandidateId,
    ) -> core::result::Result<(), Refusal> {
        self.check(envelope)?;
        let own = self.leadership().map(|_| &self.config.id);
        let known = own.or(self.leader.as_ref());
        if self.exclusive && epoch == self.durable.term && known.is_some_and(|known| known != leader) {
            return Err(Refusal::SecondLeader);
        }
        Ok(())
    }

    /// Takes the next epoch for itself. Says whether it did; then [`Peer::lead`] follows once that is durable.
    pub(super) fn claim(&mut self, now: BootInstant) -> bool {
        let next = self.next_term().filter(|_| self.stands(now) && !self.bound(now));
        let Some(term) = next else {
            self.retry(now);
            return false;
        };
        self.durable.term = term;
        self.durable.voted_for = Some(self.config.id.clone());
        self.outbox.save(&self.durable);
        self.follow(None);
        self.await_answers(now);
        true
    }

    /// Whether the claim is durable, and still this peer's.
    pub(super) fn has_claimed(&self) -> bool {
        self.is_saved() && self.lead.is_none() && self.durable.voted_for.as_ref() == Some(&self.config.id)
    }

    /// Takes the heartbeat of a coordinator. Says whether this peer follows it now.
    pub(super) fn claimed(
        &mut self,
        now: BootInstant,
        from: &CandidateId,
        term: Term,
        claim: Claim,
        criterion: Criterion,
    ) -> bool {
        self.learn_surrendered(claim.ballot.surrendered);
        let accepted = match self.exclusive {
            _ if term < self.durable.term => false,
            true => self.may_acknowledge(now, from, term, claim, criterion),
            false => self.may_follow(now, from, term),
        };
        if term < self.durable.term {
            // It learns that a later epoch has begun.
            self.acknowledge(now, from.clone(), term, claim.round);
        } else if accepted {
            if term > self.durable.term {
                self.adopt(now, term);
            }
            self.step_down(Loss::Superseded);
            if self.exclusive && self.durable.voted_for.is_none() {
                self.durable.voted_for = Some(from.clone());
            }
            if claim.established || self.leader.as_ref() != Some(from) {
                self.follow(claim.established.then(|| from.clone()));
            }
            self.acknowledge(now, from.clone(), term, claim.round);
        } else if self.exclusive && claim.established && term == self.durable.term {
            // It has acknowledged another in this epoch, but knows who won, and leaves it alone.
            self.step_down(Loss::Superseded);
            self.follow(Some(from.clone()));
            self.promise(now);
            self.await_election(self.promise.until);
        }
        accepted
    }

    /// With a majority: one coordinator in an epoch, and no claim against a promise.
    fn may_acknowledge(
        &self,
        now: BootInstant,
        from: &CandidateId,
        term: Term,
        claim: Claim,
        criterion: Criterion,
    ) -> bool {
        let voted_for = self.durable.voted_for.as_ref().filter(|_| term == self.durable.term);
        match voted_for {
            Some(coordinator) => coordinator == from,
            None => claim.established || self.is_ready(now, criterion, claim.ballot.data_version),
        }
    }

    /// Without one: of one epoch the greatest, of several the latest.
    fn may_follow(&self, now: BootInstant, from: &CandidateId, term: Term) -> bool {
        let leader = match self.lead {
            Some(_) => Some(&self.config.id),
            None => self.leader.as_ref().filter(|_| self.hears_leader(now)),
        };
        term > self.durable.term
            || leader.is_none_or(|leader| leader == from || self.is_greater(from, leader))
    }
}
