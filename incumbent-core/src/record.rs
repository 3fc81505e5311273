//! The lease protocol of the record stores: what to write and when. The calls are the adapter's, the bytes the store's.
//!
//! A store holds one record per election. A grant lives by compare-and-swap alone: *the success reply of a swap that
//! really changed the record is the only proof*, the deadline counts from its send, and a challenger waits the
//! record's whole ttl on its own clock from its first full sight of a version. No wall clock of anyone takes part.

use core::fmt::Debug;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{BoxFuture, BoxStream, Claim, Contender, Leader, Note, Observation, Stored, Swapped};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{encode, refuse_newer};
use crate::guarantees::Guarantees;
use crate::ids::{Authority, CandidateId, ElectionName, FencingToken, Nonce};
use crate::time::BootInstant;
use crate::timing::challenge_after;

/// The version of the stored format. A newer one is refused unchanged.
pub const FORMAT: u32 = 1;

/// Which record of an election.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct RecordKey {
    /// The election.
    pub election: ElectionName,
    /// `None`: the election's own record.
    pub note: Option<Note>,
}

/// What happens to the token beside a record when it is swapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum TokenRule {
    /// It stays.
    Keep,
    /// It becomes greater than every token this record ever had: `max(old + 1, the store's clock in µs)`, or the
    /// next number of a counter that never goes back.
    Raise,
    /// It becomes this.
    Set(FencingToken),
}

impl TokenRule {
    /// The token that follows `last` in a store whose tokens are `max(last + 1, unix_us)`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if none is greater than `last`: no token is given twice.
    pub fn apply(self, last: u64, unix_us: u64) -> Result<u64> {
        match self {
            TokenRule::Keep => Ok(last),
            TokenRule::Raise => last.checked_add(1).map(|next| next.max(unix_us)).ok_or_else(|| {
                let text = format!(
                    "no token is greater than the record's, {last}: it is damaged; remove the record"
                );
                Error::new(ErrorKind::Corrupt, text)
            }),
            TokenRule::Set(token) => Ok(token.0),
        }
    }
}

/// A store of records. Three calls: read, swap and changes. The others have defaults; they are for stores that notice a holder's
/// death, that may lose what they have acknowledged, or that know more of their candidates.
pub trait RecordStore: Debug + Send + Sync + 'static {
    /// What this store promises.
    fn guarantees(&self) -> &Guarantees;

    /// The identity of the store, stable as long as its tokens rise.
    fn authority(&self) -> Authority;

    /// The history that the latest answer belongs to: it changes where the store may have lost writes that it had
    /// acknowledged, as in a failover. A term does not outlive such a change, and challengers wait one ttl after it.
    /// `None` if that cannot happen, or before the first answer. Whoever gives one answers through one connection at a time.
    fn lineage(&self) -> Option<String> {
        None
    }

    /// Who once held the election's record may still lead although there is none, or one that nobody ever held: for how long at
    /// most, and at least for the ttl of `claim`, whatever is said here. Until then it counts as held. `None` only if certainly
    /// nobody leads: then the first one to come takes it. Any doubt is zero.
    fn led_without_record<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Option<Duration>> {
        let _ = claim;
        Box::pin(core::future::ready(Some(Duration::ZERO)))
    }

    /// Reads a record whole; `None` if there is none.
    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>>;

    /// Writes `body` if the record still is `expected` (`None`: absent), version and token together. Every success
    /// gives the record a version that it never had.
    fn swap<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<&'a Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>>;

    /// Hints that some record of the election changed; see [`Backend::watch`](crate::Backend::watch).
    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>>;

    /// Takes the lock that this campaign keeps as long as its process lives, and describes it for others. Called
    /// before each acquiring swap; idempotent.
    fn hold<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Option<String>>> {
        let _ = claim;
        Box::pin(core::future::ready(Ok(None)))
    }

    /// Lets go of that lock. The call itself does or begins it, since nobody may wait for it; the future resolves when it
    /// is done.
    fn let_go(&self, claim: &Claim) -> BoxFuture<'static, ()> {
        let _ = claim;
        Box::pin(core::future::ready(()))
    }

    /// True only if the described holder's process is certainly gone. Any doubt is `false`.
    fn is_gone<'a>(&'a self, election: &'a ElectionName, holder: &'a Holder) -> BoxFuture<'a, bool> {
        let _ = (election, holder);
        Box::pin(core::future::ready(false))
    }

    /// See [`Backend::advice`](crate::Backend::advice).
    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(core::future::ready(Ok(Vec::new())))
    }

    /// The campaigns that stand for election, where the store can tell.
    fn candidates<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Option<Vec<Contender>>>> {
        let _ = election;
        Box::pin(core::future::ready(Ok(None)))
    }
}

