//! Votes and pre-votes.

use std::collections::BTreeMap;

use super::message::Message;
use super::{Raft, Role};
use crate::ids::CandidateId;
use crate::peers::{Ballot, Term};
use crate::time::BootInstant;

impl Raft {
    /// Follows a later term (§5.1).
    fn adopt(&mut self, now: BootInstant, term: Term) {
        self.peer.adopt(now, term);
        self.role = Role::Idle;
    }

    // ---- the candidate ----

    /// Asks whether others would vote for this peer, without a new term (dissertation §9.6).
    pub(super) fn ask_for_pre_votes(&mut self, now: BootInstant) {
        if !self.peer.may_elect(now) {
            return;
        }
        let Some(proposed) = self.peer.next_term() else { return self.peer.retry(now) };
        self.attempts += 1;
        self.role = Role::PreCandidate(BTreeMap::from([(self.peer.config.id.clone(), true)]));
        self.peer.follow(None);
        self.peer.await_answers(now);
        let (attempt, ballot) = (self.attempts, self.peer.ballot());
        self.peer.broadcast(&Message::PreVote { proposed, attempt, ballot });
        self.count(now);
    }

    /// Begins a term and asks for votes in it (§5.2).
    fn campaign(&mut self, now: BootInstant) {
        let Some(term) = self.peer.next_term().filter(|_| !self.peer.bound(now)) else {
            return self.peer.retry(now);
        };
        self.peer.durable.term = term;
        self.peer.durable.voted_for = Some(self.peer.config.id.clone());
        self.role = Role::Candidate(BTreeMap::new());
        self.peer.follow(None);
        self.peer.await_answers(now);
        let ballot = self.peer.ballot();
        self.peer.ask_all(&Message::Vote(ballot));
    }

    /// A candidate's own vote counts once it is durable. (If the others' votes suffice, its heartbeats wait for that all the same.)
    pub(super) fn count_own_vote(&mut self, now: BootInstant) {
        let saved = self.peer.is_saved();
        if let Role::Candidate(answers) = &mut self.role
            && saved
            && !answers.contains_key(&self.peer.config.id)
        {
            answers.insert(self.peer.config.id.clone(), true);
            self.count(now);
        }
    }

    /// Sees whether the answers so far decide the attempt.
    fn count(&mut self, now: BootInstant) {
        let (Role::PreCandidate(answers) | Role::Candidate(answers)) = &self.role else { return };
        let granted = answers.values().filter(|granted| **granted).count();
        let refused = answers.len() - granted;
        if granted >= self.peer.quorum() {
            match self.role {
                Role::PreCandidate(_) => self.campaign(now),
                _ => {
                    self.role = Role::Idle;
                    self.peer.lead(now, true);
                    self.peer.send_round(now);
                }
            }
        } else if refused > self.peer.config.list.members.len() - self.peer.quorum() {
            self.role = Role::Idle;
            self.peer.retry(now);
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
        if term > self.peer.durable.term {
            self.adopt(now, term);
            return self.peer.retry(now);
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
        if term > self.peer.durable.term {
            self.adopt(now, term);
            return self.peer.retry(now);
        }
        if asked == self.peer.durable.term {
            answers.insert(from, granted);
            self.count(now);
        }
    }

    /// The leader of `term` has surrendered it, and asks this peer to take over (dissertation §3.10).
    pub(super) fn told_to_campaign(&mut self, now: BootInstant, term: Term) {
        if term < self.peer.durable.term {
            return;
        }
        if term > self.peer.durable.term {
            self.adopt(now, term);
        }
        self.peer.learn_surrendered(Some(term));
        if self.peer.stands(now) {
            self.campaign(now);
        }
    }

    // ---- the voter ----

    /// Whether this peer, if it is not bound, would vote for `candidate` in `term` (§5.2, §5.4.1).
    fn would_vote(&self, candidate: &CandidateId, term: Term, ballot: Ballot) -> bool {
        let free = match &self.peer.durable.voted_for {
            _ if term > self.peer.durable.term => true,
            voted_for => {
                term == self.peer.durable.term && voted_for.as_ref().is_none_or(|voted| voted == candidate)
            }
        };
        free && ballot.data_version >= self.peer.data_version
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
        self.peer.learn_surrendered(ballot.surrendered);
        let granted = !self.peer.bound(now) && self.would_vote(&from, proposed, ballot);
        self.peer.send(from, Message::PreVoteAnswer { attempt, granted });
    }

    /// A voter that is bound does not even follow the candidate's term (dissertation §4.2.3).
    pub(super) fn vote_asked(&mut self, now: BootInstant, from: CandidateId, term: Term, ballot: Ballot) {
        self.peer.learn_surrendered(ballot.surrendered);
        let bound = self.peer.bound(now);
        if !bound && term > self.peer.durable.term {
            self.adopt(now, term);
        }
        let granted = !bound && self.would_vote(&from, term, ballot);
        if granted {
            self.peer.durable.voted_for = Some(from.clone());
            self.peer.await_election(self.peer.config.timing.promise_end(now));
        }
        self.peer.send(from, Message::VoteAnswer { asked: term, granted });
    }

    // ---- the follower ----

    pub(super) fn heard(&mut self, now: BootInstant, from: CandidateId, term: Term, round: u64) {
        if term > self.peer.durable.term {
            self.adopt(now, term);
        }
        if term == self.peer.durable.term {
            self.role = Role::Idle;
            self.peer.follow(Some(from.clone()));
        }
        self.peer.acknowledge(now, from, term, round);
    }
}
