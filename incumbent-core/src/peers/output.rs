//! What a peer wants done, in an order that its types enforce.
//!
//! [`Output::Save`] and [`Output::Invalidate`] are barriers: nothing that was said after them comes out of
//! [`Protocol::poll_output`](super::Protocol::poll_output) before their [`Proof`] was handed in, and only doing what they
//! ask for gives that proof.

use super::durable::Durable;
use super::message::{Envelope, Term};
use crate::ids::{CandidateId, FencingToken};
use crate::time::BootInstant;

/// Something to do.
#[derive(PartialEq, Eq, Debug)]
pub enum Output<M, S = Durable, E = Event> {
    /// Make this state durable.
    Save(Save<S>),
    /// Mark the leadership invalid.
    Invalidate(Invalidate),
    /// Send this. It may be lost, late, doubled and overtaken.
    Send(Envelope<M>),
    /// Tell the user.
    Event(E),
}

/// A leadership as far as it is proven. Instants are by this peer's boot clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Trust {
    /// The term.
    pub term: Term,
    /// The term as a fencing token. `None` where no majority decides: then there may be another leader.
    pub token: Option<FencingToken>,
    /// When the latest round of heartbeats was sent that a quorum acknowledged.
    pub sent_at: BootInstant,
    /// Valid until then, unless extended.
    pub valid_until: BootInstant,
}

/// What the user is told.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Event {
    /// This peer leads.
    Elected(Trust),
    /// The same term is valid for longer.
    Extended(Trust),
    /// This other peer leads, or none does, as far as this one knows.
    LeaderChanged(Option<CandidateId>),
}

/// Why a term is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Loss {
    /// No quorum acknowledged a heartbeat in time.
    Expired,
    /// A peer has seen a later term, or a greater coordinator, or two lists of peers were adopted at once.
    Superseded,
    /// It was given up: on request, for a greater peer, or because nobody wants to lead here any more.
    Surrendered,
}

/// A request to make a state durable; not given again, so keep it until it succeeds. A peer that drops it is mute until it
/// starts anew, which harms nobody.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the peer stays mute until the proof is handed in"]
pub struct Save<S = Durable> {
    pub(super) step: u64,
    pub(super) state: S,
}

impl<S> Save<S> {
    /// Has `store` make the state durable: when it returns `Ok`, the state must survive a loss of power.
    ///
    /// # Errors
    /// What `store` returned, and the request, to try it again.
    pub fn with<E>(
        self,
        store: impl FnOnce(&S) -> core::result::Result<(), E>,
    ) -> core::result::Result<Proof, (Save<S>, E)> {
        match store(&self.state) {
            Ok(()) => Ok(Proof { step: self.step }),
            Err(error) => Err((self, error)),
        }
    }
}

/// A request to mark the leadership of a term invalid, for good.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the peer stays mute until the proof is handed in"]
pub struct Invalidate {
    pub(super) step: u64,
    /// The term that is over.
    pub term: Term,
    /// Why.
    pub reason: Loss,
}

impl Invalidate {
    /// Has `mark` mark it: when it returns, no check of this leadership may succeed any more.
    pub fn with(self, mark: impl FnOnce(Term, Loss)) -> Proof {
        mark(self.term, self.reason);
        Proof { step: self.step }
    }
}

/// Proof that a barrier was done, for the peer that asked for it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the peer stays mute until the proof is handed in"]
pub struct Proof {
    pub(super) step: u64,
}
