//! The way to the bucket: through which server, when to give it up for another, and whether the bucket still is the same one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, Message};
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use super::bucket::Facts;
use super::dial::{self, Config, Link, Opened};
use super::failure::{self, Effect};
use crate::backend::hosts::{Hosts, SEARCH};
use crate::clock;

/// One connection at a time, shared by all elections.
pub(super) struct Client {
    pub(super) config: Config,
    hosts: Hosts,
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
        let hosts = Hosts::new(config.hosts.len(), config.patience);
        Client { config, hosts, state: Mutex::default() }
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
                self.hosts.give_up(link.index);
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
                state.changed_at = clock::now();
                state.link = Some(Arc::clone(link));
            }
            drop(state);
            found.send_replace(Some(outcome));
        });
        search
    }

    /// The first server through which the bucket is seen.
    async fn search(&self) -> Result<Opened> {
        let silent = |index: usize| {
            let text = format_args!("no answer within {SEARCH:?}");
            failure::error(ErrorKind::Unavailable, &self.config.name(index), text)
        };
        self.hosts.search(|index| dial::connect(&self.config, index), silent).await
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
