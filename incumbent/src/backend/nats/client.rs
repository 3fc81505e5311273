//! The way to the bucket: through which server, when to give it up for another, and whether the bucket still is the same one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, Message};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::bucket::Facts;
use super::dial::{self, Config, Link, Opened};
use super::failure::{self, Effect};
use crate::clock;

/// A server that failed is tried last for this long.
const PENALTY: Duration = Duration::from_secs(5);
/// How long the search for a server goes on, whoever still waits for it.
const SEARCH: Duration = Duration::from_secs(5);
/// The pause before a server that failed is tried again in the same search.
const AGAIN: Duration = Duration::from_millis(100);

/// One connection at a time, shared by all elections.
pub(super) struct Client {
    pub(super) config: Config,
    state: Mutex<State>,
}

/// What a task of its own does for all who wait for it, so that it goes on when one of them is not polled.
type Shared<T> = watch::Receiver<Option<Result<T>>>;

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// The search for a link that is under way.
    search: Option<Shared<Arc<Link>>>,
    /// The look at the bucket that is under way.
    look: Option<Shared<()>>,
    /// The server to try first.
    first: usize,
    /// Per server: until when it is tried last.
    penalty: Vec<BootInstant>,
    /// When the bucket that answers was created.
    created: Option<String>,
    /// When the latest question about that was sent that has been answered.
    looked_at: BootInstant,
    /// The server that led the bucket then, where there are several.
    leader: Option<String>,
    /// When the connection, or the server that leads the bucket, was last seen to be another one.
    changed_at: BootInstant,
}

impl Client {
    /// Nothing is connected yet.
    pub(super) fn new(config: Config) -> Client {
        let state = State { penalty: vec![BootInstant::ZERO; config.hosts.len()], ..State::default() };
        Client { config, state: Mutex::new(state) }
    }

    /// When the bucket was created that the latest answer came from; `None` before the first.
    pub(super) fn created(&self) -> Option<String> {
        self.lock().created.clone()
    }

    /// Sends one request, and looks at the bucket beside it if the latest look is too old. Gives the answer only if the bucket was
    /// seen; whether it still is the same one is for whoever compares [`created`](Client::created).
    pub(super) async fn request(
        self: &Arc<Self>,
        link: &Arc<Link>,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
        effect: Effect,
    ) -> Result<Message> {
        let request = link.request(subject, headers, payload, effect);
        let (answer, looked) = tokio::join!(request, self.look(link));
        let answer = answer?;
        looked.map_err(|failure| failure.ambiguous(effect == Effect::Write))?;
        Ok(answer)
    }

    /// Looks at the bucket, unless somebody has just done so or is about to.
    ///
    /// An answer counts with a look that was sent not long before it: nobody leads in a bucket that was made anew since, because
    /// each new record counts as held for one ttl.
    async fn look(self: &Arc<Self>, link: &Arc<Link>) -> Result<()> {
        let look = {
            let mut state = self.lock();
            if clock::now().since(state.looked_at) < self.config.look_every() {
                return Ok(());
            }
            state.look.get_or_insert_with(|| self.start_look(link)).clone()
        };
        outcome(look).await
    }

    fn start_look(self: &Arc<Self>, link: &Arc<Link>) -> Shared<()> {
        let (found, look) = watch::channel(None);
        let (client, link) = (Arc::clone(self), Arc::clone(link));
        tokio::spawn(async move {
            let sent_at = clock::now();
            let outcome = match timeout(client.config.ttl / 2, link.look()).await {
                Ok(seen) => seen.map(|facts| client.note(&link, &facts, sent_at)),
                Err(_) => {
                    link.close();
                    Err(failure::cut(&link.host, Effect::None))
                }
            };
            client.lock().look = None;
            found.send_replace(Some(outcome));
        });
        look
    }

    /// True if the connection, or the server that leads the bucket, was another one within the last `ttl`: a server that came up
    /// with an old copy of the data gives out revisions again that it had given to others.
    pub(super) fn has_changed_within(&self, ttl: Duration) -> bool {
        clock::now().since(self.lock().changed_at) < ttl
    }

    /// Remembers what was seen of the bucket.
    fn note(&self, link: &Link, facts: &Facts, sent_at: BootInstant) {
        let mut state = self.lock();
        state.looked_at = state.looked_at.max(sent_at);
        if let Some(leader) = facts.leader()
            && state.leader.as_deref() != Some(leader)
        {
            state.leader = Some(leader.to_owned());
            state.changed_at = clock::now();
        }
        if state.created.as_ref() != Some(&facts.created)
            && let Some(old) = state.created.replace(facts.created.clone())
        {
            tracing::warn!(
                host = &*link.host,
                bucket = self.config.keys.bucket,
                old,
                new = facts.created,
                "the bucket was made anew and has forgotten everything, so terms end and fences want fence adopt"
            );
        }
    }

