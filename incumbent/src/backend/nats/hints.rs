//! What the server tells of changes: one consumer per connection, of the whole bucket, without values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use incumbent_core::record::RecordKey;
use incumbent_core::{BoxStream, ElectionName, Error, Note, Result};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::answer;
use super::client::Client;
use super::dial::Link;
use super::failure::{self, Effect, Refusal};
use crate::backend::signals::Signals;

/// The shortest and the longest pause between two tries to hear anything.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The shortest and the longest time after which the server says that nothing has changed.
const HEARTBEAT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long a consumer may take to be made. For minutes after a server of a cluster has gone, consumers are given to it, and nobody
/// answers; the next try may be given to another one.
const CREATION: Duration = Duration::from_secs(1);
/// So many heartbeats may be missing.
const MISSED: u32 = 3;

/// Who waits for news of which election.
pub(super) struct Hints {
    client: Arc<Client>,
    signals: Signals,
    /// How many want to hear of each election.
    wanted: Mutex<BTreeMap<String, usize>>,
    wanted_changed: Notify,
    /// Marks the renewals that this connection writes.
    mark: String,
}

/// Why nothing is heard any more.
enum End {
    /// The connection ended, or the server lost the consumer: listen anew.
    Gap,
    /// The server will not tell.
    Refused(Error),
    /// Nobody wants to hear anything.
    Unwanted,
}

impl Hints {
    pub(super) fn new(client: Arc<Client>, mark: String) -> Hints {
        Hints {
            client,
            signals: Signals::default(),
            wanted: Mutex::default(),
            wanted_changed: Notify::new(),
            mark,
        }
    }

    /// The mark of this connection's renewals.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The signals of one election from now on.
    pub(super) fn follow(self: &Arc<Self>, election: &ElectionName) -> BoxStream<'static, Result<()>> {
        let election = election.to_string();
        let signals = self.signals.subscribe(&election);
        *self.wanted().entry(election.clone()).or_insert(0) += 1;
        self.wanted_changed.notify_one();
        let listener = Listener { hints: Arc::clone(self), election };
        Box::pin(signals.inspect(move |_| {
            let _ = &listener;
        }))
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens as long as anybody wants to hear, over all connections.
    pub(super) async fn run(self: Arc<Self>) {
        let (mut pause, mut is_refused) = (PAUSE.0, false);
        loop {
            while self.wanted().is_empty() {
                self.wanted_changed.notified().await;
            }
            let Ok(link) = self.client.link().await else {
                pause = (pause * 2).min(PAUSE.1);
                tokio::time::sleep(pause).await;
                continue;
            };
            match self.listen_on(&link).await {
                End::Unwanted => {}
                End::Gap => {
                    pause = PAUSE.0;
                    tokio::time::sleep(pause).await;
                }
                End::Refused(failure) => {
                    if !std::mem::replace(&mut is_refused, true) {
                        tracing::warn!(%failure, "nats tells nothing of changes, so they are looked for");
                    }
                    tokio::time::sleep(self.client.config.poll()).await;
                }
            }
            // What happened meanwhile is seen by a look.
            self.signals.send_all();
        }
    }

    async fn listen_on(&self, link: &Arc<Link>) -> End {
        let heartbeat = self.client.config.poll().clamp(HEARTBEAT.0, HEARTBEAT.1);
        let mut messages = match self.subscribe(link, heartbeat).await {
            Ok(messages) => messages,
            Err(failure) if failure.is_retryable() => return End::Gap,
            Err(failure) => return End::Refused(failure),
        };
        self.signals.send_all();
        let mut delivered = 0;
        loop {
            let next = tokio::select! {
                next = timeout(heartbeat * MISSED, messages.next()) => next,
                () = link.closed() => return End::Gap,
                () = self.unwanted() => return End::Unwanted,
            };
            let Ok(Some(message)) = next else { return End::Gap };
            if message.status.is_some() {
                // A heartbeat says how many messages there were.
                let header = message.headers.as_ref().and_then(|headers| headers.get("Nats-Last-Consumer"));
                let last = header.and_then(|count| count.as_str().parse().ok()).unwrap_or(delivered);
                if last != delivered {
                    return End::Gap;
                }
                continue;
            }
            match count(&message) {
                Some(number) if number == delivered + 1 => delivered = number,
                _ => return End::Gap,
            }
            self.tell(&message);
        }
    }

    async fn subscribe(&self, link: &Arc<Link>, heartbeat: Duration) -> Result<Subscriber> {
        let keys = &self.client.config.keys;
        let cut = |()| failure::cut(&link.host, Effect::None);
        let inbox = link.client.new_inbox();
        let messages = link.client.subscribe(inbox.clone()).await.map_err(|_| cut(()))?;
        let request = json!({
            "stream_name": keys.stream(),
            "config": {
                "deliver_subject": inbox, "filter_subject": keys.all(), "deliver_policy": "new", "ack_policy": "none",
                "replay_policy": "instant", "headers_only": true, "mem_storage": true, "num_replicas": 1,
                "idle_heartbeat": heartbeat.as_nanos() as u64, "max_deliver": 1,
                // After the connection is gone.
                "inactive_threshold": heartbeat.as_nanos() as u64,
            },
        });
        let subject = format!("$JS.API.CONSUMER.CREATE.{}", keys.stream());
        let asked = link.ask(subject, None, request.to_string().into_bytes(), Effect::None);
        let answer = timeout(CREATION, asked).await.unwrap_or_else(|_| Err(cut(())))?;
        #[derive(Deserialize)]
        struct Answer {
            error: Option<Refusal>,
        }
        let answer: Answer = serde_json::from_slice(&answer.payload)
            .map_err(|_| failure::garbage(&link.host, Effect::None))?;
        match answer.error {
            Some(refusal) => Err(refusal.explain(&link.host, keys, Effect::None)),
            None => Ok(messages),
        }
    }

    /// Returns when nobody wants to hear anything.
    async fn unwanted(&self) {
        while !self.wanted().is_empty() {
            self.wanted_changed.notified().await;
        }
    }

    fn tell(&self, message: &Message) {
        let Some(RecordKey { election, note }) = self.client.config.keys.record(&message.subject) else {
            return;
        };
        if note == Some(Note::Checkpoint) {
            return;
        }
        // A renewal of one's own is news only to another candidate of this process.
        match answer::renewed_by(message.headers.as_ref()) == Some(self.mark.as_str()) {
            true => self.signals.send_if_shared(election.as_str()),
            false => self.signals.send(election.as_str()),
        }
    }
}

/// The how-manieth message of its consumer it is: `$JS.ACK.STREAM.CONSUMER.DELIVERIES.REVISION.COUNT.…`, from 2.10 on with a domain
/// and an account in front.
fn count(message: &Message) -> Option<u64> {
    let reply: Vec<&str> = message.reply.as_ref()?.split('.').collect();
    let at = if reply.len() < 11 { 6 } else { 8 };
    reply.get(at)?.parse().ok()
}

/// One who wants to hear of an election.
struct Listener {
    hints: Arc<Hints>,
    election: String,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut wanted = self.hints.wanted();
        if let Some(count) = wanted.get_mut(&self.election) {
            *count -= 1;
            if *count == 0 {
                wanted.remove(&self.election);
                drop(wanted);
                self.hints.wanted_changed.notify_one();
            }
        }
    }
}
