//! Elections without a store: the peers elect among themselves. [`Protocol`] is what Raft, Bully and Ring have in common.
//!
//! A peer is a pure state machine: messages in, outputs out, time passed in. Its caller loops: hand over what happened
//! ([`Protocol::handle_message`]) or that time has passed ([`Protocol::handle_timeout`]), then take every [`Output`], do
//! it, and hand in the [`Proof`] where there is one ([`Protocol::handle_proof`]), then wait until
//! [`Protocol::poll_timeout`] or the next message.
//!
//! Why two leaderships are never valid at one instant, with a majority:
//!
//! - A leader trusts a round of heartbeats only if a quorum acknowledged it, counted from its send. Each acknowledgement
//!   is a promise to vote for nobody until later than that trust ends ([`PeerTiming`](crate::timing::PeerTiming)). A later
//!   leader needs the vote of one of them, who gives it after its promise.
//! - A promise survives a restart: a peer that starts votes for nobody for as long as a promise made just before lasts.
//! - A promise ends early only by surrender: the leader of that term, or of a later one, has been marked invalid and says
//!   so. A leader marks itself invalid before anything that it sends afterwards, and never leads in that term again.
//! - Term and vote are durable before any message that depends on them. A request for votes does not: it promises nothing, and the
//!   vote of the one that asks counts only once it is durable.
//!
//! It holds while clocks keep to the bound of their rates, whatever the network and the processes do.

pub mod bully;
mod claim;
mod config;
mod durable;
mod lead;
mod member;
pub mod members;
mod message;
mod outbox;
mod output;
mod peer;
mod promise;
pub mod raft;
pub mod register;
pub mod ring;

use core::fmt::Debug;

pub use self::claim::{ClaimConfig, Criterion};
pub use self::config::{Config, List, Place, Priority};
pub use self::durable::Durable;
pub use self::message::{Acknowledgement, Ballot, Claim, Envelope, Refusal, Term, Words};
pub use self::output::{Event, Invalidate, Loss, Output, Proof, Save, Trust};

use crate::error::Result;
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// One peer's part in one election.
pub trait Protocol: Clone + Debug + Send + Sized + 'static {
    /// What a peer is told once.
    type Config: Clone + Debug + Send + 'static;
    /// What peers say to each other.
    type Message: Words;

    /// A peer that starts at `started_at`, by the boot clock, with what it made durable before. `seed` must be random and
    /// another one at every start: the random waits come from it. It only votes until it is told to [stand](Self::stand).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the peer is not among the members, or `durable` is
    /// another peer's.
    fn new(config: Self::Config, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Self>;

    /// The cluster, this peer, the list in force, the intervals.
    fn config(&self) -> &Config;

    /// Takes a message. `now` must be read *after* the message was received: the promise in the answer counts from it.
    ///
    /// # Errors
    /// Why it was refused. It changed nothing.
    fn handle_message(
        &mut self,
        now: BootInstant,
        envelope: Envelope<Self::Message>,
    ) -> core::result::Result<(), Refusal>;

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: BootInstant);

    /// Takes the proof that a [`Save`] or [`Invalidate`] was done: what waited for it comes out next.
    fn handle_proof(&mut self, now: BootInstant, proof: Proof);

    /// The next thing to do; take them all before waiting. `None` also while a barrier is not proven done.
    fn poll_output(&mut self) -> Option<Output<Self::Message>>;

    /// When [`Protocol::handle_timeout`] is due next, if nothing else happens.
    fn poll_timeout(&self) -> Option<BootInstant>;

    /// Asks for the leadership from now until `until`, which replaces what was said before. A peer whose standing has
    /// lapsed only votes; if it leads, it gives up as if by [`Protocol::surrender`]. To be repeated for as long as somebody
    /// wants to lead here, so that who vanished keeps nothing.
    fn stand(&mut self, now: BootInstant, until: BootInstant);

    /// Gives up the term and asks a successor to campaign at once: `to`, or the best of those that stand and answered the
    /// latest rounds (dissertation §3.10). To be called when the work is confirmed stopped; [`Output::Invalidate`] comes
    /// before the message to the successor. If nobody is known to stand, all are told that the term is over. Afterwards this peer
    /// does not stand. Does nothing if it does not lead.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): `to` is this peer, or no member, or one that only
    /// votes. [`ErrorKind::NotFound`](crate::ErrorKind::NotFound): `to` does not stand, as far as it has said. The term
    /// goes on.
    fn surrender(&mut self, now: BootInstant, to: Option<&CandidateId>) -> Result<()>;

    /// Puts a later list in force, which must be durable here. An earlier one changes nothing. A leader that is not in it
    /// gives up.
    fn set_list(&mut self, now: BootInstant, list: List);

    /// How recent this peer's data is (an LSN, say). 0 until told.
    fn set_data_version(&mut self, data_version: u64);

    /// Who leads, as far as this peer knows. Itself only once a quorum has acknowledged it.
    fn leader(&self) -> Option<&CandidateId>;

    /// This peer's own leadership, if it leads. For tests and displays: who acts on it reads the clock at the point of use.
    fn leadership(&self) -> Option<Trust>;

    /// The latest term (epoch) that this peer has seen. May not be durable yet.
    fn term(&self) -> Term;
}
