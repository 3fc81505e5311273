//! What peers say to each other.

use serde::{Deserialize, Serialize};

use crate::peers::{Acknowledgement, Ballot, Claim, Term, Words};

/// What one peer says to another.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
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
        /// The sender would.
        granted: bool,
    },
    /// Vote for me in my term (RequestVote, §5.2). The term may not be durable at the sender yet.
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
    /// The answer to [`Message::Heartbeat`].
    HeartbeatAnswer(Acknowledgement),
    /// I led in my term and never shall again: campaign at once (dissertation §3.10).
    TimeoutNow,
}

impl Words for Message {
    fn kind(&self) -> &'static str {
        match self {
            Message::PreVote { .. } => "pre-vote",
            Message::PreVoteAnswer { .. } => "pre-vote answer",
            Message::Vote(_) => "vote",
            Message::VoteAnswer { .. } => "vote answer",
            Message::Heartbeat { .. } => "heartbeat",
            Message::HeartbeatAnswer(_) => "heartbeat answer",
            Message::TimeoutNow => "timeout now",
        }
    }

    fn is_answer(&self) -> bool {
        matches!(
            self,
            Message::PreVoteAnswer { .. } | Message::VoteAnswer { .. } | Message::HeartbeatAnswer(_)
        )
    }

    fn proposed(&self) -> Term {
        match self {
            Message::PreVote { proposed, .. } => *proposed,
            _ => Term(0),
        }
    }

    fn heartbeat(claim: Claim) -> Message {
        Message::Heartbeat { round: claim.round }
    }

    fn acknowledgement(acknowledgement: Acknowledgement) -> Message {
        Message::HeartbeatAnswer(acknowledgement)
    }

    fn take_over(_named: bool) -> Message {
        Message::TimeoutNow
    }
}
