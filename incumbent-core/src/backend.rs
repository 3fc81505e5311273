//! The contract of a backend: the authority that grants an election. Its rules are numbered R1–R11 and H; each is a
//! file of the conformance suite.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::guarantees::Guarantees;
use crate::ids::{Authority, CandidateId, ElectionName, FencingToken, Nonce};
use crate::time::BootInstant;

/// A future that the driver owns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// A stream that the driver owns.
pub type BoxStream<'a, T> = Pin<Box<dyn Stream<Item = T> + Send + 'a>>;

/// One campaign: who asks for which election. `(id, nonce)` is the identity, in every comparison.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Claim {
    /// The election.
    pub election: ElectionName,
    /// The candidate's name, for people.
    pub id: CandidateId,
    /// Drawn anew for each campaign.
    pub nonce: Nonce,
    /// Where the candidate can be reached, as it advertises it.
    pub address: Option<String>,
    /// The lease duration asked for.
    pub ttl: Duration,
}

/// One award of the right.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Grant {
    /// Strictly greater than every earlier grant's, as far as the guarantees say; `None` if the backend has no tokens.
    pub token: Option<FencingToken>,
    /// Who issued the token.
    pub authority: Authority,
    /// Boot-clock moment *before* the bytes of the proving request left.
    pub sent_at: BootInstant,
    /// The lease duration that the store granted.
    pub ttl: Duration,
}

/// A candidate as the store shows it.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Contender {
    /// Its name; for a candidate of another client, what that client wrote.
    pub id: String,
    /// Its nonce; `None` for a candidate of another client (it is *foreign*).
    pub nonce: Option<Nonce>,
    /// Its advertised address.
    pub address: Option<String>,
}

impl Contender {
    /// True if it was not written by this library: it obeys no hand-over request.
    pub fn is_foreign(&self) -> bool {
        self.nonce.is_none()
    }
}

/// A leader as the store shows it. A report, never a proof.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// Who it is.
    #[serde(flatten)]
    pub contender: Contender,
    /// The token of its grant; `None` if the backend (or the foreign client) has none.
    pub token: Option<FencingToken>,
    /// Wall-clock milliseconds at which it was elected, by its own clock. For people; no decision uses it.
    pub since_unix_ms: Option<u64>,
}

/// What the store shows of an election.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Who leads; `None` if nobody does or nobody can tell.
    pub leader: Option<Leader>,
    /// All who want to, the leader included, in the order in which they would win if there is one; `None` if the
    /// store cannot tell.
    pub candidates: Option<Vec<Contender>>,
}

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Acquired {
    /// This campaign holds the election.
    Granted(Grant),
    /// Another does, or may.
    Held {
        /// Who.
        observation: Observation,
        /// When a try may succeed although no hint came.
        try_again: BootInstant,
    },
}

/// The answer to [`Backend::renew`].
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Renewed {
    /// A write through the store's commit path proved the grant current.
    Extended {
        /// Boot-clock moment *before* the bytes of the proving request left. May lie before the call: a backend may
        /// answer from a proof that it shares among elections.
        sent_at: BootInstant,
        /// The lease duration from then.
        ttl: Duration,
    },
    /// Proof that the grant is gone, and what is there now.
    Lost(Observation),
}

/// A small record beside the election's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Note {
    /// What a leader leaves for its successor.
    Checkpoint,
    /// A request to the leader to hand over.
    Handover,
}

/// The content of a note, or of an election's record in a record store.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Stored {
    /// Changes with every write and is never used twice.
    pub version: u64,
    /// The token that fences it.
    pub token: u64,
    /// The content.
    pub body: Vec<u8>,
}

impl fmt::Debug for Stored {
    // A checkpoint is the user's and may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("version", &self.version)
            .field("token", &self.token)
            .field("bytes", &self.body.len())
            .finish()
    }
}

/// The outcome of a compare-and-swap.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Swapped {
    /// It was written.
    Done {
        /// The new version.
        version: u64,
        /// The token that stands beside it now.
        token: u64,
        /// Boot-clock moment before the bytes left.
        sent_at: BootInstant,
    },
    /// Something else stands there than was expected; nothing was written.
    Conflict,
}

/// The authority that grants elections.
///
/// Every method makes *one* attempt and leaves time to its caller: no retries, no waiting for another candidate.
/// Dropping a returned future at any await leaves at most one grant, which ends within the ttl (R8). An error is
/// never a proof of anything.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this backend promises.
    fn guarantees(&self) -> &Guarantees;

    /// Tries once to win. Called again with the same claim it adopts a grant of that campaign whose answer was lost
    /// (R4); a queue store keeps the campaign's place until [`release`](Backend::release).
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>>;

    /// Proves the grant current by a write and extends it (R3).
    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>>;

    /// Ends the campaign: removes its grant (R5), its place in a queue, and whatever a lost answer may have left.
    /// Never removes what another campaign owns; may be repeated. With `next` the store prefers that candidate for one ttl, if it can.
    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>>;

    /// Shows who leads. A report, never a proof.
    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>>;

    /// Hints that something changed and a look may be worth while: the election, this campaign's own record, the one
    /// before it in a queue, a note. Hints may be lost, doubled and late (R10). Writes that this campaign made itself give none.
    /// An error or the end of the stream is a gap: subscribe again, then look. `None` if the store cannot tell.
    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>>;

    /// What in the store's present state weakens what it promises, for its operator: one line each, with what to change.
    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(core::future::ready(Ok(Vec::new())))
    }

    /// Reads a note.
    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>>;

    /// Writes a note if it still is what `expected` says (`None`: absent). `token` is stored beside it.
    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>>;
}
