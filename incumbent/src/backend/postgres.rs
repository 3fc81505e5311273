//! `postgres://`: elections as rows of a table in PostgreSQL.

mod failure;
mod link;
mod listen;
mod session;
mod statements;

use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BoxFuture, BoxStream, ElectionName, Error, ErrorKind, Result, Settings, Stored, Swapped,
};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::link::{Config, Link};
use self::listen::Hints;
use self::session::Session;
use super::record::RecordBackend;
use super::server;
use super::sql::lane::{Lane, Runner};
use super::sql::{Ask, Told};
use super::tls::Tls;
use crate::clock;
use crate::thread::Factory;
use crate::url::{SERVER, StoreUrl, bad};

static SUMMARY: &str = "excludes all candidates of one PostgreSQL database; a fail-over ends every term, and where standbys are asynchronous \
                        two may lead until the old lease is over";

/// The schema, where the URL names none.
const SCHEMA: &str = "incumbent";

/// Requests that wait for a locked row at the same time, each on a connection of its own.
const WAITING: usize = 4;

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::AsyncReplicated,
        expiry: Expiry::Challenger,
        token: TokenSource::Hybrid,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_secs(1),
        renew_spacing: Duration::ZERO,
        expiry_slack: Duration::ZERO,
        takeover_ttls: 1,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: false },
        lists_candidates: false,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    let own: Vec<&str> = SERVER.iter().copied().chain(["schema", "sslmode"]).collect();
    url.only(&own)?;
    if url.hosts.is_empty() {
        return Err(bad("postgres: needs a host; write postgres://USER@127.0.0.1/DATABASE"));
    }
    let Some(user) = url.user.clone() else {
        return Err(bad("postgres: needs a user; write postgres://USER@HOST/DATABASE"));
    };
    let database = if url.path.is_empty() { user.clone() } else { url.path.clone() };
    if database.contains('/') {
        return Err(bad(
            "postgres: the path names one database; another schema than incumbent goes into schema=",
        ));
    }
    let config = Config { hosts: url.hosts.clone(), tls: tls(url)?, password: url.secret()?, user, database };
    let schema = schema_of(url)?;
    let session = Session::new(config, &schema, settings.ttl);
    let ttl = settings.ttl;
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(PostgresStore::new(session, ttl))))))
}

/// What an administrator runs for the user of this URL.
pub(crate) fn schema(url: &StoreUrl) -> Result<String> {
    let schema = schema_of(url)?;
    let user = url.user.as_deref().unwrap_or_default();
    Ok(format!(
        "BEGIN;\n{}\n{}COMMIT;\n",
        statements::schema_sql(&schema),
        statements::grant_sql(&schema, user)
    ))
}

/// The schema that a URL names.
fn schema_of(url: &StoreUrl) -> Result<String> {
    let schema = url.parameter("schema").unwrap_or(SCHEMA);
    // The longest name that PostgreSQL does not cut off.
    if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
        return Err(bad("schema= is no name that PostgreSQL can keep: 1 to 63 bytes"));
    }
    Ok(schema.to_owned())
}

/// As `tls=` says, or libpq's own `sslmode=`.
fn tls(url: &StoreUrl) -> Result<Option<Tls>> {
    let Some(mode) = url.parameter("sslmode") else { return server::tls(url) };
    if url.parameter("tls").is_some() {
        return Err(bad("sslmode= and tls= say the same; leave one out"));
    }
    match mode {
        "disable" => Ok(None),
        // The certificate is always verified in full.
        "require" | "verify-ca" | "verify-full" => server::tls(url).map(|tls| Some(tls.unwrap_or_default())),
        _ => Err(bad(format!(
            "sslmode={mode} leaves it open whether the connection is encrypted; use verify-full or disable"
        ))),
    }
}

