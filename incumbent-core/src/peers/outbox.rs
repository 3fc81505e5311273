//! The outputs that wait, and what is durable.

use std::collections::VecDeque;

use super::durable::Durable;
use super::message::{Envelope, Term};
use super::output::{Event, Invalidate, Loss, Output, Proof, Save};

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Item<M, E> {
    Save,
    Invalidate(Term, Loss),
    Send(Envelope<M>),
    Event(E),
}

/// The outputs that wait, and what is durable.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Outbox<M, S = Durable, E = Event> {
    items: VecDeque<Item<M, E>>,
    /// More are not kept while a barrier is not done: messages may be lost anyway.
    messages_max: usize,
    /// The barrier that was given out and is not done; the state, if it saves one.
    waiting: Option<(u64, Option<S>)>,
    steps: u64,
    saved: S,
    /// The state that the last queued save covers.
    covered: S,
}

impl<M, S: Clone + PartialEq, E> Outbox<M, S, E> {
    pub(super) fn new(saved: S, messages_max: usize) -> Outbox<M, S, E> {
        let covered = saved.clone();
        Outbox { items: VecDeque::new(), messages_max, waiting: None, steps: 0, saved, covered }
    }

    /// Queues a save if `state` is not covered by one.
    pub(super) fn save(&mut self, state: &S) {
        if self.covered != *state {
            self.covered = state.clone();
            if !matches!(self.items.back(), Some(Item::Save)) {
                self.items.push_back(Item::Save);
            }
        }
    }

    /// Queues a message behind a save of `state`, on which it depends.
    pub(super) fn send(&mut self, state: &S, envelope: Envelope<M>) {
        self.save(state);
        if self.items.len() < self.messages_max {
            self.items.push_back(Item::Send(envelope));
        }
    }

    /// Queues a message that promises nothing, and so depends on no state, before a save that is queued after it.
    pub(super) fn ask(&mut self, envelope: Envelope<M>) {
        if self.items.len() < self.messages_max {
            self.items.push_back(Item::Send(envelope));
        }
    }

    pub(super) fn invalidate(&mut self, term: Term, reason: Loss) {
        self.items.push_back(Item::Invalidate(term, reason));
    }

    pub(super) fn event(&mut self, event: E) {
        self.items.push_back(Item::Event(event));
    }

    /// Tells of `event`; of the last one no more, if nothing came after it and it is of those that `replaced` names.
    pub(super) fn latest_event(&mut self, event: E, replaced: impl FnOnce(&E) -> bool) {
        if let Some(Item::Event(last)) = self.items.back()
            && replaced(last)
        {
            self.items.pop_back();
        }
        self.event(event);
    }

    /// The next output. A save takes `state`, the newest: it covers what is queued, since terms only rise.
    pub(super) fn poll(&mut self, state: &S) -> Option<Output<M, S, E>> {
        while self.waiting.is_none() {
            match self.items.pop_front()? {
                Item::Save if self.saved == *state => {}
                Item::Save => {
                    self.steps += 1;
                    self.waiting = Some((self.steps, Some(state.clone())));
                    return Some(Output::Save(Save { step: self.steps, state: state.clone() }));
                }
                Item::Invalidate(term, reason) => {
                    self.steps += 1;
                    self.waiting = Some((self.steps, None));
                    return Some(Output::Invalidate(Invalidate { step: self.steps, term, reason }));
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
    pub(super) fn is_saved(&self, state: &S) -> bool {
        self.saved == *state
    }
}
