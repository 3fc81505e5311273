//! Watches of keys, however many, over one stream that is renewed by itself.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::task::AtomicWaker;
use http::uri::PathAndQuery;
use incumbent_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::auth::Pass;
use super::connection::{Connections, Link, require_leader};
use super::failure::{self, Effect};
use super::proto::watch_create_request::FilterType;
use super::proto::watch_request::RequestUnion;
use super::proto::{
    Event, RangeRequest, Rpc, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// What a reader has not yet taken; past this it is told of a gap instead.
const QUEUE_MAX: usize = 64;
/// How long the server may take to connect, to open the stream or to confirm a watch.
const PATIENCE: Duration = Duration::from_secs(5);
/// A watch that nobody reads any more is cancelled this much later: nothing waits for it, and as a rule a hand-over goes on.
const CANCEL_AFTER: Duration = Duration::from_millis(100);
/// The pause before the stream is opened again: doubled from the first to the last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What to watch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct WatchKeys {
    /// The key, or the first one of a range.
    pub(super) key: Vec<u8>,
    /// Empty for one key, else the end of the range (not in it).
    pub(super) range_end: Vec<u8>,
    /// The first revision to be told of: one past the revision of a listing leaves no gap. 0 for what happens from
    /// the server's confirmation on, which is told as the first [`Change::Gap`].
    pub(super) start_revision: i64,
    /// Kinds of change to leave out.
    pub(super) without: Vec<FilterType>,
}

/// What a watch tells.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Change {
    /// These changes happened, in this order.
    Events(Vec<Event>),
    /// Changes may have been missed up to here (lost connection, compaction, a slow reader), none from here on: list
    /// the keys again.
    Gap,
}

/// A watch; a stream of changes. Dropping it cancels it at the server. It ends after an error, which is final: the
/// server refuses this watch.
pub(super) struct Watch {
    id: u64,
    slot: Arc<Slot>,
    commands: UnboundedSender<Command>,
}

impl Watch {
    /// Shows, for as long as the watch is held, whether anything may have happened that it has not told.
    pub(super) fn quiet(&self) -> Quiet {
        Quiet(Arc::clone(&self.slot))
    }
}

/// See [`Watch::quiet`].
#[derive(Clone)]
pub(super) struct Quiet(Arc<Slot>);

impl Quiet {
    /// True if the server has confirmed the watch on a stream that is up, and everything that it told was read.
    pub(super) fn holds(&self) -> bool {
        let queue = self.0.lock();
        queue.confirmed && queue.changes.is_empty()
    }
}

