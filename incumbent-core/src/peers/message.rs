//! What the messages of all protocols have in common.

use core::fmt::{self, Debug};
use core::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ids::{Authority, CandidateId, FencingToken};

/// A term of Raft, an epoch of Bully and Ring: at most one peer leads in it, if a majority decides. It is the leader's
/// fencing token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
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
        fmt::Display::fmt(&self.0, f)
    }
}

/// A message with its address.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Envelope<M> {
    /// The cluster of the sender.
    pub cluster: Authority,
    /// The version of the sender's list of peers.
    pub list: u64,
    /// The sender.
    pub from: CandidateId,
    /// The receiver.
    pub to: CandidateId,
    /// The sender's term.
    pub term: Term,
    /// What is said.
    pub message: M,
}

/// What one peer says to another.
pub trait Words:
    Clone + PartialEq + Eq + Debug + Hash + Send + Serialize + DeserializeOwned + 'static
{
    /// Its name where messages are counted.
    fn kind(&self) -> &'static str;

    /// Whether it only answers what the receiver said. Of any other message the receiver must not be on a later list
    /// than the sender, since its answer may be a vote or an acknowledgement.
    fn is_answer(&self) -> bool;

    /// The greatest term that it speaks of, beside its envelope's.
    fn proposed(&self) -> Term;

    /// The leader's heartbeat.
    fn heartbeat(claim: Claim) -> Self;

    /// The answer to a heartbeat.
    fn acknowledgement(acknowledgement: Acknowledgement) -> Self;

    /// The sender led in its term and never shall again: campaign at once. Or, if the receiver is not `named`, since nobody
    /// is known to stand: nobody leads any more.
    fn take_over(named: bool) -> Self;
}

/// What a leader says with a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The number of the round, from 1 in each term.
    pub round: u64,
    /// A quorum has acknowledged an earlier round, or none is needed.
    pub established: bool,
    /// What voters may want to know.
    pub ballot: Ballot,
}

/// The answer to a heartbeat. With the asked term as its own, the sender promises to vote for nobody for one ttl on its own
/// clock; with a greater one, it follows another term.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// The term of the heartbeat.
    pub asked: Term,
    /// The round that is answered.
    pub round: u64,
    /// The sender's data version.
    pub data_version: u64,
    /// The sender would lead, if it were its turn.
    pub standing: bool,
}

/// What a candidate shows to a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// How recent the candidate's data is (an LSN, say): a voter with a greater one refuses (§5.4.1).
    pub data_version: u64,
    /// The latest term that is known to be over for good: promises to it and to earlier ones bind nobody.
    pub surrendered: Option<Term>,
}

/// Why a message was not taken. It changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Refusal {
    /// It is from another cluster.
    OtherCluster,
    /// Its sender is not one of the members, or is this peer.
    UnknownSender,
    /// It is for another peer.
    OtherReceiver,
    /// Its sender has an older list of peers, which this peer may not vote or acknowledge under any more.
    OlderList,
    /// Its sender has a list of peers that is more than one step ahead of this peer's.
    NewerList,
    /// Its term is more than [`Term::LEAP_MAX`] ahead of this peer's.
    TermTooGreat,
    /// It claims a term that another peer leads: two peers use one name or one state, or a state was lost.
    SecondLeader,
}

impl Refusal {
    /// Whether it shows a fault of the sender, which should be cut off, rather than a list of peers that is on its way.
    pub fn is_fault(self) -> bool {
        !matches!(self, Refusal::OlderList | Refusal::NewerList | Refusal::UnknownSender)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::OtherCluster => "the sender belongs to another cluster; check its list of peers",
            Refusal::UnknownSender => "the sender is not in this peer's list; make the lists of peers equal",
            Refusal::OtherReceiver => "the message is for another peer; check the addresses in the list of peers",
            Refusal::OlderList => "the sender has an older list of peers; give it the newer one",
            Refusal::NewerList => "the sender has a list of peers that is newer by more than one change; give this peer the newer one",
            Refusal::TermTooGreat => "the term is further ahead than elections get; check the sender, and whether a state was lost",
            Refusal::SecondLeader => {
                "two peers claim one term; look for two peers with one name or for a state that was copied or lost"
            }
        })
    }
}

impl core::error::Error for Refusal {}
