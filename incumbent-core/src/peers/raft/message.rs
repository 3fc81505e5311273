//! What peers say to each other.

use core::fmt;

use crate::ids::{Authority, CandidateId, FencingToken};

/// A term of Raft: at most one peer leads in it. It is the leader's fencing token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// A message whose term is further ahead than this is refused: an election a millisecond would take 49 days to get
    /// there, while one message of a faulty peer could use up all numbers for good.
    pub const LEAP_MAX: u64 = 1 << 32;

    /// The token of whoever leads in this term.
    pub fn token(self) -> FencingToken {
        FencingToken(self.0)
    }

    pub(super) fn next(self) -> Option<Term> {
        self.0.checked_add(1).map(Term)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message with its address.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Envelope {
    /// The cluster of the sender.
    pub cluster: Authority,
    /// The sender.
    pub from: CandidateId,
    /// The receiver.
    pub to: CandidateId,
    /// The sender's term.
    pub term: Term,
    /// What is said.
    pub message: Message,
}

/// What one peer says to another.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Message {
    /// Would you vote for me? (dissertation §9.6) Changes nothing at the receiver.
    PreVote {
        /// The term that the sender would ask for.
        proposed: Term,
        /// Names this attempt.
        attempt: u64,
        /// What is asked.
        ballot: Ballot,
    },
    /// The answer to [`Message::PreVote`].
    PreVoteAnswer {
        /// The attempt that is answered.
        attempt: u64,
        /// The receiver would vote for it.
        granted: bool,
    },
    /// Vote for me in my term (RequestVote, §5.2).
    Vote(Ballot),
    /// The answer to [`Message::Vote`].
    VoteAnswer {
        /// The term in which the vote was asked.
        asked: Term,
        /// The vote is given, and is durable.
        granted: bool,
    },
    /// I lead in my term (AppendEntries without entries, §5.2).
    Heartbeat {
        /// The number of the round, from 1 in each term.
        round: u64,
    },
    /// The answer to [`Message::Heartbeat`]. With the asked term as its own, the sender promises to vote for nobody for
    /// one ttl on its own clock; with a greater one, it follows another term.
    HeartbeatAnswer {
        /// The term of the heartbeat.
        asked: Term,
        /// The round that is answered.
        round: u64,
        /// The sender's data version.
        data_version: u64,
    },
    /// I led in my term and never shall again: campaign at once (dissertation §3.10).
    TimeoutNow,
}

/// What a candidate shows to a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ballot {
    /// How recent the candidate's data is (an LSN, say): a voter with a greater one refuses (§5.4.1).
    pub data_version: u64,
    /// The latest term that is known to be over for good: promises to it and to earlier ones bind nobody.
    pub surrendered: Option<Term>,
}

/// Why a message was not taken. It changed nothing; whoever sent it should be cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Refusal {
    /// It is from another cluster.
    OtherCluster,
    /// Its sender is not one of the members, or is this peer.
    UnknownSender,
    /// It is for another peer.
    OtherReceiver,
    /// Its term is more than [`Term::LEAP_MAX`] ahead of this peer's.
    TermTooGreat,
    /// It claims a term that another peer leads: two peers use one name or one state, or a state was lost.
    SecondLeader,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::OtherCluster => "the sender belongs to another cluster; check its list of peers",
            Refusal::UnknownSender => "the sender is not in this peer's list; make the lists of peers equal",
            Refusal::OtherReceiver => "the message is for another peer; check the addresses in the list of peers",
            Refusal::TermTooGreat => "the term is further ahead than elections get; check the sender, and whether a state was lost",
            Refusal::SecondLeader => {
                "two peers claim one term; look for two peers with one name or for a state that was copied or lost"
            }
        })
    }
}

impl core::error::Error for Refusal {}
