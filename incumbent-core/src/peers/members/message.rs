//! What peers say to each other about their list.

use serde::{Deserialize, Serialize};

use crate::ids::CandidateId;
use crate::peers::List;

/// A proposal's number: greater ones come later, and no two proposers share one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// From 1 up.
    pub round: u64,
    /// Whose it is.
    pub proposer: CandidateId,
}

/// What one peer says to another. The envelope's list is the one whose successor is decided; its term is the
/// greatest that the sender has seen in any election.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Phase 1: answer no turn before this one.
    Prepare {
        /// The turn.
        turn: Turn,
    },
    /// The answer to [`Message::Prepare`].
    Promised {
        /// The turn.
        turn: Turn,
        /// What the sender has accepted in an earlier turn.
        accepted: Option<(Turn, List)>,
    },
    /// Phase 2: accept this list.
    Accept {
        /// The turn.
        turn: Turn,
        /// The list.
        list: List,
    },
    /// The answer to [`Message::Accept`].
    Accepted {
        /// The turn.
        turn: Turn,
    },
    /// The sender answers no turn before this one.
    Refused {
        /// The turn.
        turn: Turn,
    },
    /// This list is decided, and durable at the sender.
    Adopt(List),
    /// A list of this version is durable at the sender.
    Adopted {
        /// The version.
        version: u64,
    },
    /// What is your list?
    Ask,
}
