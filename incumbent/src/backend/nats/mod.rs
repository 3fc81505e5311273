//! `nats://`: elections as keys of a key-value bucket of NATS JetStream, written only over the revision that was seen.
//!
//! The record of an election is the value of the key `<prefix>/<election>`; its token stands in a header beside it. The bucket is
//! made by an operator: one that came into being by itself would have neither the replicas nor the storage that were meant.

mod answer;
mod bucket;
mod client;
mod dial;
mod failure;
mod hints;
mod keys;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BoxFuture, BoxStream, ElectionName, Error, ErrorKind, Result, Settings, Stored, Swapped,
};
use serde_json::json;
use tokio::task::AbortHandle;

use self::answer::Latest;
use self::client::Client;
use self::dial::{Config, Link, Login};
use self::failure::Effect;
use self::hints::Hints;
use self::keys::Keys;
use super::record::RecordBackend;
use super::server;
use crate::clock;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one bucket: with three replicas as long as a majority of its servers keeps what it acknowledged, which a power failure ends unless they have sync_interval: always; with one replica as long as its server does";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::Consensus,
        expiry: Expiry::Challenger,
        token: TokenSource::Hybrid,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_millis(500),
        expiry_slack: Duration::ZERO,
        renew_spacing: Duration::ZERO,
        // A challenger that hears nothing may see the last renewal only when it looks after one ttl.
        takeover_ttls: 2,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: false, failover: true },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    let own = ["token_file", "nkey_file", "creds_file"];
    url.only(&[&SERVER[..], &own].concat())?;
    if url.hosts.is_empty() {
        return Err(bad("nats: needs a host and a bucket; write nats://127.0.0.1:4222/BUCKET"));
    }
    let config = Config {
        hosts: url.hosts.clone(),
        tls: server::tls(url)?,
        login: login(url)?,
        keys: Keys::new(&url.path)?,
        ttl: settings.ttl,
        patience: (settings.ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250)),
    };
    // What cannot be read now is told now.
    config.login.add_to(async_nats::ConnectOptions::new())?;
    if let Some(tls) = &config.tls {
        tls.config_with_name()?;
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|cause| {
        Error::new(ErrorKind::Internal, "this system gives no random numbers").with_source(cause)
    })?;
    let mark = format!("{:032x}", u128::from_be_bytes(random));
    let client = Arc::new(Client::new(config));
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(NatsStore::new(client, mark))))))
}

fn login(url: &StoreUrl) -> Result<Login> {
    let file = |name: &str| url.parameter(name).map(PathBuf::from);
    let mut given: Vec<Login> = [
        file("token_file").map(Login::Token),
        file("nkey_file").map(Login::Nkey),
        file("creds_file").map(Login::Creds),
    ]
    .into_iter()
    .flatten()
    .collect();
    match (&url.user, url.secret()?) {
        (Some(user), Some(password)) => given.push(Login::Password(user.clone(), password)),
        // As other clients write it, what stands there alone is a token: it is not repeated.
        (Some(_), None) => {
            return Err(bad(
                "nats: a user needs a password; use password_file=. A token belongs into a file: token_file=",
            ));
        }
        (None, Some(_)) => {
            return Err(bad("nats: password_file= needs a user; write nats://USER@HOST/BUCKET"));
        }
        (None, None) => {}
    }
    match given.pop() {
        None => Ok(Login::None),
        Some(login) if given.is_empty() => Ok(login),
        Some(_) => Err(bad(
            "nats: one login is enough: a user, token_file=, nkey_file= or creds_file=; leave the others out",
        )),
    }
}

/// A bucket as a store of records.
struct NatsStore {
    client: Arc<Client>,
    hints: Arc<Hints>,
    guarantees: Guarantees,
    task: AbortHandle,
}

impl NatsStore {
    /// Must be called within the runtime that the store is to live on.
    fn new(client: Arc<Client>, mark: String) -> NatsStore {
        let hints = Arc::new(Hints::new(Arc::clone(&client), mark));
        let task = tokio::spawn(Arc::clone(&hints).run()).abort_handle();
        NatsStore { client, hints, guarantees: guarantees(), task }
    }

    fn keys(&self) -> &Keys {
        &self.client.config.keys
    }

    /// The latest message of a key, from the server that leads the bucket: others may be far behind.
    async fn latest(&self, link: &Arc<Link>, subject: &str) -> Result<Option<Latest>> {
        let request = json!({ "last_by_subj": subject }).to_string().into_bytes();
        let ask = format!("$JS.API.STREAM.MSG.GET.{}", self.keys().stream());
        let answer = self.client.request(link, &ask, None, request, Effect::None).await?;
        answer::latest(&answer.payload, &link.host, self.keys())
    }

    async fn write(
        &self,
        key: &RecordKey,
        expected: Option<&Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> Result<Swapped> {
        // Before connecting: what is trusted counts from here.
        let sent_at = clock::now();
        let subject = self.keys().subject(key)?;
        let link = self.client.link().await?;
        let revision = match expected {
            Some(stored) => stored.version,
            // What was deleted by hand has left a revision behind.
            None => match self.latest(&link, &subject).await? {
                Some(Latest { stored: Some(_), .. }) => return Ok(Swapped::Conflict),
                Some(Latest { stored: None, revision }) => revision,
                None => 0,
            },
        };
        let old = expected.map_or(0, |stored| stored.token);
        let new = token.apply(old, clock::unix_us().unwrap_or(0))?;
        let is_renewal = token == TokenRule::Keep && expected.is_some_and(|stored| stored.body == body);
        // What was written long ago and not read since may be another's by now.
        if token == TokenRule::Keep
            && expected.is_some()
            && self.client.has_changed_within(self.client.config.ttl)
            && self.latest(&link, &subject).await?.and_then(|latest| latest.stored).as_ref() != expected
        {
            return Ok(Swapped::Conflict);
        }
        let mark = is_renewal.then(|| self.hints.mark());
        let headers = answer::headers(revision, self.keys(), new, mark);
        let answer = self.client.request(&link, &subject, Some(headers), body, Effect::Write).await?;
        let written = answer::written(&answer.payload, revision, &link.host, self.keys())?;
        Ok(match written {
            Some(version) => Swapped::Done { version, token: new, sent_at },
            None => Swapped::Conflict,
        })
    }
}

impl RecordStore for NatsStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    /// The bucket and when it was made, to the nanosecond. A fail-over of its servers does not change that. A bucket that an
    /// operator makes anew is another authority: it has forgotten the old tokens, and the clocks that made them were the candidates'
    /// own, so that nothing says whether new ones are greater. Only he can know, who tells the fences by `fence adopt`.
    fn authority(&self) -> Authority {
        Authority::new(format!("nats:{}@{}", self.keys().bucket, self.client.created().unwrap_or_default()))
    }

    /// When the bucket was made.
    fn lineage(&self) -> Option<String> {
        self.client.created()
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let subject = self.keys().subject(key)?;
            let link = self.client.link().await?;
            Ok(self.latest(&link, &subject).await?.and_then(|latest| latest.stored))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<&'a Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(self.write(key, expected, token, body))
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        Some(self.hints.follow(election))
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async { self.client.link().await?.advice().await })
    }
}

impl Drop for NatsStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStore").field("client", &self.client).finish_non_exhaustive()
    }
}
