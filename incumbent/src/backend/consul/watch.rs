//! What the store shows of keys, told as it changes: a blocking query for each of a few keys, a shared poll for many, since a
//! Consul agent takes no more than 200 connections from one address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch::{self, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::api::{Client, Entry, OPS_MAX, Op, Txn};

/// Keys that are followed by a blocking query of their own.
const QUERIES_MAX: usize = 16;
/// After a failed query.
const PAUSE: Duration = Duration::from_millis(200);

/// A key as it was last seen; `None` before the first look.
pub(super) type Sight = Option<Option<Entry>>;
/// The keys under a prefix and the index of each.
pub(super) type Listing = Option<BTreeMap<String, u64>>;

/// Follows keys as long as someone listens. Cheap to clone.
#[derive(Clone)]
pub(super) struct Watches(Arc<Inner>);

struct Inner {
    client: Client,
    /// How long one query waits.
    wait: Duration,
    /// How often many keys are asked for.
    poll_every: Duration,
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    topics: BTreeMap<String, Topic>,
    listings: BTreeMap<String, Sender<Listing>>,
    /// How many are under way.
    queries: usize,
    polls: bool,
    tasks: JoinSet<()>,
}

struct Topic {
    sender: Sender<Sight>,
    polled: bool,
}

impl Watches {
    pub(super) fn new(client: Client, ttl: Duration) -> Watches {
        Watches(Arc::new(Inner {
            client,
            wait: (ttl * 2).clamp(Duration::from_secs(5), Duration::from_secs(60)),
            poll_every: ttl / 15,
            limit: ttl / 9,
            state: Mutex::default(),
        }))
    }

    /// Follows a key. Must be called within a tokio runtime, which then runs the query.
    pub(super) fn key(&self, key: &str) -> Receiver<Sight> {
        let mut state = self.0.lock();
        if let Some(topic) = state.topics.get(key) {
            return topic.sender.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        state.topics.insert(key.to_owned(), Topic { sender, polled: true });
        self.0.query_what_may(&mut state);
        if state.topics.get(key).is_some_and(|topic| topic.polled) && !state.polls {
            state.polls = true;
            let inner = Arc::clone(&self.0);
            state.spawn(async move { inner.poll().await });
        }
        receiver
    }

    /// A key as it was last seen, if it is followed.
    pub(super) fn seen(&self, key: &str) -> Option<Entry> {
        self.0.lock().topics.get(key)?.sender.borrow().clone().flatten()
    }

    /// Follows all keys under a prefix.
    pub(super) fn listing(&self, prefix: &str) -> Receiver<Listing> {
        let mut state = self.0.lock();
        if let Some(sender) = state.listings.get(prefix) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        state.listings.insert(prefix.to_owned(), sender);
        let (inner, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        state.spawn(async move { inner.list(prefix).await });
        receiver
    }

    /// Ends all queries.
    pub(super) fn close(&self) {
        self.0.lock().tasks.abort_all();
    }
}

impl State {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

/// A query is always waited for, also when nobody listens any more: the server goes on with it and counts its connection until it
/// has answered, whether or not that was closed.
impl Inner {
    /// Gives the keys that are polled a query of their own, as far as there may be more.
    fn query_what_may(self: &Arc<Self>, state: &mut State) {
        let free = QUERIES_MAX - state.queries;
        let polled = state.topics.iter_mut().filter(|(_, topic)| topic.polled).take(free);
        let keys: Vec<String> = polled
            .map(|(key, topic)| {
                topic.polled = false;
                key.clone()
            })
            .collect();
        state.queries += keys.len();
        for key in keys {
            let inner = Arc::clone(self);
            state.spawn(async move { inner.query(key).await });
        }
    }

    async fn query(&self, key: String) {
        let mut index = 0;
        while let Some(sender) = self.queried(&key) {
            match self.client.follow(&key, index, self.wait).await {
                Ok(reply) => {
                    // An index that went back, as after a restore, begins anew.
                    index = if reply.index < index { 0 } else { reply.index.max(1) };
                    show(&sender, reply.body);
                }
                Err(failure) => {
                    tracing::debug!(%failure, "a key cannot be followed");
                    index = 0;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Whom to tell of a key; `None` if nobody listens, and its query ends.
    fn queried(&self, key: &str) -> Option<Sender<Sight>> {
        let mut state = self.lock();
        let sender = state.topics.get(key)?.sender.clone();
        if sender.receiver_count() == 0 {
            state.topics.remove(key);
            state.queries -= 1;
            return None;
        }
        Some(sender)
    }

    async fn list(&self, prefix: String) {
        let mut index = 0;
        while let Some(sender) = self.listed(&prefix) {
            match self.client.follow_all(&prefix, index, self.wait).await {
                Ok(reply) => {
                    index = if reply.index < index { 0 } else { reply.index.max(1) };
                    let listing = reply.body.into_iter().map(|entry| (entry.key, entry.index)).collect();
                    sender.send_if_modified(|old| {
                        let new = Some(listing);
                        let changed = *old != new;
                        *old = new;
                        changed
                    });
                }
                Err(failure) => {
                    tracing::debug!(%failure, "the hand-over requests cannot be followed");
                    index = 0;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn listed(&self, prefix: &str) -> Option<Sender<Listing>> {
        let mut state = self.lock();
        let sender = state.listings.get(prefix)?.clone();
        if sender.receiver_count() == 0 {
            state.listings.remove(prefix);
            return None;
        }
        Some(sender)
    }

    async fn poll(self: &Arc<Self>) {
        loop {
            let senders: Vec<(String, Sender<Sight>)> = {
                let mut state = self.lock();
                state.topics.retain(|_, topic| !topic.polled || topic.sender.receiver_count() > 0);
                self.query_what_may(&mut state);
                let polled = state.topics.iter().filter(|(_, topic)| topic.polled);
                let senders: Vec<_> =
                    polled.map(|(key, topic)| (key.clone(), topic.sender.clone())).collect();
                if senders.is_empty() {
                    state.polls = false;
                    return;
                }
                senders
            };
            for some in senders.chunks(OPS_MAX) {
                let ops: Vec<Op> = some.iter().map(|(key, _)| Op::get_tree(key)).collect();
                match self.client.txn(&ops, self.limit).await.map(|reply| reply.body) {
                    Ok(Txn::Done(entries)) => {
                        for (key, sender) in some {
                            show(sender, entries.iter().find(|entry| entry.key == *key).cloned());
                        }
                    }
                    Ok(Txn::Refused(refusals)) => tracing::debug!(?refusals, "keys cannot be read"),
                    Err(failure) => tracing::debug!(%failure, "keys cannot be read"),
                }
            }
            sleep(self.poll_every).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn show(sender: &Sender<Sight>, entry: Option<Entry>) {
    sender.send_if_modified(|old| {
        let new = Some(entry);
        let changed = *old != new;
        *old = new;
        changed
    });
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}
