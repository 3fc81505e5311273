//! A small value that peers keep together: a register with compare-and-swap, decided by a majority. It needs no leader.
//!
//! Paxos with a value that changes (Rystsov, "CASPaxos: Replicated State Machines without logs", 2018 §2.2): a proposal asks a majority
//! to promise its ballot, takes the value of the highest ballot that any of them has accepted, changes it, and asks a majority to
//! accept the outcome under its ballot. A read that finds one ballot accepted by a majority ends there; any other read writes what it
//! has found once more, so that nobody later finds less.
//!
//! [`Acceptor`] is one peer's part, [`Proposal`] one attempt to read or to change. Neither does I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{CandidateId, Nonce};

/// Orders proposals. No two proposals use the same one: the nonce is drawn anew for each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Compared first.
    pub round: u64,
    /// Of the proposal.
    pub nonce: Nonce,
}

impl Ballot {
    /// Lower than any that is proposed.
    pub const ZERO: Ballot = Ballot { round: 0, nonce: Nonce(0) };
}

/// What stands in a register that was ever written.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Counts the changes, from 1.
    pub version: u64,
    /// The token that stands beside the content.
    pub token: u64,
    /// The content.
    pub body: Vec<u8>,
    /// The change that wrote it.
    pub writer: Nonce,
}

/// A value under the ballot that it was accepted with; `None`: the register was never written.
pub type Accepted = (Ballot, Option<Entry>);

/// One peer's part. What it answers must be durable before it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Acceptor {
    promised: Ballot,
    accepted: Accepted,
}

impl Default for Acceptor {
    fn default() -> Acceptor {
        Acceptor { promised: Ballot::ZERO, accepted: (Ballot::ZERO, None) }
    }
}

/// What a proposal asks of every peer.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Ask {
    /// What have you accepted? Changes nothing.
    Peek,
    /// Accept nothing below this ballot any more, and say what you have accepted.
    Prepare(Ballot),
    /// Accept this.
    Accept(Ballot, Option<Entry>),
}

/// A peer's answer.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Ask::Peek`] and [`Ask::Prepare`]: this is accepted.
    Holds(Accepted),
    /// To [`Ask::Accept`]: done.
    Accepted,
    /// No: this higher ballot was promised.
    Refused(Ballot),
}

impl Acceptor {
    /// Answers. True if the state has changed and must be made durable first.
    pub fn handle(&mut self, ask: Ask) -> (Reply, bool) {
        match ask {
            Ask::Peek => (Reply::Holds(self.accepted.clone()), false),
            Ask::Prepare(ballot) | Ask::Accept(ballot, _) if ballot < self.promised => {
                (Reply::Refused(self.promised), false)
            }
            Ask::Prepare(ballot) => {
                let changed = ballot != self.promised;
                self.promised = ballot;
                (Reply::Holds(self.accepted.clone()), changed)
            }
            Ask::Accept(ballot, value) => {
                let changed = self.accepted.0 != ballot;
                self.promised = ballot;
                self.accepted = (ballot, value);
                (Reply::Accepted, changed)
            }
        }
    }
}

/// What is wanted of the register.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Change {
    /// Its value.
    Read,
    /// A new content, if version and token still are these; `None`: if it was never written.
    Swap {
        /// What must stand there.
        expected: Option<(u64, u64)>,
        /// The token of the new content.
        token: u64,
        /// The new content.
        body: Vec<u8>,
    },
}

impl Change {
    /// The outcome, if `value` is known to stand there and nothing need be written.
    fn settled_by(&self, value: &Option<Entry>) -> Option<Outcome> {
        match self {
            Change::Read => Some(Outcome::Read(value.clone())),
            Change::Swap { expected, .. } => {
                let there = value.as_ref().map(|entry| (entry.version, entry.token));
                (there != *expected).then_some(Outcome::Conflict)
            }
        }
    }
}

/// How a proposal ended.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// This stands there.
    Read(Option<Entry>),
    /// It was written, as this version.
    Swapped(u64),
    /// Something else stands there.
    Conflict,
    /// It may have been written, and others have written since.
    Unknown,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Step {
    /// Ask every peer, this one too, and forget what was asked before.
    Ask(Ask),
    /// Others propose at the same time: wait for a short random time, then call [`Proposal::again`].
    Pause,
    /// It is decided.
    Done(Outcome),
}

/// One attempt to read or to change a register.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Proposal {
    change: Change,
    /// Names the change, over all its ballots.
    writer: Nonce,
    members: usize,
    ballot: Ballot,
    phase: Phase,
    /// The version under which a swap may have been accepted somewhere.
    tried: Option<u64>,
    refused_by: Ballot,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Phase {
    Peeking(BTreeMap<CandidateId, Accepted>),
    Preparing(BTreeMap<CandidateId, Accepted>),
    Accepting { outcome: Outcome, by: Vec<CandidateId> },
    Over,
}

