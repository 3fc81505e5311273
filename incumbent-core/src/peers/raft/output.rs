//! What a peer wants done, in an order that its types enforce.
//!
//! [`Output::Save`] and [`Output::Invalidate`] are barriers: nothing that was said after them comes out of
//! [`Raft::poll_output`](super::Raft::poll_output) before their [`Proof`] was handed in, and only doing what they ask for
//! gives that proof.

use std::collections::VecDeque;

use super::message::{Envelope, Term};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, CandidateId, FencingToken};
use crate::time::BootInstant;

/// What must outlive a crash. Whoever loses or copies it may vote twice in one term.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Durable {
    /// The cluster that it belongs to.
    pub cluster: Authority,
    /// The peer that it belongs to.
    pub id: CandidateId,
    /// The latest term that the peer has seen.
    pub term: Term,
    /// For whom it voted in that term.
    pub voted_for: Option<CandidateId>,
}

impl Durable {
    /// The state of a peer that has never taken part. To be made once in a peer's life.
    pub fn new(cluster: Authority, id: CandidateId) -> Durable {
        Durable { cluster, id, term: Term(0), voted_for: None }
    }

    pub(super) fn check(&self, cluster: &Authority, id: &CandidateId) -> Result<()> {
        if self.cluster != *cluster || self.id != *id {
            let message = format!(
                "the state belongs to peer {} of cluster {}, not to {id} of {cluster}; give each peer a state of its own",
                self.id, self.cluster
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(())
    }
}

/// Something to do.
#[derive(PartialEq, Eq, Debug)]
pub enum Output {
    /// Make this state durable.
    Save(Save),
    /// Mark the leadership invalid.
    Invalidate(Invalidate),
    /// Send this. It may be lost, late, doubled and overtaken.
    Send(Envelope),
    /// Tell the user.
    Event(Event),
}

/// What the user is told.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Event {
    /// This peer leads. Valid until the deadline unless extended.
    Elected {
        /// The term.
        token: FencingToken,
        /// By this peer's boot clock.
        valid_until: BootInstant,
    },
    /// The term is valid until this later deadline.
    Extended {
        /// By this peer's boot clock.
        valid_until: BootInstant,
    },
    /// This other peer leads, or none does, as far as this one knows.
    LeaderChanged(Option<CandidateId>),
}

/// Why a term is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Loss {
    /// No quorum acknowledged a heartbeat in time.
    Expired,
    /// A peer has seen a later term.
    Superseded,
    /// It was given up on request.
    Surrendered,
}

/// A request to make a state durable; not given again, so keep it until it succeeds. A peer that drops it is mute until it
/// starts anew, which harms nobody.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the peer stays mute until the proof is handed in"]
pub struct Save {
    step: u64,
    state: Durable,
}

impl Save {
    /// Has `store` make the state durable: when it returns `Ok`, the state must survive a loss of power.
    ///
    /// # Errors
    /// What `store` returned, and the request, to try it again.
    pub fn with<E>(
        self,
        store: impl FnOnce(&Durable) -> core::result::Result<(), E>,
    ) -> core::result::Result<Proof, (Save, E)> {
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
    step: u64,
    /// The term that is over.
    pub token: FencingToken,
    /// Why.
    pub reason: Loss,
}

impl Invalidate {
    /// Has `mark` mark it: when it returns, no check of this leadership may succeed any more.
    pub fn with(self, mark: impl FnOnce(FencingToken, Loss)) -> Proof {
        mark(self.token, self.reason);
        Proof { step: self.step }
    }
}

/// Proof that a barrier was done, for the peer that asked for it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the peer stays mute until the proof is handed in"]
pub struct Proof {
    step: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Item {
    Save,
    Invalidate(FencingToken, Loss),
    Send(Envelope),
    Event(Event),
}

/// The outputs that wait, and what is durable.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Outbox {
    items: VecDeque<Item>,
    /// More are not kept while a barrier is not done: messages may be lost anyway.
    messages_max: usize,
    /// The barrier that was given out and is not done; the state, if it saves one.
    waiting: Option<(u64, Option<Durable>)>,
    steps: u64,
    saved: Durable,
    /// The state that the last queued save covers.
    covered: Durable,
}

impl Outbox {
    pub(super) fn new(saved: Durable, messages_max: usize) -> Outbox {
        let covered = saved.clone();
        Outbox { items: VecDeque::new(), messages_max, waiting: None, steps: 0, saved, covered }
    }

    /// Queues a save if `state` is not covered by one.
    pub(super) fn save(&mut self, state: &Durable) {
        if self.covered != *state {
            self.covered = state.clone();
            if self.items.back() != Some(&Item::Save) {
                self.items.push_back(Item::Save);
            }
        }
    }

    /// Queues a message behind a save of `state`, on which it depends.
    pub(super) fn send(&mut self, state: &Durable, envelope: Envelope) {
        self.save(state);
        if self.items.len() < self.messages_max {
            self.items.push_back(Item::Send(envelope));
        }
    }

    pub(super) fn invalidate(&mut self, token: FencingToken, reason: Loss) {
        self.items.push_back(Item::Invalidate(token, reason));
    }

    pub(super) fn event(&mut self, event: Event) {
        if let (Some(Item::Event(Event::LeaderChanged(_))), Event::LeaderChanged(_)) =
            (self.items.back(), &event)
        {
            self.items.pop_back();
        }
        self.items.push_back(Item::Event(event));
    }

    /// The next output. A save takes `state`, the newest: it covers what is queued, since terms only rise.
    pub(super) fn poll(&mut self, state: &Durable) -> Option<Output> {
        while self.waiting.is_none() {
            match self.items.pop_front()? {
                Item::Save if self.saved == *state => {}
                Item::Save => {
                    self.steps += 1;
                    self.waiting = Some((self.steps, Some(state.clone())));
                    return Some(Output::Save(Save { step: self.steps, state: state.clone() }));
                }
                Item::Invalidate(token, reason) => {
                    self.steps += 1;
                    self.waiting = Some((self.steps, None));
                    return Some(Output::Invalidate(Invalidate { step: self.steps, token, reason }));
                }
                Item::Send(envelope) => return Some(Output::Send(envelope)),
                Item::Event(event) => return Some(Output::Event(event)),
            }
        }
        None
    }

    /// Takes the proof of the barrier that was given out.
    pub(super) fn done(&mut self, proof: &Proof) {
        if let Some((_, state)) = self.waiting.take_if(|(step, _)| *step == proof.step)
            && let Some(state) = state
        {
            self.saved = state;
        }
    }

    /// Whether `state` is durable.
    pub(super) fn is_saved(&self, state: &Durable) -> bool {
        self.saved == *state
    }
}
