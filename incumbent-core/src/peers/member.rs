//! What a protocol adds to a [`Peer`]. [`Protocol`] follows from it, once for all.

use core::fmt::Debug;

use super::peer::Peer;
use super::{Config, Durable, Envelope, List, Output, Proof, Protocol, Refusal, Term, Trust, Words};
use crate::error::Result;
use crate::ids::CandidateId;
use crate::time::BootInstant;

pub trait Member: Clone + Debug + Send + Sized + 'static {
    type Config: Clone + Debug + Send + 'static;
    type Message: Words;

    fn make(config: Self::Config, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Self>;

    fn peer(&self) -> &Peer<Self::Message>;

    fn peer_mut(&mut self) -> &mut Peer<Self::Message>;

    /// Refuses what must not be looked at: also what only one peer may say in a term, from a second one.
    fn check(&self, envelope: &Envelope<Self::Message>) -> core::result::Result<(), Refusal>;

    /// Takes a message that was checked.
    fn take(&mut self, now: BootInstant, from: CandidateId, term: Term, message: Self::Message);

    /// A barrier is done.
    fn proven(&mut self, now: BootInstant);

    /// This peer stands, leads nobody and hears no leader: it does something about it.
    fn elect(&mut self, now: BootInstant);

    /// Drops what it is about as a candidate.
    fn idle(&mut self);

    /// Another list is in force.
    fn list_changed(&mut self) {
        self.idle();
    }

    /// Ends what may not outlive `now`.
    fn expire(&mut self, now: BootInstant) {
        self.peer_mut().expire(now);
        if !self.peer().stands(now) {
            self.idle();
        }
    }

    /// What else is due at `now`.
    fn tend(&mut self, _now: BootInstant) {}

    /// When [`Member::tend`] is due.
    fn tend_at(&self) -> Option<BootInstant> {
        None
    }

    /// Starts what is due at `now`.
    fn advance(&mut self, now: BootInstant) {
        self.tend(now);
        match &self.peer().lead {
            Some(lead) if now >= lead.next_round_at => self.peer_mut().send_round(now),
            Some(_) => {}
            None if now >= self.peer().election_at && self.peer().stands(now) => self.elect(now),
            None => {}
        }
    }
}

impl<T: Member> Protocol for T {
    type Config = T::Config;
    type Message = T::Message;

    fn new(config: T::Config, durable: Durable, seed: u128, started_at: BootInstant) -> Result<T> {
        T::make(config, durable, seed, started_at)
    }

    fn config(&self) -> &Config {
        &self.peer().config
    }

    fn handle_message(
        &mut self,
        now: BootInstant,
        envelope: Envelope<T::Message>,
    ) -> core::result::Result<(), Refusal> {
        self.expire(now);
        self.check(&envelope)?;
        let Envelope { from, term, message, .. } = envelope;
        self.take(now, from, term, message);
        self.advance(now);
        Ok(())
    }

    fn handle_timeout(&mut self, now: BootInstant) {
        self.expire(now);
        self.advance(now);
    }

    fn handle_proof(&mut self, now: BootInstant, proof: Proof) {
        self.expire(now);
        self.peer_mut().outbox.done(&proof);
        self.proven(now);
        self.advance(now);
    }

    fn poll_output(&mut self) -> Option<Output<T::Message>> {
        let peer = self.peer_mut();
        peer.outbox.poll(&peer.durable)
    }

    fn poll_timeout(&self) -> Option<BootInstant> {
        let peer = self.peer();
        let own = peer.lead_due().or_else(|| peer.election_due());
        own.into_iter().chain(self.tend_at()).min()
    }

    fn stand(&mut self, now: BootInstant, until: BootInstant) {
        self.peer_mut().standing_until = until;
        self.handle_timeout(now);
    }

    fn surrender(&mut self, now: BootInstant, to: Option<&CandidateId>) -> Result<()> {
        self.expire(now);
        self.peer_mut().surrender(now, to)
    }

    fn set_list(&mut self, now: BootInstant, list: List) {
        if self.peer_mut().set_list(now, list) {
            self.list_changed();
            self.handle_timeout(now);
        }
    }

    fn set_data_version(&mut self, data_version: u64) {
        self.peer_mut().data_version = data_version;
    }

    fn leader(&self) -> Option<&CandidateId> {
        self.peer().leader.as_ref()
    }

    fn leadership(&self) -> Option<Trust> {
        self.peer().leadership()
    }

    fn term(&self) -> Term {
        self.peer().durable.term
    }
}
