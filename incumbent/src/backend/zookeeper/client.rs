//! A session with a ZooKeeper, held by one connection at a time.
//!
//! This speaks ZooKeeper's protocol itself. What the backend needs is a session that is asked for again on a fresh connection
//! with every renewal, the moment before that connection, and the causes of its failures. The crates that there are keep their
//! connections to themselves (`zookeeper-client` connects anew on its own, would fight for the session with what replaced it,
//! and tells nothing of why a server was not reached), run them on a reactor that all of a process shares, and bring TLS with
//! aws-lc only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use incumbent_core::ephemeral::Attachment;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::dial::{Dialer, Handshake, Ticket};
use super::failure;
use super::jute::{Acl, Mode, Reader, Stat, Write, Writer, Wrote, code, multi, op};
use super::link::{Answer, Link, Seen};
use super::watches::{Arm, Kind};
use crate::clock;

/// Where a ZooKeeper is and how to speak to it.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) dialers: Vec<Dialer>,
    pub(super) acl: Acl,
    pub(super) ttl: Duration,
    /// How long one answer may take.
    pub(super) limit: Duration,
    /// How long it may take until a connection holds the session, all servers together.
    pub(super) attach_limit: Duration,
}

/// The client.
///
/// No future that a caller drives holds anything that others wait for: one that is not polled for a while, as a stream of
/// hints may be, must not keep a renewal from its connection. So connections are made by tasks.
pub(super) struct Client {
    config: Config,
    gate: Mutex<Gate>,
    /// How the latest attempt to attach failed, if it did.
    attached: watch::Sender<Option<Error>>,
    session: Mutex<Session>,
    pub(super) seen: Arc<Seen>,
}

#[derive(Default)]
struct Gate {
    /// The connection in use.
    link: Option<Arc<Link>>,
    /// Somebody is making the next one; nothing may be sent until then. What is under way while its session moves elsewhere
    /// would never be answered.
    attaching: bool,
    task: Option<AbortHandle>,
}

/// The right to make the next connection; its end lets requests through again.
struct Turn<'a> {
    client: &'a Client,
    failure: Option<Error>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.client.gate().attaching = false;
        self.client.attached.send_replace(self.failure.take());
    }
}

/// A request that is under way.
struct Sent {
    answer: oneshot::Receiver<Result<Answer>>,
    attachment: Attachment,
    host: Arc<str>,
    link: Weak<Link>,
}

#[derive(Default)]
struct Session {
    ticket: Ticket,
    /// The server that was reached last.
    server: usize,
    /// Since when every server that answers at all closes the connection in answer.
    refused_since: Option<BootInstant>,
    /// When the servers were found to have gone back. Everyone who asks is told for a ttl, whoever asks first.
    regressed: Option<BootInstant>,
    /// How the latest attempt to reach a server failed: a thousand elections do not each try for themselves.
    failed: Option<(BootInstant, Error)>,
}

/// What a request gave, or the code with which it was refused, and the connection that it went through.
pub(super) struct Done<T> {
    pub(super) result: Result<T, i32>,
    pub(super) attachment: Attachment,
    host: Arc<str>,
}

impl Client {
    pub(super) fn new(config: Config) -> Arc<Client> {
        Arc::new(Client {
            config,
            gate: Mutex::default(),
            attached: watch::Sender::default(),
            session: Mutex::default(),
            seen: Arc::default(),
        })
    }

    /// The session in use; 0 without one.
    pub(super) fn session(&self) -> i64 {
        self.session_state().ticket.session
    }

    fn session_state(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is begun any more.
    pub(super) fn stop(&self) {
        if let Some(task) = self.gate().task.take() {
            task.abort();
        }
    }

    // ---- connections ----

    /// Asks for the session on a fresh connection, a new session if it has ended. Watches are set again, but for those on paths
    /// that `mute` names.
    ///
    /// # Errors
    /// No server was reached that serves.
    pub(super) async fn attach_anew(&self, mute: impl Fn(&str) -> bool + Send + Sync) -> Result<Attachment> {
        let mut turn = timeout(self.config.attach_limit + self.config.limit, self.turn())
            .await
            .map_err(|_| failure::lost("the cluster", "no server has answered in time", false))?;
        let old = self.gate().link.clone();
        if let Some(link) = old
            && timeout(self.config.limit, link.answered()).await.is_err()
        {
            // Everything that is under way was sent longer ago than that.
            link.give_up();
        }
        let fresh = self.attach(&mute).await.inspect_err(|failure| turn.failure = Some(failure.clone()))?;
        let attachment = fresh.attachment;
        self.gate().link = Some(fresh);
        Ok(attachment)
    }

    /// Waits until nobody else makes a connection.
    async fn turn(&self) -> Turn<'_> {
        let mut attached = self.attached.subscribe();
        loop {
            attached.mark_unchanged();
            if !std::mem::replace(&mut self.gate().attaching, true) {
                return Turn { client: self, failure: None };
            }
            // It ends with this client only.
            let _ = attached.changed().await;
        }
    }

