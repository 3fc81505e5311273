//! `kubernetes:[NAMESPACE]`: elections in Leases of the Kubernetes API, shared with client-go.

mod cache;
mod client;
mod config;
mod failure;
mod lease;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{Record, RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BoxFuture, BoxStream, Claim, ElectionName, Error, ErrorKind, FencingToken, Note, Result,
    Settings, Stored, Swapped,
};
use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use crate::backend::record::RecordBackend;
use crate::clock;
use crate::thread::Factory;
use crate::url::StoreUrl;
use cache::Cache;
use client::{Client, Reply};
use config::Source;
use failure::{Verb, error};
use lease::Lease;
use watch::Subscription;

pub(crate) const SCHEME: &str = "kubernetes";

/// What stands beside elections: names that end like this are no elections.
const BESIDE: &str = ".incumbent";
/// The Lease whose uid identifies this namespace of this cluster as long as it exists.
const AUTHORITY: &str = "authority.incumbent";
/// Attempts to write a note into a Lease that its holder renews meanwhile.
const NOTE_WRITES: usize = 5;

static SUMMARY: &str = "excludes all candidates of one Lease, client-go's too, as long as the etcd behind the API keeps its data";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Challenger,
        token: TokenSource::Revision,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_secs(5),
        expiry_slack: Duration::ZERO,
        // An API server counts requests: no more than six a minute, where the ttl is 15 s or longer.
        renew_spacing: Duration::from_secs(10),
        takeover_ttls: 2,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: true },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    let source = Source::new(url)?;
    let ttl = settings.ttl;
    Ok(Box::new(move || {
        Ok(Arc::new(RecordBackend::new(KubernetesStore {
            client: Client::new(source, ttl),
            cache: Cache::default(),
            authority: Mutex::default(),
            ttl,
            guarantees: guarantees(),
        })))
    }))
}

/// The Leases of one namespace.
struct KubernetesStore {
    client: Client,
    cache: Cache,
    authority: Mutex<Option<Authority>>,
    ttl: Duration,
    guarantees: Guarantees,
}

impl KubernetesStore {
    /// Asks the server; an unset resourceVersion makes it answer from a quorum.
    async fn get(&self, name: &str) -> Result<Option<Lease>> {
        let reply = self.client.call(Verb::Get, Some(name), Vec::new()).await?;
        match reply.status {
            200 => Lease::new(reply.object()?).map(Some),
            404 => Ok(None),
            _ => Err(reply.refused(Verb::Get)),
        }
    }

    /// Creates a Lease; `None` if it is there.
    async fn create(&self, object: &Value) -> Result<Option<(Lease, Reply)>> {
        let reply = self.client.call(Verb::Create, None, object.to_string().into_bytes()).await?;
        match reply.status {
            201 => Ok(Some((Lease::new(reply.object()?)?, reply))),
            409 => Ok(None),
            _ => Err(reply.refused(Verb::Create)),
        }
    }

    /// Puts `object` in place of `lease`; `None` if something else stands there.
    async fn put(&self, name: &str, lease: &Lease, object: &Value) -> Result<Option<(Lease, Reply)>> {
        let reply = self.client.call(Verb::Update, Some(name), object.to_string().into_bytes()).await?;
        match reply.status {
            200 => {
                let written = Lease::new(reply.object()?)?;
                if written.version() <= lease.version() || written.uid() != lease.uid() {
                    // Nothing was written: a success that proves nothing.
                    let text = "the API server answered a write without writing; it counts as not answered";
                    return Err(error(ErrorKind::Unavailable, text));
                }
                Ok(Some((written, reply)))
            }
            // With the uid in it, a PUT creates nothing where the API server keeps its contract.
            201 => {
                warn!(
                    lease = name,
                    "the API server made a new Lease of a renewal, although the uid forbids it"
                );
                Ok(None)
            }
            404 | 409 => Ok(None),
            _ => Err(reply.refused(Verb::Update)),
        }
    }

