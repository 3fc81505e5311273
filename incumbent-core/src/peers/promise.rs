//! Promises: what forbids a peer to vote.

use super::message::Term;
use super::peer::Peer;
use crate::time::BootInstant;

/// To vote for nobody before `until`, unless the leader of `term` or of a later one has surrendered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct Promise {
    pub(super) until: BootInstant,
    /// The latest term to which anything was promised.
    pub(super) term: Term,
}

impl<M> Peer<M> {
    /// Whether a promise forbids to vote. One rule for every vote, this peer's for itself too. Where no majority decides
    /// nobody votes, and a promise says only until when a leader is taken to be alive.
    pub(super) fn bound(&self, now: BootInstant) -> bool {
        self.exclusive && now < self.promise.until && self.surrendered < Some(self.promise.term)
    }

    /// Promises to vote for nobody for one ttl from `now`.
    pub(super) fn promise(&mut self, now: BootInstant) {
        let until = self.config.timing.promise_end(now).max(self.promise.until);
        self.promise = Promise { until, term: self.durable.term };
    }

    /// Believes another peer that says that `term` is over.
    pub(super) fn learn_surrendered(&mut self, term: Option<Term>) {
        self.surrendered = self.surrendered.max(term);
    }
}
