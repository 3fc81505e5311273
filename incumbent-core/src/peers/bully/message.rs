//! What peers say to each other.

use serde::{Deserialize, Serialize};

use crate::peers::{Acknowledgement, Ballot, Claim, Term, Words};

/// What one peer says to another.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Message {
    /// ELECTION: is anybody there that is greater? With a majority also: who would acknowledge me?
    Election {
        /// Names this attempt.
        attempt: u64,
        /// What is asked.
        ballot: Ballot,
    },
    /// ANSWER. Without a majority only a greater peer answers.
    Answer {
        /// The attempt that is answered.
        attempt: u64,
        /// The sender is greater, and holds an election itself.
        greater: bool,
        /// The sender would acknowledge the receiver as coordinator. `false` without a majority.
        ready: bool,
    },
    /// COORDINATOR, in the first round; then a heartbeat.
    Coordinator(Claim),
    /// The answer to [`Message::Coordinator`].
    CoordinatorAnswer(Acknowledgement),
    /// I am greater than you, and a majority hears me: surrender to me. Only with a majority.
    Yield {
        /// The sender's data version.
        data_version: u64,
    },
    /// I led in my epoch and never shall again.
    TakeOver {
        /// The receiver shall claim the next epoch at once. Otherwise all are told, and hold an election.
        named: bool,
    },
}

impl Words for Message {
    fn kind(&self) -> &'static str {
        match self {
            Message::Election { .. } => "election",
            Message::Answer { .. } => "answer",
            Message::Coordinator(Claim { round: 1, .. }) => "coordinator",
            Message::Coordinator(_) => "heartbeat",
            Message::CoordinatorAnswer(_) => "heartbeat answer",
            Message::Yield { .. } => "yield",
            Message::TakeOver { .. } => "take over",
        }
    }

    fn is_answer(&self) -> bool {
        matches!(self, Message::Answer { .. } | Message::CoordinatorAnswer(_))
    }

    fn proposed(&self) -> Term {
        Term(0)
    }

    fn heartbeat(claim: Claim) -> Message {
        Message::Coordinator(claim)
    }

    fn acknowledgement(acknowledgement: Acknowledgement) -> Message {
        Message::CoordinatorAnswer(acknowledgement)
    }

    fn take_over(named: bool) -> Message {
        Message::TakeOver { named }
    }
}
