//! Votes, pre-votes, and the promises that forbid them.

use std::collections::BTreeMap;

use super::message::{Ballot, Message, Term};
use super::{Loss, Raft, Role};
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// To vote for nobody before `until`, unless the leader of `term` or of a later one has surrendered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct Promise {
    pub(super) until: BootInstant,
    /// The latest term to which anything was promised.
    pub(super) term: Term,
}

impl Raft {
    /// Whether a promise forbids to vote. One rule for every vote, this peer's for itself too.
    fn bound(&self, now: BootInstant) -> bool {
        now < self.promise.until && self.surrendered < Some(self.promise.term)
    }

    /// Promises to vote for nobody for one ttl from `now`.
    pub(super) fn promise(&mut self, now: BootInstant) {
        let until = self.config.timing.promise_end(now).max(self.promise.until);
        self.promise = Promise { until, term: self.durable.term };
    }

    /// Asks for votes only after `free_at` and a random wait.
    pub(super) fn await_election(&mut self, free_at: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.election_at(free_at, self.rank, jitter);
    }

    /// Asks for votes anew after a short random wait.
    pub(super) fn retry(&mut self, now: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.retry_at(now, self.rank, jitter);
    }

    /// Follows a later term (§5.1).
    pub(super) fn adopt(&mut self, now: BootInstant, term: Term) {
        if let Role::Leader(_) = self.role {
            self.step_down(Loss::Superseded);
            self.retry(now);
        }
        self.durable.term = term;
        self.durable.voted_for = None;
        self.outbox.save(&self.durable);
        self.role = Role::Follower;
        self.follow(None);
    }

    // ---- the candidate ----

    /// Asks whether others would vote for this peer, without a new term (dissertation §9.6).
    pub(super) fn ask_for_pre_votes(&mut self, now: BootInstant) {
        if self.bound(now) {
            return self.await_election(self.promise.until);
        }
        if !self.outbox.is_saved(&self.durable) {
            // The disk is slow or full; a peer that cannot save what it has must not ask for more.
            self.outbox.save(&self.durable);
            return self.retry(now);
        }
        let Some(proposed) = self.durable.term.next() else { return self.retry(now) };
        self.attempts += 1;
        self.role = Role::PreCandidate(BTreeMap::from([(self.config.id.clone(), true)]));
        self.follow(None);
        self.await_answers(now);
        let (attempt, ballot) = (self.attempts, self.ballot());
        self.broadcast(&Message::PreVote { proposed, attempt, ballot });
        self.count(now);
    }

    /// Begins a term and asks for votes in it (§5.2).
    fn campaign(&mut self, now: BootInstant) {
        let Some(term) = self.durable.term.next().filter(|_| !self.bound(now)) else {
            return self.retry(now);
        };
        self.durable.term = term;
        self.durable.voted_for = Some(self.config.id.clone());
        self.role = Role::Candidate(BTreeMap::new());
        self.follow(None);
        self.await_answers(now);
        self.outbox.save(&self.durable);
        let ballot = self.ballot();
        self.broadcast(&Message::Vote(ballot));
    }

    fn ballot(&self) -> Ballot {
        Ballot { data_version: self.data_version, surrendered: self.surrendered }
    }

    fn await_answers(&mut self, now: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.attempt_end(now, jitter);
    }

    /// A candidate's own vote counts once it is durable.
    pub(super) fn count_own_vote(&mut self, now: BootInstant) {
        let saved = self.outbox.is_saved(&self.durable);
        if let Role::Candidate(answers) = &mut self.role
            && saved
            && !answers.contains_key(&self.config.id)
        {
            answers.insert(self.config.id.clone(), true);
            self.count(now);
        }
    }

    /// Sees whether the answers so far decide the attempt.
    fn count(&mut self, now: BootInstant) {
        let (Role::PreCandidate(answers) | Role::Candidate(answers)) = &self.role else { return };
        let granted = answers.values().filter(|granted| **granted).count();
        let refused = answers.len() - granted;
        if granted >= self.quorum() {
            match self.role {
                Role::PreCandidate(_) => self.campaign(now),
                _ => self.lead(now),
            }
        } else if refused > self.config.members.len() - self.quorum() {
            self.role = Role::Follower;
            self.retry(now);
        }
    }

    pub(super) fn pre_vote_answered(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        term: Term,
        attempt: u64,
        granted: bool,
    ) {
        let Role::PreCandidate(answers) = &mut self.role else { return };
        if attempt != self.attempts {
            return;
        }
        if term > self.durable.term {
            self.adopt(now, term);
            return self.retry(now);
        }
        answers.insert(from, granted);
        self.count(now);
    }

    pub(super) fn vote_answered(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        term: Term,
        asked: Term,
        granted: bool,
    ) {
        let Role::Candidate(answers) = &mut self.role else { return };
        if term > self.durable.term {
            self.adopt(now, term);
            return self.retry(now);
        }
        if asked == self.durable.term {
            answers.insert(from, granted);
            self.count(now);
        }
    }

    /// The leader of `term` has surrendered it, and asks this peer to take over (dissertation §3.10).
    pub(super) fn told_to_campaign(&mut self, now: BootInstant, term: Term) {
        if term < self.durable.term {
            return;
        }
        if term > self.durable.term {
            self.adopt(now, term);
        }
        self.surrendered = self.surrendered.max(Some(term));
        if self.may_lead(&self.config.id) {
            self.campaign(now);
        }
    }

    // ---- the voter ----

    /// Whether this peer, if it is not bound, would vote for `candidate` in `term` (§5.2, §5.4.1).
    fn would_vote(&self, candidate: &CandidateId, term: Term, ballot: Ballot) -> bool {
        let free = match &self.durable.voted_for {
            _ if term > self.durable.term => true,
            voted_for => {
                term == self.durable.term && voted_for.as_ref().is_none_or(|voted| voted == candidate)
            }
        };
        free && ballot.data_version >= self.data_version
    }

    /// Answers without any change: neither a term nor a vote nor a wait (dissertation §9.6).
    pub(super) fn pre_vote_asked(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        proposed: Term,
        attempt: u64,
        ballot: Ballot,
    ) {
        self.surrendered = self.surrendered.max(ballot.surrendered);
        let granted = !self.bound(now) && self.would_vote(&from, proposed, ballot);
        self.send(from, Message::PreVoteAnswer { attempt, granted });
    }

    /// A voter that is bound does not even follow the candidate's term (dissertation §4.2.3).
    pub(super) fn vote_asked(&mut self, now: BootInstant, from: CandidateId, term: Term, ballot: Ballot) {
        self.surrendered = self.surrendered.max(ballot.surrendered);
        let bound = self.bound(now);
        if !bound && term > self.durable.term {
            self.adopt(now, term);
        }
        let granted = !bound && self.would_vote(&from, term, ballot);
        if granted {
            self.durable.voted_for = Some(from.clone());
            self.await_election(self.config.timing.promise_end(now));
        }
        self.send(from, Message::VoteAnswer { asked: term, granted });
    }
}