impl Proposal {
    /// A proposal among `members` peers, and what to ask first. `nonce` must be random.
    pub fn new(change: Change, members: usize, nonce: Nonce) -> (Proposal, Ask) {
        let proposal = Proposal {
            change,
            writer: nonce,
            members,
            ballot: Ballot { round: 1, nonce },
            phase: Phase::Peeking(BTreeMap::new()),
            tried: None,
            refused_by: Ballot::ZERO,
        };
        (proposal, Ask::Peek)
    }

    /// Begins anew with a higher ballot. `nonce` must be random and another one each time.
    pub fn again(&mut self, nonce: Nonce) -> Ask {
        let round = self.ballot.round.max(self.refused_by.round).saturating_add(1);
        self.ballot = Ballot { round, nonce };
        self.phase = Phase::Preparing(BTreeMap::new());
        Ask::Prepare(self.ballot)
    }

    /// Whether the change may have been done already, should nobody answer any more.
    pub fn may_be_done(&self) -> bool {
        self.tried.is_some()
    }

    /// Takes the answer of one peer to what was asked last.
    pub fn answered(&mut self, from: CandidateId, reply: Reply) -> Option<Step> {
        let quorum = self.members / 2 + 1;
        match (&mut self.phase, reply) {
            (Phase::Over, _) => None,
            (_, Reply::Refused(ballot)) => {
                self.refused_by = self.refused_by.max(ballot);
                // Whoever has promised a higher ballot refuses this one for good.
                self.phase = Phase::Over;
                Some(Step::Pause)
            }
            (Phase::Peeking(answers), Reply::Holds(accepted)) => {
                answers.insert(from, accepted);
                let first = answers.values().next()?;
                if answers.len() < quorum {
                    return None;
                }
                if answers.values().all(|accepted| accepted.0 == first.0)
                    && let Some(outcome) = self.change.settled_by(&first.1)
                {
                    self.phase = Phase::Over;
                    return Some(Step::Done(outcome));
                }
                // Something is to be written, or some write is not everywhere and is settled under a ballot of this one's own.
                let highest = answers.values().map(|accepted| accepted.0).max().unwrap_or(Ballot::ZERO);
                self.ballot.round = highest.round.saturating_add(1);
                self.phase = Phase::Preparing(BTreeMap::new());
                Some(Step::Ask(Ask::Prepare(self.ballot)))
            }
            (Phase::Preparing(answers), Reply::Holds(accepted)) => {
                answers.insert(from, accepted);
                if answers.len() < quorum {
                    return None;
                }
                let highest = answers.values().max_by_key(|accepted| accepted.0).cloned();
                let (value, outcome) = self.changed(highest.and_then(|accepted| accepted.1));
                self.phase = Phase::Accepting { outcome, by: Vec::new() };
                Some(Step::Ask(Ask::Accept(self.ballot, value)))
            }
            (Phase::Accepting { outcome, by }, Reply::Accepted) => {
                if !by.contains(&from) {
                    by.push(from);
                }
                if by.len() < quorum {
                    return None;
                }
                let outcome = outcome.clone();
                self.phase = Phase::Over;
                Some(Step::Done(outcome))
            }
            // An answer to something else that was asked.
            (_, Reply::Holds(_) | Reply::Accepted) => None,
        }
    }

    /// What is to stand there, and what that means for whoever asked.
    fn changed(&mut self, found: Option<Entry>) -> (Option<Entry>, Outcome) {
        let Change::Swap { expected, token, body } = &self.change else {
            return (found.clone(), Outcome::Read(found));
        };
        let there = found.as_ref().map(|entry| (entry.version, entry.token));
        if found.as_ref().is_some_and(|entry| entry.writer == self.writer) {
            let version = found.as_ref().map_or(0, |entry| entry.version);
            return (found, Outcome::Swapped(version));
        }
        if there != *expected {
            // Changes are counted: what stands in this one's own place excludes it, what stands beyond may stand on it.
            let beyond = self.tried.is_some_and(|tried| there.is_some_and(|there| there.0 > tried));
            return (found, if beyond { Outcome::Unknown } else { Outcome::Conflict });
        }
        let version = there.map_or(0, |there| there.0).saturating_add(1);
        self.tried = Some(version);
        let entry = Entry { version, token: *token, body: body.clone(), writer: self.writer };
        (Some(entry), Outcome::Swapped(version))
    }
}