    /// Sends a request through the connection in use. If there is none a task makes one, for all who wait.
    async fn send(
        self: &Arc<Self>,
        op: i32,
        writes: bool,
        watch: Option<Arm>,
        record: Writer,
    ) -> Result<Sent> {
        let mut attached = self.attached.subscribe();
        let mut failure = None;
        loop {
            attached.mark_unchanged();
            {
                let mut gate = self.gate();
                let usable = gate.link.as_ref().filter(|link| !gate.attaching && link.is_alive());
                if let Some(link) = usable {
                    let answer = link.send(op, writes, watch, record);
                    let host = Arc::clone(&link.host);
                    return Ok(Sent {
                        answer,
                        attachment: link.attachment,
                        host,
                        link: Arc::downgrade(link),
                    });
                }
                if !gate.attaching {
                    if let Some(failure) = failure.or_else(|| self.failed_just_now()) {
                        return Err(failure);
                    }
                    gate.attaching = true;
                    gate.link = None;
                    let client = Arc::clone(self);
                    gate.task = Some(tokio::spawn(async move { client.reattach().await }).abort_handle());
                }
            }
            let _ = attached.changed().await;
            failure = attached.borrow().clone();
        }
    }

    fn failed_just_now(&self) -> Option<Error> {
        let (at, failure) = self.session_state().failed.clone()?;
        (clock::now() < at + self.config.ttl / 60).then_some(failure)
    }

    /// Makes the next connection, after the gate was closed for it.
    async fn reattach(&self) {
        let mut turn = Turn { client: self, failure: None };
        match self.attach(&|_| false).await {
            Ok(link) => self.gate().link = Some(link),
            Err(failure) => turn.failure = Some(failure),
        }
    }

