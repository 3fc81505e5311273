//! What peers say to each other.

use serde::{Deserialize, Serialize};

use crate::ids::CandidateId;
use crate::peers::{Acknowledgement, Claim, Term, Words};

/// What one peer says to another.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Message {
    /// To the next peer of the ring.
    Pass {
        /// Names the hop.
        hop: u64,
        /// What goes around.
        word: Word,
    },
    /// The hop has reached me.
    Received {
        /// The hop.
        hop: u64,
    },
    /// Your number is the greatest of all that were collected.
    Chosen,
    /// I am the coordinator of my epoch.
    Heartbeat(Claim),
    /// The answer to [`Message::Heartbeat`] and to [`Word::Elected`], to the coordinator itself.
    HeartbeatAnswer(Acknowledgement),
    /// I led in my epoch and never shall again.
    TakeOver {
        /// The receiver shall claim the next epoch at once. Otherwise all are told, and hold an election.
        named: bool,
    },
}

/// What goes around the ring.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Word {
    /// The greatest number so far (Chang and Roberts).
    Election {
        /// The number.
        number: Number,
        /// Names the attempt of its owner.
        attempt: u64,
        /// The latest epoch that its owner knows to be over for good.
        surrendered: Option<Term>,
        /// How many peers it has been given to.
        hops: u32,
        /// How many would acknowledge a claim of its owner.
        ready: u32,
    },
    /// The numbers of all so far.
    Collect {
        /// Who sent it.
        starter: CandidateId,
        /// Names the attempt of its sender.
        attempt: u64,
        /// The latest epoch that its sender knows to be over for good.
        surrendered: Option<Term>,
        /// The numbers.
        numbers: Vec<Number>,
        /// How many peers it has been given to.
        hops: u32,
        /// How many are bound to no coordinator.
        ready: u32,
    },
    /// The coordinator is elected. Its first heartbeat.
    Elected {
        /// The coordinator.
        coordinator: CandidateId,
        /// Its epoch.
        epoch: Term,
        /// What it says.
        claim: Claim,
        /// How many peers it has been given to.
        hops: u32,
    },
}

/// What is compared: with priorities from the list of peers.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Number {
    /// Whose it is.
    pub id: CandidateId,
    /// How recent its data is.
    pub data_version: u64,
}

impl Word {
    /// Whom it comes back to.
    pub(super) fn owner(&self) -> &CandidateId {
        match self {
            Word::Election { number, .. } => &number.id,
            Word::Collect { starter, .. } => starter,
            Word::Elected { coordinator, .. } => coordinator,
        }
    }

    /// What tells it from the others of its owner.
    pub(super) fn attempt(&self) -> u64 {
        match self {
            Word::Election { attempt, .. } | Word::Collect { attempt, .. } => *attempt,
            Word::Elected { epoch, .. } => epoch.0,
        }
    }

    pub(super) fn is_elected(&self) -> bool {
        matches!(self, Word::Elected { .. })
    }

    /// Counts another hop. `false` if it has been around already.
    pub(super) fn hop(&mut self, members: usize) -> bool {
        let (Word::Election { hops, .. } | Word::Collect { hops, .. } | Word::Elected { hops, .. }) = self;
        *hops = hops.saturating_add(1);
        *hops as usize <= members
    }
}

impl Words for Message {
    fn kind(&self) -> &'static str {
        match self {
            Message::Pass { word: Word::Election { .. }, .. } => "election",
            Message::Pass { word: Word::Collect { .. }, .. } => "collect",
            Message::Pass { word: Word::Elected { .. }, .. } => "elected",
            Message::Received { .. } => "received",
            Message::Chosen => "chosen",
            Message::Heartbeat(_) => "heartbeat",
            Message::HeartbeatAnswer(_) => "heartbeat answer",
            Message::TakeOver { .. } => "take over",
        }
    }

    fn is_answer(&self) -> bool {
        matches!(self, Message::Received { .. } | Message::HeartbeatAnswer(_))
    }

    fn proposed(&self) -> Term {
        match self {
            Message::Pass { word: Word::Elected { epoch, .. }, .. } => *epoch,
            _ => Term(0),
        }
    }

    fn heartbeat(claim: Claim) -> Message {
        Message::Heartbeat(claim)
    }

    fn acknowledgement(acknowledgement: Acknowledgement) -> Message {
        Message::HeartbeatAnswer(acknowledgement)
    }

    fn take_over(named: bool) -> Message {
        Message::TakeOver { named }
    }
}