impl Stream for Watch {
    type Item = Result<Change>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.slot.waker.register(cx.waker());
        let mut queue = self.slot.lock();
        match queue.changes.pop_front() {
            Some(change) => Poll::Ready(Some(change)),
            None if queue.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.slot.lock().confirmed = false;
        // If the task is gone, so is its stream, and with it every watch at the server.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where the task leaves changes for the reader of one watch.
#[derive(Default)]
struct Slot {
    queue: Mutex<Queue>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Result<Change>>,
    confirmed: bool,
    ended: bool,
}

impl Slot {
    fn push(&self, change: Change) {
        let mut queue = self.lock();
        if queue.changes.len() >= QUEUE_MAX {
            queue.changes.clear();
            queue.changes.push_back(Ok(Change::Gap));
        } else {
            queue.changes.push_back(Ok(change));
        }
        drop(queue);
        self.waker.wake();
    }

    fn end(&self, last: Option<Error>) {
        let mut queue = self.lock();
        queue.changes.extend(last.map(Err));
        queue.confirmed = false;
        queue.ended = true;
        drop(queue);
        self.waker.wake();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Command {
    Create(u64, WatchKeys, Arc<Slot>),
    Cancel(u64),
}

/// All watches of a client.
#[derive(Clone)]
pub(super) struct Watches(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    /// Set with the first watch, which starts the task.
    commands: OnceLock<UnboundedSender<Command>>,
    next_id: std::sync::atomic::AtomicU64,
}

impl Watches {
    pub(super) fn new(connections: Arc<Connections>) -> Watches {
        Watches(Arc::new(Inner { connections, commands: OnceLock::new(), next_id: Default::default() }))
    }

    pub(super) fn watch(&self, keys: WatchKeys) -> Watch {
        let commands = self.0.commands.get_or_init(|| {
            let (sender, receiver) = unbounded_channel();
            let task = Task {
                connections: Arc::clone(&self.0.connections),
                commands: receiver,
                watches: BTreeMap::new(),
            };
            tokio::spawn(task.run());
            sender
        });
        let id = self.0.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let slot = Arc::new(Slot::default());
        if commands.send(Command::Create(id, keys, Arc::clone(&slot))).is_err() {
            slot.end(None);
        }
        Watch { id, slot, commands: commands.clone() }
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

/// Runs the stream; ends when the client and every watch are dropped.
struct Task {
    connections: Arc<Connections>,
    commands: UnboundedReceiver<Command>,
    watches: BTreeMap<u64, Watching>,
}

impl Drop for Task {
    fn drop(&mut self) {
        for watching in self.watches.values() {
            watching.slot.end(None);
        }
    }
}

struct Watching {
    keys: WatchKeys,
    slot: Arc<Slot>,
    /// The id at the server, while the present stream has confirmed it.
    at_server: Option<i64>,
    /// To be told of a gap once the server has confirmed the watch again.
    behind: bool,
}

/// Why a stream came to its end.
enum End {
    /// Nobody is left to watch anything.
    Unused,
    /// It failed; it had worked if the flag is set.
    Broken { worked: bool },
}

/// One stream, from its opening to its end.
struct Open {
    link: Link,
    pass: Pass,
    requests: UnboundedSender<WatchRequest>,
    /// Watches that the server has not confirmed; it confirms in this order.
    pending: VecDeque<u64>,
    /// By the id at the server.
    ids: BTreeMap<i64, u64>,
    /// When the oldest of `pending` has to be confirmed.
    confirm_by: Instant,
    /// Ids at the server of watches to cancel.
    dropped: Vec<i64>,
    /// When they are cancelled.
    cancel_at: Instant,
}

impl Open {
    fn create(&mut self, id: u64, keys: &WatchKeys) {
        if self.pending.is_empty() {
            self.confirm_by = Instant::now() + PATIENCE;
        }
        self.pending.push_back(id);
        self.send(RequestUnion::CreateRequest(WatchCreateRequest {
            key: keys.key.clone(),
            range_end: keys.range_end.clone(),
            start_revision: keys.start_revision,
            filters: keys.without.iter().map(|kind| (*kind).into()).collect(),
            prev_kv: false,
            fragment: true,
        }));
    }

    fn cancel_later(&mut self, watch_id: i64) {
        self.ids.remove(&watch_id);
        if self.dropped.is_empty() {
            self.cancel_at = Instant::now() + CANCEL_AFTER;
        }
        self.dropped.push(watch_id);
    }

    fn cancel(&mut self) {
        for watch_id in std::mem::take(&mut self.dropped) {
            self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
        }
    }

    fn send(&self, request: RequestUnion) {
        // Fails only if the stream is over, which the reading side finds out.
        let _ = self.requests.send(WatchRequest { request_union: Some(request) });
    }
}

impl Task {
    async fn run(mut self) {
        let mut pause = PAUSE.0;
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command, None);
            }
            if self.watches.is_empty() {
                match self.commands.recv().await {
                    Some(command) => self.obey(command, None),
                    None => return,
                }
                continue;
            }
            match self.stream().await {
                End::Unused => return,
                End::Broken { worked } => pause = if worked { PAUSE.0 } else { (pause * 2).min(PAUSE.1) },
            }
            for watching in self.watches.values_mut() {
                watching.slot.lock().confirmed = false;
                if watching.at_server.take().is_some() {
                    watching.behind = true;
                    watching.keys.start_revision = 0;
                }
            }
            sleep(pause).await;
        }
    }

    async fn stream(&mut self) -> End {
        let (mut open, mut responses) = match self.open().await {
            Ok(opened) => opened,
            Err(failure) => {
                tracing::debug!(%failure, "no watch stream");
                return End::Broken { worked: false };
            }
        };
        let connections = Arc::clone(&self.connections);
        let link = open.link.clone();
        let mut given_up = std::pin::pin!(connections.is_given_up(&link));
        let mut worked = false;
        loop {
            let unconfirmed = !open.pending.is_empty();
            let cancelling = !open.dropped.is_empty();
            tokio::select! {
                () = &mut given_up => return End::Broken { worked },
                () = sleep_until(open.confirm_by), if unconfirmed => {
                    connections.give_up(&link);
                    return End::Broken { worked };
                }
                () = sleep_until(open.cancel_at), if cancelling => open.cancel(),
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command, Some(&mut open)),
                    None => return End::Unused,
                },
                response = responses.message() => match response {
                    Ok(Some(response)) => {
                        worked = true;
                        if let Err(failure) = self.take(response, &mut open).await {
                            tracing::debug!(%failure, "watch stream given up");
                            return End::Broken { worked };
                        }
                    }
                    outcome => {
                        let status = outcome.err().unwrap_or_else(|| Status::unavailable("watch stream closed"));
                        if failure::is_token_refused(&status) {
                            connections.auth().refused(&open.pass);
                        } else {
                            connections.give_up(&link);
                        }
                        tracing::debug!(host = link.host(), %status, "watch stream lost");
                        return End::Broken { worked };
                    }
                },
            }
        }
    }

    /// Opens a stream and asks for all watches at once: the server says nothing before it is asked for something.
    async fn open(&mut self) -> Result<(Open, Streaming<WatchResponse>)> {
        let link = self.connections.link(PATIENCE).await?;
        let opening = async {
            let pass = self.connections.auth().pass(&link).await?;
            let (requests, receiver) = unbounded_channel();
            let mut open = Open {
                link: link.clone(),
                pass,
                requests,
                pending: VecDeque::new(),
                ids: BTreeMap::new(),
                confirm_by: Instant::now() + PATIENCE,
                dropped: Vec::new(),
                cancel_at: Instant::now(),
            };
            for (id, watching) in &self.watches {
                open.create(*id, &watching.keys);
            }
            let mut request = Request::new(UnboundedReceiverStream::new(receiver));
            require_leader(&mut request);
            open.pass.stamp(&mut request);
            let mut grpc = link.grpc();
            let path = PathAndQuery::from_static(WatchRequest::PATH);
            let opened = async {
                grpc.ready().await.map_err(|cause| Status::from_error(cause.into()))?;
                grpc.streaming(request, path, ProstCodec::default()).await
            };
            match opened.await {
                Ok(responses) => Ok((open, responses.into_inner())),
                Err(status) => {
                    if failure::is_token_refused(&status) {
                        self.connections.auth().refused(&open.pass);
                    }
                    Err(failure::explain(status, link.host(), Effect::None))
                }
            }
        };
        let outcome = timeout(PATIENCE, opening)
            .await
            .unwrap_or_else(|_| Err(failure::unanswered(link.host(), Effect::None)));
        if outcome.as_ref().is_err_and(Error::is_retryable) {
            self.connections.give_up(&link);
        }
        outcome
    }

    fn obey(&mut self, command: Command, open: Option<&mut Open>) {
        match command {
            Command::Create(id, keys, slot) => {
                if let Some(open) = open {
                    open.create(id, &keys);
                }
                let behind = keys.start_revision == 0;
                self.watches.insert(id, Watching { keys, slot, at_server: None, behind });
            }
            Command::Cancel(id) => {
                let at_server = self.watches.remove(&id).and_then(|watching| watching.at_server);
                if let (Some(open), Some(watch_id)) = (open, at_server) {
                    open.cancel_later(watch_id);
                }
            }
        }
    }

    /// Takes a message of the server in.
    ///
    /// # Errors
    /// The stream is of no more use.
    async fn take(&mut self, response: WatchResponse, open: &mut Open) -> Result<()> {
        self.connections.check(&open.link, response.header.as_ref(), Effect::None)?;
        if response.created {
            let id = open.pending.pop_front().ok_or_else(|| {
                failure::error(
                    ErrorKind::Internal,
                    open.link.host(),
                    "a watch confirmed that nobody asked for",
                )
            })?;
            open.confirm_by = Instant::now() + PATIENCE;
            match self.watches.get_mut(&id) {
                None if response.canceled => {}
                None => open.cancel_later(response.watch_id), // dropped meanwhile
                Some(_) if response.canceled => self.refused(id, &response.cancel_reason, open).await?,
                Some(watching) => {
                    watching.at_server = Some(response.watch_id);
                    watching.slot.lock().confirmed = true;
                    open.ids.insert(response.watch_id, id);
                    if std::mem::take(&mut watching.behind) {
                        watching.slot.push(Change::Gap);
                    }
                }
            }
        } else if response.canceled {
            // Unknown ids are those that we cancelled.
            let Some(id) = open.ids.remove(&response.watch_id) else { return Ok(()) };
            let Some(watching) = self.watches.get_mut(&id) else { return Ok(()) };
            watching.at_server = None;
            watching.slot.lock().confirmed = false;
            if response.compact_revision != 0 {
                watching.behind = true;
                watching.keys.start_revision = 0;
                let keys = watching.keys.clone();
                open.create(id, &keys);
            } else {
                self.refused(id, &response.cancel_reason, open).await?;
            }
        } else if let Some(watching) = open.ids.get(&response.watch_id).and_then(|id| self.watches.get(id))
            && !response.events.is_empty()
        {
            watching.slot.push(Change::Events(response.events));
        }
        Ok(())
    }

    /// The server will not have the watch `id`. If that is for an expired token (which etcd 3.4 calls a lack of
    /// permission), the stream is opened again with a new one, else the watch is over.
    async fn refused(&mut self, id: u64, reason: &str, open: &Open) -> Result<()> {
        let Some(watching) = self.watches.get(&id) else { return Ok(()) };
        let WatchKeys { key, range_end, .. } = watching.keys.clone();
        let mut request = Request::new(RangeRequest {
            key,
            range_end,
            serializable: true,
            count_only: true,
            ..Default::default()
        });
        open.pass.stamp(&mut request);
        let host = open.link.host();
        match timeout(PATIENCE, open.link.send(request)).await {
            Ok(Err(status))
                if failure::is_token_refused(&status) && self.connections.auth().refused(&open.pass) =>
            {
                return Err(failure::explain(status, host, Effect::None));
            }
            Err(_) => {
                self.connections.give_up(&open.link);
                return Err(failure::unanswered(host, Effect::None));
            }
            Ok(_) => {}
        }
        if let Some(watching) = self.watches.remove(&id) {
            let text =
                format!("the watch is refused ({reason}); grant the user read permission on these keys");
            watching.slot.end(Some(failure::error(ErrorKind::Denied, host, text)));
        }
        Ok(())
    }
}