    async fn attach(&self, mute: &(impl Fn(&str) -> bool + Send + Sync)) -> Result<Arc<Link>> {
        let count = self.config.dialers.len();
        let patience = self.config.attach_limit / u32::try_from(count).unwrap_or(u32::MAX);
        let (first, ticket) = {
            let session = self.session_state();
            (session.server, session.ticket.clone())
        };
        let (mut failures, mut closed) = (Vec::new(), Vec::new());
        for index in (first..first + count).map(|index| index % count) {
            let dialer = &self.config.dialers[index];
            match timeout(patience, self.attach_to(dialer, &ticket)).await {
                Ok(Ok(Some((link, ticket)))) => {
                    let mut session = self.session_state();
                    (session.ticket, session.server) = (ticket, index);
                    (session.refused_since, session.failed) = (None, None);
                    drop(session);
                    self.watch_again(&link, self.seen.zxid(), |path| !mute(path));
                    return Ok(link);
                }
                Ok(Ok(None)) => {
                    closed.push(dialer);
                    failures.push(failure::closed(&dialer.host));
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => failures.push(failure::unanswered(&dialer.host, false)),
            }
        }
        self.judge(&closed, patience).await;
        // What a user can mend says more than that another server is down.
        let best = failures.iter().position(|failure: &Error| !failure.is_retryable()).unwrap_or(0);
        let failure = failures.swap_remove(best);
        self.session_state().failed = Some((clock::now(), failure.clone()));
        Err(failure)
    }

    /// `None` if the server closed the connection in answer.
    async fn attach_to(&self, dialer: &Dialer, ticket: &Ticket) -> Result<Option<(Arc<Link>, Ticket)>> {
        let mut ticket = ticket.clone();
        loop {
            match dialer.attach(&ticket, self.config.ttl, self.seen.zxid()).await? {
                Handshake::Held(io, attachment, ticket) => {
                    let link = Link::new(Arc::clone(&dialer.host), io, attachment, Arc::clone(&self.seen));
                    return Ok(Some((Arc::new(link), ticket)));
                }
                Handshake::Closed => return Ok(None),
                Handshake::Ended if ticket.session == 0 => return Err(failure::garbage(&dialer.host)),
                Handshake::Ended => {
                    tracing::debug!(session = ?ticket, host = %dialer.host, "the session has ended");
                    ticket = Ticket::default();
                    self.session_state().ticket = Ticket::default();
                }
            }
        }
    }

    /// A server closes the connection of a client that has seen more than itself, and of any client while it has no majority. If
    /// that goes on for a ttl and it serves one who has seen nothing, the servers have gone back.
    async fn judge(&self, closed: &[&Dialer], patience: Duration) {
        let since = {
            let mut session = self.session_state();
            if self.seen.zxid() == 0 || closed.is_empty() {
                session.refused_since = None;
                return;
            }
            *session.refused_since.get_or_insert_with(clock::now)
        };
        if clock::now() < since + self.config.ttl {
            return;
        }
        self.session_state().refused_since = None;
        let nothing = Ticket::default();
        for dialer in closed {
            let asked = dialer.attach(&nothing, self.config.ttl, 0);
            if let Ok(Ok(Handshake::Held(io, attachment, _))) = timeout(patience, asked).await {
                self.seen.forget();
                *self.session_state() = Session { regressed: Some(clock::now()), ..Session::default() };
                let link = Link::new(Arc::clone(&dialer.host), io, attachment, Arc::clone(&self.seen));
                let ended = link.send(op::CLOSE, true, None, Writer::default());
                let _ = timeout(self.config.limit, ended).await;
                return;
            }
        }
    }

    /// Tells a new connection of the watches on the paths that `only` allows; what changed since `seen` is told at once.
    fn watch_again(&self, link: &Link, seen: i64, only: impl Fn(&str) -> bool) {
        for record in self.seen.watches.records(seen, only) {
            // The answer says nothing.
            drop(link.send(op::SET_WATCHES, false, None, record));
        }
    }

    /// Sets those watches again that [`attach_anew`](Client::attach_anew) has left out.
    pub(super) fn unmute(&self, seen: i64, only: impl Fn(&str) -> bool) {
        let link = self.gate().link.clone();
        if let Some(link) = link {
            self.watch_again(&link, seen, only);
        }
    }

    /// Keeps the session alive.
    ///
    /// # Errors
    /// No server answers.
    pub(super) async fn ping(self: &Arc<Self>) -> Result<()> {
        self.request(op::PING, false, None, Writer::default()).await.map(drop)
    }

    /// Ends the session and the connection, if nothing has come between that needs them.
    pub(super) async fn close_if(&self, unused: impl FnOnce() -> bool) {
        let (link, answer) = {
            let mut gate = self.gate();
            if gate.attaching || !unused() {
                return;
            }
            let Some(link) = gate.link.take() else { return };
            // Whoever comes now asks for a session of its own.
            self.session_state().ticket = Ticket::default();
            let answer = link.send(op::CLOSE, true, None, Writer::default());
            (link, answer)
        };
        let _ = timeout(self.config.limit, answer).await;
        drop(link);
    }

    /// How the connection in use holds the session, if there is one and nobody is replacing it.
    pub(super) fn attachment(&self) -> Option<Attachment> {
        let gate = self.gate();
        gate.link.as_ref().filter(|link| !gate.attaching && link.is_alive()).map(|link| link.attachment)
    }

    // ---- requests ----

    async fn request(
        self: &Arc<Self>,
        op: i32,
        writes: bool,
        watch: Option<Arm>,
        record: Writer,
    ) -> Result<Done<Vec<u8>>> {
        let sent =
            timeout(self.config.attach_limit + self.config.limit, self.send(op, writes, watch, record)).await;
        let regressed = self.session_state().regressed;
        if op != op::PING && regressed.is_some_and(|at| clock::now() < at + self.config.ttl) {
            let text = "zookeeper: every server that answers has seen less than this process; was it restored from a backup?";
            return Err(Error::new(ErrorKind::StoreRegressed, text).with_backend("zookeeper"));
        }
        let sent = sent.map_err(|_| failure::lost("the cluster", "no server has answered in time", false))?;
        let Sent { answer, attachment, host, link } = sent?;
        let answer = match timeout(self.config.limit, answer).await {
            Ok(Ok(answer)) => answer?,
            Ok(Err(_)) => return Err(failure::lost(&host, "the connection has ended", writes)),
            Err(_) => {
                if let Some(link) = link.upgrade() {
                    link.give_up();
                }
                return Err(failure::unanswered(&host, writes));
            }
        };
        let Answer { code, body } = answer;
        let result = if code == code::OK { Ok(body) } else { Err(code) };
        Ok(Done { result, attachment, host })
    }

    /// One write.
    ///
    /// # Errors
    /// It was not answered.
    pub(super) async fn write(self: &Arc<Self>, write: &Write) -> Result<Done<Wrote>> {
        let record = write.put(Writer::default(), self.config.acl);
        let done = self.request(write.op(), true, None, record).await?;
        done.read(|body| Wrote::read(write.op(), body))
    }

    /// Several writes, all or none; what was refused is told as the number of the one at fault and its code.
    ///
    /// # Errors
    /// They were not answered.
    pub(super) async fn together(
        self: &Arc<Self>,
        writes: &[Write],
    ) -> Result<Done<Result<Vec<Wrote>, (usize, i32)>>> {
        let record = writes.iter().fold(Writer::default(), |out, write| {
            write.put(out.int(write.op()).bool(false).int(-1), self.config.acl)
        });
        let record = record.int(op::ERROR).bool(true).int(-1);
        self.request(op::MULTI, true, None, record).await?.read(multi)
    }

    /// Content and state of a node; `None` if it is not there.
    pub(super) async fn get(self: &Arc<Self>, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        let record = Writer::default().text(path).bool(false);
        let done = self.request(op::GET_DATA, false, None, record).await?;
        done.read(|body| Some((body.bytes()?.to_vec(), body.stat()?)))?.if_there(op::GET_DATA, path)
    }

    /// The state of a node, `None` if it is not there, and what fires when that changes.
    pub(super) async fn watch_node(
        self: &Arc<Self>,
        path: &str,
    ) -> Result<(Option<Stat>, oneshot::Receiver<()>)> {
        let (watch, fired) = armed(Kind::Data, path);
        let record = Writer::default().text(path).bool(true);
        let done = self.request(op::EXISTS, false, Some(watch), record).await?;
        Ok((done.read(|body| body.stat())?.if_there(op::EXISTS, path)?, fired))
    }

    /// The names of a node's children; none without the node.
    pub(super) async fn children(self: &Arc<Self>, path: &str) -> Result<Vec<String>> {
        let record = Writer::default().text(path).bool(false);
        let done = self.request(op::GET_CHILDREN, false, None, record).await?;
        Ok(done.read(|body| body.texts())?.if_there(op::GET_CHILDREN, path)?.unwrap_or_default())
    }

    /// What fires when a child comes or goes, or the node goes; `None` if it is not there. A write of the node fires nothing.
    pub(super) async fn watch_children(
        self: &Arc<Self>,
        path: &str,
    ) -> Result<Option<oneshot::Receiver<()>>> {
        let (watch, fired) = armed(Kind::Children, path);
        let record = Writer::default().text(path).bool(true);
        let done = self.request(op::GET_CHILDREN, false, Some(watch), record).await?;
        Ok(done.if_there(op::GET_CHILDREN, path)?.map(|_| fired))
    }

    /// Makes the node at `path` and those above it, as far as they are not there.
    ///
    /// # Errors
    /// It cannot be made, or a request was not answered.
    pub(super) async fn make(self: &Arc<Self>, path: &str) -> Result<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        let mut outcome = Ok(());
        for end in ends {
            let create =
                Write::Create { path: path[..end].to_owned(), data: Vec::new(), mode: Mode::Persistent };
            let done = self.write(&create).await?;
            // The upper ones may be there and closed to us: what counts is the last.
            outcome = match done.result {
                Ok(_) | Err(code::NODE_EXISTS) => Ok(()),
                Err(code::NO_NODE) => outcome.and_then(|()| done.settle(&create).map(drop)),
                Err(_) => done.settle(&create).map(drop),
            };
        }
        outcome
    }
}

