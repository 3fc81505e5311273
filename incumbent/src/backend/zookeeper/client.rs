//! A session with a ZooKeeper, held by one connection at a time.
//!
//! This speaks ZooKeeper's protocol itself. What the backend needs is a session that is asked for again on a fresh connection
//! with every renewal, the moment before that connection, and the causes of its failures. The crates that there are keep their
//! connections to themselves (`zookeeper-client` connects anew on its own, would fight for the session with what replaced it,
//! and tells nothing of why a server was not reached), run them on a reactor that all of a process shares, and bring TLS with
//! aws-lc only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::ephemeral::Attachment;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::sync::{RwLock, oneshot};
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
pub(super) struct Client {
    config: Config,
    /// The connection in use. Requests hold this for reading, whoever replaces the connection for writing: a request that is
    /// under way while its session moves elsewhere would never be answered.
    link: RwLock<Option<Arc<Link>>>,
    session: Mutex<Session>,
    pub(super) seen: Arc<Seen>,
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
    pub(super) fn new(config: Config) -> Client {
        Client { config, link: RwLock::new(None), session: Mutex::default(), seen: Arc::default() }
    }

    /// The session in use; 0 without one.
    pub(super) fn session(&self) -> i64 {
        self.session_state().ticket.session
    }

    fn session_state(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- connections ----

    /// Asks for the session on a fresh connection, a new session if it has ended. Watches are set again, but for those on paths
    /// that `mute` names.
    ///
    /// # Errors
    /// No server was reached that serves.
    pub(super) async fn attach_anew(&self, mute: impl Fn(&str) -> bool + Send + Sync) -> Result<Attachment> {
        // Somebody else may be attaching, and requests before that be under way.
        let mut link =
            timeout(self.config.attach_limit + self.config.limit * 2, self.link.write()).await.map_err(
                |_| Error::new(ErrorKind::TimedOut, "zookeeper: earlier requests hang").ambiguous(false),
            )?;
        let fresh = self.attach(&mute).await?;
        let attachment = fresh.attachment;
        *link = Some(fresh);
        Ok(attachment)
    }

    /// A connection that holds the session: the one in use, or a fresh one.
    async fn ensure(&self) -> Result<()> {
        if self.link.read().await.as_ref().is_some_and(|link| link.is_alive()) {
            return Ok(());
        }
        let mut link = self.link.write().await;
        if !link.as_ref().is_some_and(|link| link.is_alive()) {
            let failed = self.session_state().failed.clone();
            if let Some((at, failure)) = failed
                && clock::now() < at + self.config.ttl / 60
            {
                return Err(failure);
            }
            *link = None;
            *link = Some(self.attach(&|_| false).await?);
        }
        Ok(())
    }

    async fn attach(&self, mute: &(impl Fn(&str) -> bool + Send + Sync)) -> Result<Arc<Link>> {
        let count = self.config.dialers.len();
        let patience = self.config.attach_limit / u32::try_from(count).unwrap_or(u32::MAX);
        let (first, ticket) = {
            let session = self.session_state();
            (session.server, session.ticket.clone())
        };
        let (mut failures, mut closed) = (Vec::new(), false);
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
                    closed = true;
                    failures.push(failure::closed(&dialer.host));
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => failures.push(failure::unanswered(&dialer.host, false)),
            }
        }
        self.judge(closed);
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

