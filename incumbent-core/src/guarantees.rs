//! What a backend promises, as data: tables, `doctor`, deadlines and the choice of tests are made from it.

use std::time::Duration;

use serde::Serialize;

/// On what mutual exclusion in the store rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusion {
    /// A quorum agrees on each grant; no single failure can make two.
    Consensus,
    /// One node (a server, a file system, a process) decides; exclusion holds as long as its state does.
    SingleNode,
    /// A fail-over may lose an acknowledged grant: two leaders are possible then, tokens still order them.
    AsyncReplicated,
    /// Two leaders are possible in a partition.
    None,
}

/// Who judges that a lease has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// The server, by its own clock.
    Server,
    /// The challenger, which waits the lease's whole ttl on its own clock after it first saw it.
    Challenger,
    /// The peers among themselves.
    Peers,
}

/// What a fencing token is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// A revision that the store's commit path counts.
    Revision,
    /// `max(old + 1, clock in µs)`: rises even if the store lost its latest writes, as long as that clock is not
    /// behind the lost grant.
    Hybrid,
    /// A counter in the record, kept as long as the record's store is.
    Counter,
    /// The term of a consensus protocol.
    Term,
    /// The epoch of an election among peers.
    Epoch,
    /// Grants carry no token.
    None,
}

/// What can be asked of a hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// To a candidate that is named.
    Targeted,
    /// Only to whoever is next in line.
    NextInLine,
}

/// How standbys learn that the election is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Handover {
    /// The store tells them.
    Pushed,
    /// They ask at intervals.
    Polled,
}

/// What a grant and the order of tokens outlive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
pub struct Survives {
    /// The store's process is killed and started again.
    pub crash: bool,
    /// The store's machine loses power.
    pub power_loss: bool,
    /// The store fails over to another of its nodes.
    pub failover: bool,
}

/// What a backend promises.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Guarantees {
    /// On what mutual exclusion rests.
    pub exclusion: Exclusion,
    /// Who judges expiry.
    pub expiry: Expiry,
    /// What a token is made of.
    pub token: TokenSource,
    /// What can be asked of a hand-over.
    pub transfer: Transfer,
    /// The shortest ttl that the store can keep.
    #[serde(rename = "ttl_min_ms", serialize_with = "ms")]
    pub ttl_min: Duration,
    /// By how much the store may judge *early* that a lease has run out.
    #[serde(rename = "expiry_slack_ms", serialize_with = "ms")]
    pub expiry_slack: Duration,
    /// The least distance of two renewals that the store likes to be asked for, kept where the ttl is at least one and a half times as
    /// long. Zero: a third of the ttl, whatever that is.
    pub renew_spacing: Duration,
    /// The longest time from a leader's crash until the store lets another in is `ttl × takeover_ttls +
    /// takeover_extra`.
    pub takeover_ttls: u32,
    /// See [`Guarantees::takeover_ttls`].
    #[serde(rename = "takeover_extra_ms", serialize_with = "ms")]
    pub takeover_extra: Duration,
    /// How standbys learn that the election is free.
    pub handover: Handover,
    /// What grants and token order outlive.
    pub survives: Survives,
    /// True if [`observe`](crate::Backend::observe) lists the candidates.
    pub lists_candidates: bool,
    /// One sentence for people: who is excluded from what, and under which condition that ends.
    pub summary: &'static str,
    /// Rules (or parts of them) that do not apply here, each with its reason: the conformance suite prints them.
    pub not_applicable: &'static [(&'static str, &'static str)],
}

impl Guarantees {
    /// The longest time from a leader's crash until the store lets another in.
    pub fn takeover_max(&self, ttl: Duration) -> Duration {
        ttl.saturating_mul(self.takeover_ttls).saturating_add(self.takeover_extra)
    }

    /// True if grants carry a fencing token.
    pub fn has_tokens(&self) -> bool {
        self.token != TokenSource::None
    }
}

/// Names for programs carry their unit.
fn ms<S: serde::Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.as_millis().try_into().unwrap_or(u64::MAX))
}