    /// The link in use, or a new one to the first server that is found.
    ///
    /// # Errors
    /// None of them is ambiguous: nothing was asked that could have an effect. Not [retryable](Error::is_retryable) only if no
    /// server is merely unreachable.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>> {
        let search = {
            let mut state = self.lock();
            if let Some(link) = state.link.take() {
                if !link.is_closed() {
                    state.link = Some(Arc::clone(&link));
                    return Ok(link);
                }
                state.penalty[link.index] = clock::now() + PENALTY;
                state.first = (link.index + 1) % self.config.hosts.len();
                tracing::debug!(host = &*link.host, "server given up");
            }
            state.search.get_or_insert_with(|| self.start_search()).clone()
        };
        outcome(search).await
    }

    /// It goes on when nobody waits for it any more, so that the next one need not begin anew.
    fn start_search(self: &Arc<Self>) -> Shared<Arc<Link>> {
        let (found, search) = watch::channel(None);
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = client.search().await.map(|(link, facts, sent_at)| {
                client.note(&link, &facts, sent_at);
                link
            });
            let mut state = client.lock();
            state.search = None;
            if let Ok(link) = &outcome {
                state.first = link.index;
                state.changed_at = clock::now();
                state.link = Some(Arc::clone(link));
            }
            drop(state);
            found.send_replace(Some(outcome));
        });
        search
    }

    /// Tries the servers at the same time, each a little after the one before; the first through which the bucket is seen is
    /// taken. Ends without one when each has failed, or after [`SEARCH`].
    async fn search(&self) -> Result<Opened> {
        let until = Instant::now() + SEARCH;
        let mut waiting = self.order().into_iter();
        let mut failures = BTreeMap::new();
        let mut attempts: FuturesUnordered<_> =
            waiting.next().into_iter().map(|index| self.connect(index, Duration::ZERO)).collect();
        while failures.len() < self.config.hosts.len() {
            tokio::select! {
                Some((index, outcome)) = attempts.next() => {
                    let failure = match outcome {
                        Ok(opened) => return Ok(opened),
                        Err(failure) => failure,
                    };
                    tracing::debug!(%failure, "server does not work");
                    self.lock().penalty[index] = clock::now() + PENALTY;
                    failures.insert(index, failure);
                    // While others do not answer at all, this one may recover.
                    attempts.push(self.connect(index, AGAIN));
                    attempts.extend(waiting.next().map(|index| self.connect(index, Duration::ZERO)));
                }
                () = tokio::time::sleep(self.config.patience), if waiting.len() > 0 => {
                    attempts.extend(waiting.next().map(|index| self.connect(index, Duration::ZERO)));
                }
                () = tokio::time::sleep_until(until) => break,
            }
        }
        let silent = |index: usize| {
            let text = format_args!("no answer within {SEARCH:?}");
            failure::error(ErrorKind::Unavailable, &self.config.name(index), text)
        };
        Err(summary(
            (0..self.config.hosts.len())
                .map(|index| failures.remove(&index).unwrap_or_else(|| silent(index)))
                .collect(),
        ))
    }

    async fn connect(&self, index: usize, pause: Duration) -> (usize, Result<Opened>) {
        tokio::time::sleep(pause).await;
        (index, dial::connect(&self.config, index).await)
    }

    /// All servers: from the first one on, those under a penalty last.
    fn order(&self) -> Vec<usize> {
        let state = self.lock();
        let (now, count) = (clock::now(), state.penalty.len());
        let mut order: Vec<usize> = (0..count).map(|step| (state.first + step) % count).collect();
        order.sort_by_key(|index| Some(state.penalty[*index]).filter(|until| *until > now));
        order
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = (0..self.config.hosts.len()).map(|index| self.config.name(index)).collect();
        f.debug_struct("Client")
            .field("hosts", &hosts)
            .field("keys", &self.config.keys)
            .finish_non_exhaustive()
    }
}

/// What comes of what a task does.
async fn outcome<T: Clone>(mut shared: Shared<T>) -> Result<T> {
    let lost = || Error::new(ErrorKind::Internal, "a task of the nats backend ended without a result");
    let found = shared.wait_for(Option::is_some).await.map_err(|_| lost())?;
    found.clone().unwrap_or_else(|| Err(lost()))
}

/// One error for the failures of all servers.
fn summary(mut failures: Vec<Error>) -> Error {
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let kind = match failures.iter().find(|failure| failure.is_retryable()) {
        Some(_) => ErrorKind::Unavailable,
        None => failures.first().map_or(ErrorKind::Internal, Error::kind),
    };
    Error::new(kind, text).with_backend("nats")
}