    /// A server closes the connection of a client that has seen more than itself. If nobody else answers for a ttl, they have
    /// gone back.
    fn judge(&self, closed: bool) {
        let mut session = self.session_state();
        if self.seen.zxid() == 0 || !closed {
            session.refused_since = None;
            return;
        }
        let since = *session.refused_since.get_or_insert_with(clock::now);
        if clock::now() >= since + self.config.ttl {
            self.seen.forget();
            *session = Session { regressed: Some(clock::now()), ..Session::default() };
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
    pub(super) async fn unmute(&self, seen: i64, only: impl Fn(&str) -> bool + Send) {
        if let Some(link) = &*self.link.read().await {
            self.watch_again(link, seen, only);
        }
    }

    /// Keeps the session alive.
    ///
    /// # Errors
    /// No server answers.
    pub(super) async fn ping(&self) -> Result<()> {
        self.request(op::PING, false, None, Writer::default()).await.map(drop)
    }

    /// Ends the session and the connection, if nothing has come between that needs them.
    pub(super) async fn close_if(&self, unused: impl FnOnce() -> bool) {
        let mut link = self.link.write().await;
        if !unused() {
            return;
        }
        let Some(link) = link.take() else { return };
        let answer = link.send(op::CLOSE, true, None, Writer::default());
        let _ = timeout(self.config.limit, answer).await;
        self.session_state().ticket = Ticket::default();
    }

    /// How the connection in use holds the session, if there is one and nobody is replacing it.
    pub(super) fn attachment(&self) -> Option<Attachment> {
        let link = self.link.try_read().ok()?;
        link.as_ref().filter(|link| link.is_alive()).map(|link| link.attachment)
    }

    // ---- requests ----

    async fn request(
        &self,
        op: i32,
        writes: bool,
        watch: Option<Arm>,
        record: Writer,
    ) -> Result<Done<Vec<u8>>> {
        let ensured = timeout(self.config.attach_limit, self.ensure()).await;
        let regressed = self.session_state().regressed;
        if op != op::PING && regressed.is_some_and(|at| clock::now() < at + self.config.ttl) {
            let text = "zookeeper: every server that answers has seen less than this process; was it restored from a backup?";
            return Err(Error::new(ErrorKind::StoreRegressed, text).with_backend("zookeeper"));
        }
        ensured.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "zookeeper: no server answers in time")
                .with_backend("zookeeper")
        })??;
        let held = self.link.read().await;
        let Some(link) = &*held else {
            return Err(failure::lost("the cluster", "the connection has just ended", false));
        };
        let answer = match timeout(self.config.limit, link.send(op, writes, watch, record)).await {
            Ok(Ok(answer)) => answer?,
            Ok(Err(_)) => return Err(failure::lost(&link.host, "the connection has ended", writes)),
            Err(_) => {
                link.give_up();
                return Err(failure::unanswered(&link.host, writes));
            }
        };
        let Answer { code, body } = answer;
        let host = Arc::clone(&link.host);
        let result = if code == code::OK { Ok(body) } else { Err(code) };
        Ok(Done { result, attachment: link.attachment, host })
    }

    /// One write.
    ///
    /// # Errors
    /// It was not answered.
    pub(super) async fn write(&self, write: &Write) -> Result<Done<Wrote>> {
        let record = write.put(Writer::default(), self.config.acl);
        let done = self.request(write.op(), true, None, record).await?;
        done.read(|body| Wrote::read(write.op(), body))
    }

    /// Several writes, all or none; what was refused is told as the number of the one at fault and its code.
    ///
    /// # Errors
    /// They were not answered.
    pub(super) async fn together(&self, writes: &[Write]) -> Result<Done<Result<Vec<Wrote>, (usize, i32)>>> {
        let record = writes.iter().fold(Writer::default(), |out, write| {
            write.put(out.int(write.op()).bool(false).int(-1), self.config.acl)
        });
        let record = record.int(op::ERROR).bool(true).int(-1);
        self.request(op::MULTI, true, None, record).await?.read(multi)
    }

    /// Content and state of a node; `None` if it is not there.
    pub(super) async fn get(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        let record = Writer::default().text(path).bool(false);
        let done = self.request(op::GET_DATA, false, None, record).await?;
        done.read(|body| Some((body.bytes()?.to_vec(), body.stat()?)))?.if_there(op::GET_DATA, path)
    }

    /// The state of a node, `None` if it is not there, and what fires when that changes.
    pub(super) async fn watch_node(&self, path: &str) -> Result<(Option<Stat>, oneshot::Receiver<()>)> {
        let (watch, fired) = armed(Kind::Data, path);
        let record = Writer::default().text(path).bool(true);
        let done = self.request(op::EXISTS, false, Some(watch), record).await?;
        Ok((done.read(|body| body.stat())?.if_there(op::EXISTS, path)?, fired))
    }

    /// The names of a node's children; none without the node.
    pub(super) async fn children(&self, path: &str) -> Result<Vec<String>> {
        let record = Writer::default().text(path).bool(false);
        let done = self.request(op::GET_CHILDREN, false, None, record).await?;
        Ok(done.read(|body| body.texts())?.if_there(op::GET_CHILDREN, path)?.unwrap_or_default())
    }

    /// What fires when a child comes or goes, or the node goes; `None` if it is not there. A write of the node fires nothing.
    pub(super) async fn watch_children(&self, path: &str) -> Result<Option<oneshot::Receiver<()>>> {
        let (watch, fired) = armed(Kind::Children, path);
        let record = Writer::default().text(path).bool(true);
        let done = self.request(op::GET_CHILDREN, false, Some(watch), record).await?;
        Ok(done.if_there(op::GET_CHILDREN, path)?.map(|_| fired))
    }

    /// Makes the node at `path` and those above it, as far as they are not there.
    ///
    /// # Errors
    /// It cannot be made, or a request was not answered.
    pub(super) async fn make(&self, path: &str) -> Result<()> {
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
