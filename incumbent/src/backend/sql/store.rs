//! A record store on a server that speaks SQL: two lanes of statements, and connections for what waits for a locked row.

use std::fmt;
use std::sync::{Arc, Once, PoisonError};
use std::time::Duration;

use incumbent_core::record::{RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BootInstant, BoxFuture, BoxStream, ElectionName, Error, ErrorKind, Guarantees, Result, Stored,
    Swapped,
};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::hints::Hints;
use super::lane::{Lane, Runner};
use super::{Ask, Told};
use crate::clock;

/// Requests that wait for a locked row at the same time, each on a connection of its own, which is closed after it: they are rare.
const WAITING: usize = 4;

/// What a store is made of.
pub(crate) trait Server: Runner {
    /// The database whose tokens rise.
    fn authority(&self) -> Authority;

    /// The history that the latest answer belongs to.
    fn lineage(&self) -> Option<String>;

    /// One request that waits for a locked row.
    fn run_waiting<'a>(
        &'a self,
        link: &'a mut Self::Link,
        ask: &'a Ask,
        sent_at: BootInstant,
    ) -> BoxFuture<'a, Result<Told>>;

    /// Tells of changes for ever, on connections of its own.
    fn listen(self: Arc<Self>, hints: Arc<Hints>) -> BoxFuture<'static, ()>;

    /// What weakens this store.
    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

pub(crate) struct SqlStore<S: Server> {
    server: Arc<S>,
    /// Renewals have a lane of their own: nothing else makes them wait.
    renewals: Lane,
    others: Lane,
    waiting: Semaphore,
    limit: Duration,
    hints: Arc<Hints>,
    listening: Once,
    listener: std::sync::Mutex<Option<AbortHandle>>,
    guarantees: Guarantees,
}

impl<S: Server> SqlStore<S> {
    /// Must be called within the runtime that it is to live on.
    pub(crate) fn new(server: S, ttl: Duration, guarantees: Guarantees) -> SqlStore<S> {
        let server = Arc::new(server);
        let limit = (ttl / 3).max(Duration::from_secs(1));
        SqlStore {
            renewals: Lane::start(Arc::clone(&server), limit),
            others: Lane::start(Arc::clone(&server), limit),
            waiting: Semaphore::new(WAITING),
            limit,
            hints: Arc::new(Hints::new((ttl / 8).clamp(Duration::from_millis(100), Duration::from_secs(5)))),
            listening: Once::new(),
            listener: std::sync::Mutex::default(),
            guarantees,
            server,
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
            let mut link = Arc::clone(&self.server).connect().await?;
            match self.server.run_waiting(&mut link, ask, sent_at).await? {
                Told::Swapped(swapped) => Ok(swapped),
                // The row was as expected when the statement began, and another has written it since.
                Told::Busy | Told::Found(_) => Ok(Swapped::Conflict),
            }
        };
        match timeout(self.limit.max(Duration::from_secs(2)), work).await {
            Ok(swapped) => swapped,
            Err(_) => {
                Err(Error::new(ErrorKind::TimedOut, "no answer in time").with_backend(self.server.scheme()))
            }
        }
    }
}

impl<S: Server> RecordStore for SqlStore<S> {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn authority(&self) -> Authority {
        self.server.authority()
    }

    fn lineage(&self) -> Option<String> {
        self.server.lineage()
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
            let listener = tokio::spawn(Arc::clone(&self.server).listen(Arc::clone(&self.hints)));
            *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener.abort_handle());
        });
        Some(self.hints.of(election))
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        self.server.advice()
    }
}

impl<S: Server> Drop for SqlStore<S> {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take() {
            listener.abort();
        }
    }
}

impl<S: Server> fmt::Debug for SqlStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore").field("scheme", &self.server.scheme()).finish_non_exhaustive()
    }
}