    async fn read_election(&self, name: &str) -> Result<Option<Lease>> {
        if let Some(lease) = self.cache.followed(name) {
            return Ok(Some(lease));
        }
        let lease = self.get(name).await?;
        self.cache.read(name, lease.as_ref());
        Ok(lease)
    }

    /// The Lease at the version that was seen, with all that others have put into it.
    async fn lease_at(&self, name: &str, version: u64) -> Result<Option<Lease>> {
        if let Some(lease) = self.cache.at(name, version) {
            return Ok(Some(lease));
        }
        let lease = self.get(name).await?;
        self.cache.read(name, lease.as_ref());
        Ok(lease.filter(|lease| lease.version() == version))
    }

    async fn swap_election(
        &self,
        name: &str,
        expected: Option<&Stored>,
        rule: TokenRule,
        body: &[u8],
    ) -> Result<Swapped> {
        let record: Record = serde_json::from_slice(body).map_err(|cause| {
            error(ErrorKind::Internal, "a record of ours cannot be read").with_source(cause)
        })?;
        let Some(expected) = expected else {
            if rule == TokenRule::Raise {
                return Err(error(ErrorKind::Internal, "creation must not acquire"));
            }
            return Ok(match self.create(&lease::unheld(name, &record)).await? {
                Some((lease, reply)) => self.done(name, &lease, 0, &reply),
                None => Swapped::Conflict,
            });
        };
        let Some(lease) = self.lease_at(name, expected.version).await? else { return Ok(Swapped::Conflict) };
        let (object, token) = lease.with_record(&record, expected.token, rule, now());
        Ok(match self.put(name, &lease, &object).await? {
            Some((written, reply)) => self.done(name, &written, token, &reply),
            None => {
                self.cache.doubt(name);
                Swapped::Conflict
            }
        })
    }

    fn done(&self, name: &str, lease: &Lease, token: u64, reply: &Reply) -> Swapped {
        self.cache.wrote(name, lease);
        Swapped::Done { version: lease.version(), token, sent_at: reply.sent_at }
    }

    /// A hand-over request stands in the election's own Lease, so that one watch tells of both.
    async fn swap_handover(
        &self,
        name: &str,
        expected: Option<&Stored>,
        token: FencingToken,
        body: &[u8],
    ) -> Result<Swapped> {
        for _ in 0..NOTE_WRITES {
            let Some(lease) = self.get(name).await? else {
                if expected.is_some() {
                    return Ok(Swapped::Conflict);
                }
                self.create(&lease::unheld(name, &Record::unheld(self.ttl, None))).await?;
                continue;
            };
            self.cache.read(name, Some(&lease));
            let there = lease.note(lease::HANDOVER)?;
            if there.map(|note| note.version) != expected.map(|note| note.version) {
                return Ok(Swapped::Conflict);
            }
            let object = lease.with_note(lease::HANDOVER, token, body);
            if let Some((written, reply)) = self.put(name, &lease, &object).await? {
                self.cache.wrote(name, &written);
                return Ok(Swapped::Done {
                    version: lease.version(),
                    token: token.0,
                    sent_at: reply.sent_at,
                });
            }
        }
        Err(error(ErrorKind::Unavailable, "the Lease is being written by others; trying again"))
    }

    async fn swap_checkpoint(
        &self,
        name: &str,
        expected: Option<&Stored>,
        token: FencingToken,
        body: &[u8],
    ) -> Result<Swapped> {
        let done = match expected {
            None => self.create(&lease::with_note(name, lease::CHECKPOINT, token, body)).await?,
            Some(expected) => {
                let lease = self.get(name).await?.filter(|lease| lease.version() == expected.version);
                let Some(lease) = lease else { return Ok(Swapped::Conflict) };
                let object = lease.with_note(lease::CHECKPOINT, token, body);
                self.put(name, &lease, &object).await?
            }
        };
        Ok(match done {
            Some((lease, reply)) => {
                Swapped::Done { version: lease.version(), token: token.0, sent_at: reply.sent_at }
            }
            None => Swapped::Conflict,
        })
    }