struct PostgresStore {
    session: Arc<Session>,
    /// Renewals have a lane of their own: nothing else makes them wait.
    renewals: Lane,
    others: Lane,
    /// Connections of requests that waited for a locked row.
    spare: Mutex<Vec<Link>>,
    waiting: Semaphore,
    limit: Duration,
    hints: Arc<Hints>,
    listening: Once,
    listener: std::sync::Mutex<Option<AbortHandle>>,
    guarantees: Guarantees,
}

impl PostgresStore {
    /// Must be called within the runtime that it is to live on.
    fn new(session: Session, ttl: Duration) -> PostgresStore {
        let session = Arc::new(session);
        let limit = (ttl / 3).max(Duration::from_secs(1));
        PostgresStore {
            renewals: Lane::start(Arc::clone(&session), limit),
            others: Lane::start(Arc::clone(&session), limit),
            spare: Mutex::default(),
            waiting: Semaphore::new(WAITING),
            limit,
            hints: Arc::new(Hints::new((ttl / 8).clamp(Duration::from_millis(100), Duration::from_secs(5)))),
            listening: Once::new(),
            listener: std::sync::Mutex::default(),
            guarantees: guarantees(),
            session,
        }
    }

    async fn write(&self, lane: &Lane, ask: Ask) -> Result<Swapped> {
        match lane.ask(ask.clone()).await? {
            Told::Swapped(swapped) => Ok(swapped),
            Told::Busy => self.write_waiting(&ask).await,
            Told::Found(_) => Err(Error::new(ErrorKind::Internal, "a write was answered like a read")),
        }
    }

    /// Dropped in the middle, it closes its connection.
    async fn write_waiting(&self, ask: &Ask) -> Result<Swapped> {
        let sent_at = clock::now();
        let work = async {
            let _turn = self.waiting.acquire().await;
            let idle = self.spare.lock().await.pop().filter(|link| !self.session.is_stale(link));
            let link = match idle {
                Some(link) => link,
                None => self.session.dial().await?,
            };
            let told = self.session.swap_waiting(&link, ask, sent_at).await?;
            self.spare.lock().await.push(link);
            match told {
                Told::Swapped(swapped) => Ok(swapped),
                // The row was as expected when the statement began, and another has written it since.
                Told::Busy | Told::Found(_) => Ok(Swapped::Conflict),
            }
        };
        match timeout(self.limit.max(Duration::from_secs(2)), work).await {
            Ok(swapped) => swapped,
            Err(_) => Err(Error::new(ErrorKind::TimedOut, "no answer in time").with_backend("postgres")),
        }
    }
}

impl RecordStore for PostgresStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn authority(&self) -> Authority {
        self.session.authority()
    }

    fn lineage(&self) -> Option<String> {
        self.session.lineage()
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            match self.others.ask(Ask::Read(key.clone())).await? {
                Told::Found(stored) => Ok(stored),
                Told::Swapped(_) | Told::Busy => {
                    Err(Error::new(ErrorKind::Internal, "a read was answered like a write"))
                }
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
            let key = key.clone();
            let Some(stored) = expected else {
                return self.write(&self.others, Ask::Create { key, token, body }).await;
            };
            // Only a renewal leaves everything as it is.
            let renewal = token == TokenRule::Keep && body == stored.body;
            if token == TokenRule::Raise {
                self.renewals.prepare();
            }
            let lane = if renewal { &self.renewals } else { &self.others };
            let body = (!renewal).then_some(body);
            // Whoever edits an election's record by hand does not count its version up.
            let body_was = key.note.is_none().then(|| stored.body.clone());
            let (version, token_was) = (stored.version, stored.token);
            self.write(lane, Ask::Swap { key, version, token_was, body_was, token, body }).await
        })
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        self.listening.call_once(|| {
            let listener = tokio::spawn(Arc::clone(&self.hints).run(Arc::clone(&self.session)));
            *self.listener.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                Some(listener.abort_handle());
        });
        Some(self.hints.of(election))
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
        {
            listener.abort();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.session.schema()).finish_non_exhaustive()
    }
}