impl<T> Done<T> {
    /// Reads the body of an answer; what is no answer is an error, and leaves open whether a write was done.
    fn with<U>(self, result: Result<U, i32>) -> Done<U> {
        Done { result, attachment: self.attachment, host: self.host }
    }

    /// `None` if the node is not there.
    fn if_there(self, op: i32, path: &str) -> Result<Option<T>> {
        match self.result {
            Ok(result) => Ok(Some(result)),
            Err(code::NO_NODE) => Ok(None),
            Err(code) => Err(failure::refused(code, op, path, &self.host)),
        }
    }

    /// What was refused as an error.
    pub(super) fn settle(self, write: &Write) -> Result<T> {
        let Done { result, host, .. } = self;
        result.map_err(|code| failure::refused(code, write.op(), write.path(), &host))
    }
}

impl Done<Vec<u8>> {
    fn read<U>(self, read: impl FnOnce(&mut Reader<'_>) -> Option<U>) -> Result<Done<U>> {
        let result = match &self.result {
            Ok(body) => match read(&mut Reader(body)) {
                Some(result) => Ok(result),
                None => return Err(failure::garbage(&self.host).ambiguous(true)),
            },
            Err(code) => Err(*code),
        };
        Ok(self.with(result))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.config).finish_non_exhaustive()
    }
}

fn armed(kind: Kind, path: &str) -> (Arm, oneshot::Receiver<()>) {
    let (fire, fired) = oneshot::channel();
    (Arm { kind, path: path.to_owned(), fire }, fired)
}