/// Who holds a record.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The candidate's name.
    pub id: CandidateId,
    /// Its campaign.
    pub nonce: Nonce,
    /// Its advertised address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When it was elected by its own wall clock. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// The lock that its process keeps, as the store describes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<String>,
}

/// The body of an election's record.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Record {
    v: u32,
    /// Who holds it; `None`: nobody.
    pub holder: Option<Holder>,
    /// How long a grant lasts after it was written, in milliseconds.
    pub ttl_ms: u64,
    /// Who shall be preferred for one ttl after a release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<CandidateId>,
    /// The store's [lineage](RecordStore::lineage) in which it was acquired, or created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Who holds it by the rules of another client of the store; `holder` is `None` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Box<Foreign>>,
}

/// Who holds a record that another client wrote: it has no nonce and its grant no token.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Foreign {
    /// The name that the client wrote.
    pub id: String,
    /// When it was elected by its own wall clock. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
}

impl Record {
    /// A record that nobody holds.
    pub fn unheld(ttl: Duration, next: Option<CandidateId>) -> Record {
        Record { v: FORMAT, holder: None, ttl_ms: ttl_ms(ttl), next, lineage: None, foreign: None }
    }

    /// A record held by `holder`.
    pub fn held(holder: Holder, ttl: Duration) -> Record {
        Record { holder: Some(holder), ..Record::unheld(ttl, None) }
    }

    /// A record that another client of the store holds.
    pub fn foreign(foreign: Foreign, ttl: Duration) -> Record {
        Record { foreign: Some(Box::new(foreign)), ..Record::unheld(ttl, None) }
    }

    /// The same, in this lineage.
    #[must_use]
    pub fn within(self, lineage: Option<String>) -> Record {
        Record { lineage, ..self }
    }

    /// True if it was written in the store's present `lineage`, or the store has none.
    pub fn is_of(&self, lineage: Option<&str>) -> bool {
        lineage.is_none() || self.lineage.as_deref() == lineage
    }

    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// How long a grant lasts after it was written.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// Rounded up: a challenger must not wait less than the leader trusts.
fn ttl_ms(ttl: Duration) -> u64 {
    ttl.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}

/// What stands in the store, read whole.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Seen {
    /// Nothing.
    Absent,
    /// A record of ours.
    Record(Stored, Record),
    /// Something that cannot be understood: counts as held by an unknown holder.
    Unreadable(Stored),
}

impl Seen {
    /// Understands what was read.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if a newer release wrote it: it is refused unchanged.
    pub fn new(stored: Option<Stored>) -> Result<Seen> {
        let Some(stored) = stored else { return Ok(Seen::Absent) };
        refuse_newer(&stored.body, FORMAT, "the record")?;
        match serde_json::from_slice::<Record>(&stored.body) {
            Ok(record) => Ok(Seen::Record(stored, record)),
            Err(_) => Ok(Seen::Unreadable(stored)),
        }
    }

    /// What was read, for the `expected` of a swap.
    pub fn stored(&self) -> Option<&Stored> {
        match self {
            Seen::Absent => None,
            Seen::Record(stored, _) | Seen::Unreadable(stored) => Some(stored),
        }
    }

    /// True if there is no record, or one that was made and never held.
    pub fn was_never_held(&self) -> bool {
        match self {
            Seen::Absent => true,
            Seen::Record(stored, record) => {
                stored.token == 0 && record.holder.is_none() && record.foreign.is_none()
            }
            Seen::Unreadable(_) => false,
        }
    }

