//! The watch on one Lease: hints for whoever waits, and the state that a standby lives on.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use incumbent_core::{BootInstant, ErrorKind, Result};
use kube_client::client::Body;
use serde_json::Value;
use tracing::warn;

use super::KubernetesStore;
use super::cache::Watching;
use super::failure::{Verb, error, garbage, unreachable};
use super::lease::Lease;
use crate::clock;

/// How long the server keeps a watch open, in seconds. Each end costs a request.
const OPEN: u64 = 3600;
/// The server sends a bookmark each minute: longer silence is a dead connection.
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// The longest event.
const EVENT_MAX: usize = 4 << 20;
/// How long those who may not watch look by themselves, before they try again.
const WITHOUT: Duration = Duration::from_secs(300);

/// One subscription, in the state it has reached.
pub(super) struct Subscription<'a> {
    store: &'a KubernetesStore,
    name: String,
    state: State<'a>,
}

enum State<'a> {
    Closed,
    Open(Open<'a>),
    /// This client may not watch.
    Polling(BootInstant),
    Over,
}

struct Open<'a> {
    body: Body,
    unread: Vec<u8>,
    heard_at: BootInstant,
    host: Arc<str>,
    watching: Watching<'a>,
    _pass: Arc<()>,
}

impl<'a> Subscription<'a> {
    pub(super) fn new(store: &'a KubernetesStore, name: String) -> Subscription<'a> {
        Subscription { store, name, state: State::Closed }
    }

    /// The next hint; an error or `None` is a gap.
    pub(super) async fn next(&mut self) -> Option<Result<()>> {
        loop {
            match &mut self.state {
                State::Over => return None,
                State::Polling(until) => {
                    if clock::now() >= *until {
                        return None;
                    }
                    tokio::time::sleep(self.store.ttl / 3).await;
                    return Some(Ok(()));
                }
                State::Closed => {
                    if let Err(error) = self.open().await {
                        self.state = State::Over;
                        return Some(Err(error));
                    }
                }
                State::Open(open) => match open.event(self.store.ttl).await {
                    Ok(true) => return Some(Ok(())),
                    Ok(false) => {
                        self.state = State::Over;
                        return None;
                    }
                    Err(error) => {
                        self.state = State::Over;
                        self.store.cache.failed(&self.name);
                        return Some(Err(error));
                    }
                },
            }
        }
    }

    async fn open(&mut self) -> Result<()> {
        let (store, name) = (self.store, &self.name);
        let failures = store.cache.failures(name);
        if failures > 0 {
            let pause = (store.ttl / 60).saturating_mul(1 << failures.min(6)).min(store.ttl / 3);
            tokio::time::sleep(pause).await;
        }
        let query = format!("allowWatchBookmarks=true&timeoutSeconds={OPEN}");
        match store.client.watch(name, &query).await {
            Ok((response, pass, host)) => {
                self.state = State::Open(Open {
                    body: response.into_body(),
                    unread: Vec::new(),
                    heard_at: clock::now(),
                    host,
                    watching: store.cache.watching(name),
                    _pass: pass,
                });
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Denied => {
                if store.cache.failed(name) == 1 {
                    warn!(election = %name, "standbys learn of a hand-over late, because {error}");
                }
                self.state = State::Polling(clock::now() + WITHOUT);
                Ok(())
            }
            Err(error) => {
                store.cache.failed(name);
                Err(error)
            }
        }
    }
}

impl Open<'_> {
    /// Waits for the next event that means something; false at the end of the watch.
    async fn event(&mut self, ttl: Duration) -> Result<bool> {
        loop {
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                if self.understand(&line)? {
                    return Ok(true);
                }
            }
            let Ok(frame) = tokio::time::timeout(ttl / 6, self.body.frame()).await else {
                if self.watching.is_deaf() || clock::now().since(self.heard_at) > SILENCE_MAX {
                    return Err(error(
                        ErrorKind::Unavailable,
                        "the watch has fallen silent; opening another",
                    ));
                }
                continue;
            };
            let Some(frame) = frame else { return Ok(false) };
            let frame = frame.map_err(|error| unreachable(error, Verb::Watch, &self.host))?;
            if let Ok(data) = frame.into_data() {
                self.heard_at = clock::now();
                self.unread.extend_from_slice(&data);
            }
            if self.unread.len() > EVENT_MAX {
                return Err(garbage(&self.host, "an event without an end"));
            }
        }
    }

    /// True if it is news.
    fn understand(&self, line: &[u8]) -> Result<bool> {
        let Ok(mut event) = serde_json::from_slice::<Value>(line) else {
            return Err(garbage(&self.host, "an event that is no JSON"));
        };
        match event["type"].as_str().unwrap_or_default() {
            "ADDED" | "MODIFIED" => {
                self.watching.tells(Some(Lease::new(event["object"].take())?));
                Ok(true)
            }
            "DELETED" => {
                self.watching.tells(None);
                Ok(true)
            }
            "BOOKMARK" => Ok(false),
            // 410 Gone, most often: what comes next is read anew.
            _ => {
                let said = event["object"]["message"].as_str().unwrap_or("no reason given").to_owned();
                Err(error(ErrorKind::Unavailable, format!("the API server ended the watch: {said}")))
            }
        }
    }
}
