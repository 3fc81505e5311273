//! What an elector is told, what it wants done, and what it tells.

use crate::backend::{Acquired, Claim, Grant, Leader, Renewed};
use crate::error::{Error, Result};
use crate::handover::HandoverRequest;
use crate::ids::{CandidateId, ElectionName};
use crate::time::BootInstant;

/// Names one call to the backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct CallId(pub(super) u64);

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Input {
    /// A call was answered. Answers to calls that were cancelled are ignored.
    Answer(CallId, Answer),
    /// The backend hinted at a change, or hints may have been lost.
    Look,
    /// The candidate is told to go.
    Stop(StopReason),
    /// The work of the current term is confirmed stopped: not running, and never to run again.
    WorkStopped,
    /// Someone saw the deadline pass before an extension of it was published: the term is over.
    Expired,
    /// Whoever could confirm that the work stopped is gone. The term is over, its grant runs out, and there is no
    /// further campaign.
    Abandoned,
}

/// The answer to a [`Call`] of the same name.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Answer {
    /// To [`Call::Acquire`].
    Acquire(Result<Acquired>),
    /// To [`Call::Renew`].
    Renew(Result<Renewed>),
    /// To [`Call::Release`].
    Release(Result<()>),
    /// To [`Call::ReadHandover`]. A note that cannot be understood is the error of
    /// [`HandoverRequest::decode`], and is ignored.
    ReadHandover(Result<Option<HandoverRequest>>),
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Output {
    /// Make this call and hand its answer back.
    Call(CallId, Call),
    /// Drop the call of this id: its answer is not waited for any more.
    Cancel(CallId),
    /// Tell the user.
    Event(Event),
}

/// A call to the backend.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Call {
    /// [`Backend::try_acquire`](crate::Backend::try_acquire)
    Acquire(Claim),
    /// [`Backend::renew`](crate::Backend::renew)
    Renew(Claim, Grant),
    /// [`Backend::release`](crate::Backend::release)
    Release(Claim, Option<Grant>, Option<CandidateId>),
    /// Read the note [`Handover`](crate::Note::Handover) of this election.
    ReadHandover(ElectionName),
}

/// Why a term is given up while it still is valid.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum StopReason {
    /// Asked to resign; the candidate campaigns again after a pause.
    Resigned,
    /// Asked to hand over, to a named candidate or to whoever is next; the candidate campaigns again after a pause.
    Handover(Option<CandidateId>),
    /// The candidate shuts down for good.
    Shutdown,
    /// The work has not said that it is alive.
    Stalled,
    /// Nothing renewed the grant in time; the deadline is near.
    Outage,
}

/// Why a term is over.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum LossReason {
    /// The work was told to go and is confirmed stopped.
    Stopped(StopReason),
    /// The deadline passed without a renewal.
    Expired,
    /// Proof that the grant is gone; who leads now, if anyone.
    Superseded(Option<Leader>),
    /// The work was told to go and did not stop within the drain bound. The grant is not released, it runs out.
    DrainOverran(StopReason),
}

/// What the user is told.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Event {
    /// A term begins. Valid until the deadline unless extended.
    Elected(Grant, BootInstant),
    /// The term is valid until this later deadline.
    Extended(BootInstant),
    /// The work shall stop, at the latest by `until`. Said once in a term.
    Stopping {
        /// Why.
        reason: StopReason,
        /// The drain bound, or the deadline in an outage.
        until: Option<BootInstant>,
    },
    /// The term is over: its leadership is invalid from now on. Said once in a term.
    Lost(LossReason),
    /// Another leads, or nobody does, as far as the store shows it.
    LeaderChanged(Option<Leader>),
    /// Another process campaigns under this candidate's id.
    SameId(Leader),
    /// A call failed; it will be tried again.
    Trouble(Error),
    /// There is a request to hand over that cannot be understood; the term goes on.
    HandoverIgnored(Error),
    /// The calls work again after trouble.
    Recovered,
    /// The store has confirmed that nothing of the last term is left in it.
    Released {
        /// When the candidate campaigns again; `None` if it shuts down.
        campaigning_at: Option<BootInstant>,
    },
    /// The candidate has shut down.
    Ended,
}