    /// Learns whose tokens these are, once.
    async fn identify(&self) -> Result<()> {
        let known = || self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if known().is_some() {
            return Ok(());
        }
        let lease = match self.get(AUTHORITY).await? {
            Some(lease) => Some(lease),
            None => match self.create(&lease::empty(AUTHORITY)).await? {
                Some((lease, _)) => Some(lease),
                None => self.get(AUTHORITY).await?,
            },
        };
        let lease = lease.ok_or_else(|| {
            error(ErrorKind::Unavailable, format!("somebody deletes the Lease {AUTHORITY}; it must stay"))
        })?;
        *known() = Some(Authority::new(format!("kubernetes:{}", lease.uid())));
        Ok(())
    }
}

impl RecordStore for KubernetesStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn authority(&self) -> Authority {
        let known = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone().unwrap_or_else(|| Authority::new("kubernetes:"))
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let name = lease_name(&key.election)?;
            match key.note {
                None => Ok(self.read_election(name).await?.map(|lease| lease.record(self.ttl))),
                Some(Note::Handover) => match self.read_election(name).await? {
                    Some(lease) => lease.note(lease::HANDOVER),
                    None => Ok(None),
                },
                Some(Note::Checkpoint) => match self.get(&checkpoint_name(name)).await? {
                    Some(lease) => lease.note(lease::CHECKPOINT),
                    None => Ok(None),
                },
            }
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<&'a Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            let name = lease_name(&key.election)?;
            let beside = match token {
                TokenRule::Set(token) => token,
                TokenRule::Keep | TokenRule::Raise => FencingToken(expected.map_or(0, |stored| stored.token)),
            };
            match key.note {
                None => self.swap_election(name, expected, token, &body).await,
                Some(Note::Handover) => self.swap_handover(name, expected, beside, &body).await,
                Some(Note::Checkpoint) => {
                    self.swap_checkpoint(&checkpoint_name(name), expected, beside, &body).await
                }
            }
        })
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        let name = lease_name(election).ok()?.to_owned();
        let subscription = Subscription::new(self, name);
        Some(Box::pin(futures_util::stream::unfold(subscription, |mut subscription| async move {
            let hint = subscription.next().await?;
            Some((hint, subscription))
        })))
    }

    fn hold<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            self.cache.want(lease_name(&claim.election)?, true);
            self.identify().await?;
            Ok(None)
        })
    }

    fn let_go(&self, claim: &Claim) -> BoxFuture<'static, ()> {
        self.cache.want(claim.election.as_str(), false);
        Box::pin(std::future::ready(()))
    }
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore").field("authority", &self.authority()).finish_non_exhaustive()
    }
}

/// The Lease of an election has its name.
fn lease_name(election: &ElectionName) -> Result<&str> {
    let name = election.as_str();
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_part = |part: &str| {
        let ends = part.bytes().next().is_some_and(outer) && part.bytes().last().is_some_and(outer);
        ends && part.bytes().all(|b| outer(b) || b == b'-')
    };
    if !name.split('.').all(is_part) {
        return Err(Error::new(
            ErrorKind::InvalidName,
            format!(
                "the election name {name:?} can name no Lease: Kubernetes allows a-z 0-9 - and dots between them, each part starting and ending with a letter or digit"
            ),
        ));
    }
    if name.ends_with(BESIDE) {
        return Err(Error::new(
            ErrorKind::InvalidName,
            format!(
                "the election name {name:?} ends with {BESIDE}, which is kept for what stands beside elections"
            ),
        ));
    }
    Ok(name)
}

fn checkpoint_name(name: &str) -> String {
    format!("{name}.checkpoint{BESIDE}")
}

/// The time of day, written for other clients; no decision uses it.
fn now() -> Timestamp {
    let us = clock::unix_us().and_then(|us| i64::try_from(us).ok()).unwrap_or(0);
    Timestamp::from_microsecond(us).unwrap_or(Timestamp::UNIX_EPOCH)
}