    /// Who holds it, as far as can be read.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Seen::Record(_, record) => record.holder.as_ref(),
            Seen::Absent | Seen::Unreadable(_) => None,
        }
    }

    /// The report for people.
    pub fn observation(&self) -> Observation {
        let leader = match self {
            Seen::Record(stored, Record { holder: Some(holder), .. }) => Some(Leader {
                contender: Contender {
                    id: holder.id.to_string(),
                    nonce: Some(holder.nonce),
                    address: holder.address.clone(),
                },
                token: Some(FencingToken(stored.token)),
                since_unix_ms: holder.since_unix_ms,
            }),
            Seen::Record(_, Record { foreign: Some(foreign), .. }) => Some(Leader {
                contender: Contender { id: foreign.id.clone(), nonce: None, address: None },
                token: None,
                since_unix_ms: foreign.since_unix_ms,
            }),
            _ => None,
        };
        Observation { leader, candidates: None }
    }
}

/// What a candidate does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Move {
    /// Create the record, held by nobody. Creation never acquires: read again afterwards.
    Create,
    /// Swap what was seen for a record held by this campaign, with a raised token.
    Take,
    /// The record is this campaign's, the answer that said so was lost: prove it by a swap of its own.
    Confirm,
    /// Wait; look again at this moment or when something changes.
    Wait(BootInstant),
}

/// One campaign's memory of what it saw, and since when.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Challenger {
    slack: Duration,
    sight: Option<Sight>,
}

/// A version, the lineage it was seen in, and since when.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Sight {
    version: u64,
    lineage: Option<String>,
    since: BootInstant,
}

impl Challenger {
    /// A campaign that has seen nothing yet, on a store with this [`expiry_slack`](Guarantees::expiry_slack).
    pub fn new(slack: Duration) -> Challenger {
        Challenger { slack, sight: None }
    }

    /// Decides what `claim` does about what it saw in the store's present `lineage`. `read_at` is a moment *after* the
    /// record was fully read; `gone` says that the holder's process is certainly dead, or where nobody is named, that
    /// [nobody leads](RecordStore::led_without_record).
    pub fn judge(
        &mut self,
        claim: &Claim,
        seen: &Seen,
        lineage: Option<&str>,
        read_at: BootInstant,
        gone: bool,
    ) -> Move {
        let Some(stored) = seen.stored() else {
            self.sight = None;
            return if gone { Move::Take } else { Move::Create };
        };
        let since = match &self.sight {
            Some(sight) if sight.version == stored.version && sight.lineage.as_deref() == lineage => {
                sight.since
            }
            _ => {
                let lineage = lineage.map(str::to_owned);
                self.sight = Some(Sight { version: stored.version, lineage, since: read_at });
                read_at
            }
        };
        let wait = |ttl: Duration| {
            let until = since + challenge_after(ttl, self.slack);
            if read_at >= until { Move::Take } else { Move::Wait(until) }
        };
        match seen {
            Seen::Absent => Move::Create,
            // Whoever holds it may have asked for the same ttl as this candidate; nothing better is known.
            Seen::Unreadable(_) => wait(claim.ttl),
            // A later grant may have been lost with the history it was written in.
            Seen::Record(_, record) if !record.is_of(lineage) => wait(claim.ttl.max(record.ttl())),
            Seen::Record(_, record) if record.foreign.is_some() => wait(record.ttl()),
            Seen::Record(_, record) => match &record.holder {
                Some(holder) if holder.id == claim.id && holder.nonce == claim.nonce => Move::Confirm,
                Some(_) if gone => Move::Take,
                Some(_) => wait(record.ttl()),
                None if seen.was_never_held() && !gone => wait(claim.ttl.max(record.ttl())),
                None => match &record.next {
                    Some(next) if *next != claim.id => wait(record.ttl()),
                    _ => Move::Take,
                },
            },
        }
    }
}

/// Whether what stands in the store still is the grant with `token` of `claim`. If it is, a renewal that met a
/// conflict met a write of its own whose answer was lost, and may swap what it saw; only that swap counts.
pub fn still_held(claim: &Claim, token: FencingToken, seen: &Seen) -> bool {
    match seen {
        Seen::Record(stored, Record { holder: Some(holder), .. }) => {
            holder.id == claim.id && holder.nonce == claim.nonce && stored.token == token.0
        }
        _ => false,
    }
}
