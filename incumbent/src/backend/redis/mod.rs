//! `redis://`: elections as hashes in Redis 7, changed by scripts that compare before they write.
//!
//! The record of an election is the hash `<prefix><election>` with the fields `version`, `token` and `body`. It has no time to
//! live: challengers judge expiry, so the server's wall clock decides nothing. Everything else is under `<prefix>.incumbent/`.

mod batch;
mod client;
mod dial;
mod facts;
mod failure;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BoxFuture, BoxStream, ElectionName, Error, ErrorKind, Note, Result, Settings, Stored, Swapped,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use self::batch::{Answer, Call, Job};
use self::client::Client;
use self::dial::Config;
use super::record::RecordBackend;
use super::server;
use super::tls::Tls;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one Redis as long as it forgets nothing: a fail-over to a replica may, a crash without appendonly and a power failure without appendfsync always do";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::AsyncReplicated,
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
        survives: Survives { crash: true, power_loss: false, failover: false },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    url.only(&SERVER)?;
    if url.hosts.is_empty() {
        return Err(bad("redis: needs a host; write redis://127.0.0.1:6379"));
    }
    let (database, prefix) = path(&url.path)?;
    let config = Config {
        hosts: url.hosts.clone(),
        tls: tls(url)?,
        user: url.user.clone().filter(|user| !user.is_empty()),
        password: password(url)?,
        database,
        limit: settings.ttl / 3,
        patience: (settings.ttl / 60).clamp(Duration::from_millis(50), Duration::from_millis(250)),
    };
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|cause| {
        Error::new(ErrorKind::Internal, "this system gives no random numbers").with_source(cause)
    })?;
    let mark = format!("{:032x}", u128::from_be_bytes(random));
    let client = Arc::new(Client::new(config, settings.ttl / 3, mark));
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(RedisStore::new(client, prefix))))))
}

/// As usual with Redis a number in front is the database; the rest is the prefix, with a slash behind it.
fn path(path: &str) -> Result<(i64, String)> {
    let path = path.trim_end_matches('/');
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let (database, prefix) = match first.bytes().all(|byte| byte.is_ascii_digit()) && !first.is_empty() {
        true => (first.parse().map_err(|_| bad(format!("redis: has no database {first}")))?, rest),
        false => (0, path),
    };
    Ok((database, if prefix.is_empty() { String::new() } else { format!("{prefix}/") }))
}

fn tls(url: &StoreUrl) -> Result<Option<Tls>> {
    match (url.scheme.as_str(), server::tls(url)?) {
        ("rediss", None) if url.parameter("tls").is_some() => {
            Err(bad("rediss: means TLS, and tls=off none; write redis: or leave tls=off out"))
        }
        ("rediss", None) => Ok(Some(Tls::default())),
        (_, tls) => Ok(tls),
    }
}

fn password(url: &StoreUrl) -> Result<Option<String>> {
    let password = url.secret()?;
    if password.is_none() && url.user.is_some() {
        return Err(bad("redis: a user needs a password; use password_file="));
    }
    Ok(password)
}

/// Redis as a store of records.
struct RedisStore {
    client: Arc<Client>,
    jobs: mpsc::UnboundedSender<Job>,
    prefix: String,
    guarantees: Guarantees,
    tasks: [AbortHandle; 2],
}

impl RedisStore {
    /// Must be called within the runtime that the store is to live on.
    fn new(client: Arc<Client>, prefix: String) -> RedisStore {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(Arc::clone(&client).serve(inbox)).abort_handle(),
            tokio::spawn(Arc::clone(&client).listen()).abort_handle(),
        ];
        RedisStore { client, jobs, prefix, guarantees: guarantees(), tasks }
    }

    fn key(&self, key: &RecordKey) -> String {
        let kind = match key.note {
            None => return self.channel(&key.election),
            Some(Note::Checkpoint) => "checkpoint",
            Some(Note::Handover) => "handover",
        };
        format!("{}.incumbent/{kind}/{}", self.prefix, key.election)
    }

    /// Where changes of an election are told: its key.
    fn channel(&self, election: &ElectionName) -> String {
        format!("{}{election}", self.prefix)
    }

    async fn call(&self, call: Call) -> Result<Answer> {
        let gone =
            || Error::new(ErrorKind::Internal, "the connection to redis has ended").with_backend("redis");
        let (answer, answered) = oneshot::channel();
        self.jobs.send(Job { call, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl RecordStore for RedisStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    /// A name that the store keeps as a record of its own, which goes with its data to replicas and copies. Nothing in the server
    /// is as stable: its replication id changes with a fail-over, where tokens go on rising.
    fn authority(&self) -> Authority {
        Authority::new(format!("redis:{}", self.client.authority().unwrap_or_default()))
    }

    /// The replication id, which each answer brings along: another one after a promotion, and after a restart.
    fn lineage(&self) -> Option<String> {
        self.client.lineage()
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            match self.call(Call::Read { key: self.key(key) }).await? {
                Answer::Read(found) => Ok(found),
                Answer::Swapped(_) => unreachable!("a read is answered by a read"),
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
            let call = Call::Swap {
                key: self.key(key),
                channel: self.channel(&key.election),
                authority: format!("{}.incumbent/authority", self.prefix),
                expected: expected.map(|stored| (stored.version, stored.token)),
                token,
                body,
            };
            match self.call(call).await? {
                Answer::Swapped(swapped) => Ok(swapped),
                Answer::Read(_) => unreachable!("a swap is answered by a swap"),
            }
        })
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(self.client.advice())
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        Some(self.client.follow(&self.channel(election)))
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("client", &self.client)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_database_and_a_prefix() {
        for (given, database, prefix) in [
            ("", 0, ""),
            ("0", 0, ""),
            ("5/", 5, ""),
            ("app", 0, "app/"),
            ("app/b/", 0, "app/b/"),
            ("3/app", 3, "app/"),
            ("0/2024", 0, "2024/"),
            ("7up", 0, "7up/"),
        ] {
            assert_eq!(path(given).expect("a path"), (database, prefix.to_owned()), "{given}");
        }
        assert!(path("99999999999999999999").is_err());
    }

    #[test]
    fn tls_is_on_where_the_url_says_so_or_the_host_is_elsewhere() {
        let tls_of = |url: &str| tls(&StoreUrl::parse(url).expect("a URL"));
        assert!(tls_of("rediss://127.0.0.1").expect("no error").is_some());
        assert!(tls_of("redis://127.0.0.1").expect("no error").is_none());
        assert!(tls_of("redis://db.example").expect("no error").is_some());
        assert!(tls_of("redis://db.example?tls=off").expect("no error").is_none());
        assert!(tls_of("rediss://127.0.0.1?tls=off").is_err());
    }
}
