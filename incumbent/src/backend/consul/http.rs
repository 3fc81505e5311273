//! HTTP/1.1 to one of several servers: each request is sent once, on a connection that serves nothing else meanwhile, and says
//! when it was sent.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::failure::{self, Effect};
use crate::backend::tls::Tls;
use crate::clock;

/// More than any answer that is asked for.
const MAX_ANSWER: usize = 64 << 20;
/// Requests at the same time, and connections that are kept although nothing is asked. A Consul agent takes no more than 200
/// connections from one address.
const AT_ONCE: usize = 8;

/// Where Consul is, and how to get in.
#[derive(Clone)]
pub(super) struct Config {
    /// `name` (for TLS) and `host:port` of each server or agent, in the order in which they are tried.
    pub(super) hosts: Vec<(String, String)>,
    /// `None` for plain text.
    pub(super) tls: Option<Tls>,
    pub(super) token: Token,
    /// A host that has not answered a connection attempt for this long gets company by the next one.
    pub(super) patience: Duration,
}

/// The ACL token to show.
#[derive(Clone)]
pub(super) enum Token {
    None,
    Given(String),
    /// Read anew after it was refused.
    File(PathBuf),
}

/// What is asked.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) method: Method,
    /// Path and query.
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    pub(super) effect: Effect,
    /// It is answered when something happens, and takes no turn from those that are answered at once.
    pub(super) waits: bool,
}

/// An answer, and when it was asked for.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// `host:port` that answered.
    pub(super) host: Arc<str>,
    /// Read on the boot clock before the first byte of the request left, and before its connection was made.
    pub(super) sent_at: BootInstant,
    /// Read on the boot clock after the answer came.
    pub(super) answered_at: BootInstant,
}

/// The connections to one Consul. No request is ever repeated, except where it is certain that nothing of it was sent.
pub(super) struct Http {
    config: Config,
    hosts: Vec<Arc<str>>,
    turns: Semaphore,
    state: Mutex<State>,
}

struct State {
    /// The host to ask.
    current: usize,
    idle: VecDeque<Connection>,
    token: Option<String>,
}

/// One connection; dropping it closes it, so that an answer which nobody waits for is never taken for another one.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
    host: usize,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Http {
    /// Connects with the first request.
    pub(super) fn new(config: Config) -> Http {
        let hosts = config.hosts.iter().map(|(_, authority)| Arc::from(authority.as_str())).collect();
        let state = State { current: 0, idle: VecDeque::new(), token: None };
        Http { config, hosts, turns: Semaphore::new(AT_ONCE), state: Mutex::new(state) }
    }

    /// Sends `ask` once and waits for the whole answer, no longer than `limit`.
    ///
    /// # Errors
    /// Nothing that looks like HTTP came in time. Ambiguous exactly where the request may have taken effect.
    pub(super) async fn ask(&self, ask: Ask, limit: Duration) -> Result<Answer> {
        let until = Instant::now() + limit;
        let turn = async { if ask.waits { None } else { self.turns.acquire().await.ok() } };
        let Ok(_turn) = timeout_at(until, turn).await else {
            return Err(failure::unanswered("the URL", Effect::None));
        };
        let sent_at = clock::now();
        let token = self.token()?;
        let host = Mutex::new(None);
        let outcome = timeout_at(until, self.attempt(&ask, token, &host)).await;
        let host = *host.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(Ok((status, headers, body))) => {
                let host = Arc::clone(&self.hosts[host.unwrap_or_default()]);
                let answered_at = clock::now();
                Ok(Answer { status, headers, body, host, sent_at, answered_at })
            }
            Ok(Err(failure)) => {
                if let Some(host) = host {
                    self.give_up(host);
                }
                Err(failure)
            }
            Err(_) => {
                let failed = host.unwrap_or_else(|| self.state().current);
                self.give_up(failed);
                let effect = if host.is_some() { ask.effect } else { Effect::None };
                Err(failure::unanswered(&self.hosts[failed], effect))
            }
        }
    }

    /// `used` names the host once the request may have left.
    async fn attempt(
        &self,
        ask: &Ask,
        token: Option<String>,
        used: &Mutex<Option<usize>>,
    ) -> Result<(StatusCode, HeaderMap, Bytes)> {
        loop {
            let (mut connection, is_new) = match self.idle() {
                Some(connection) => (connection, false),
                None => (self.connect().await?, true),
            };
            let index = connection.host;
            let host = &self.hosts[index];
            *used.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
            let request = self.request(ask, host, token.as_deref())?;
            let response = match connection.sender.send_request(request).await {
                Ok(response) => response,
                // The server had closed the connection while it was idle; nothing was sent.
                Err(error) if error.is_canceled() && !is_new => continue,
                Err(error) => {
                    let sent = !error.is_canceled();
                    return Err(failure::broken(error, host, sent, ask.effect));
                }
            };
            let (parts, body) = response.into_parts();
            let body = match Limited::new(body, MAX_ANSWER).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) => {
                    return Err(failure::broken(io::Error::other(error), host, true, ask.effect));
                }
            };
            self.keep(connection);
            return Ok((parts.status, parts.headers, body));
        }
    }

    fn request(&self, ask: &Ask, host: &str, token: Option<&str>) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(&ask.path)
            .header(header::HOST, host)
            .header(header::USER_AGENT, concat!("incumbent/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = token {
            request = request.header("X-Consul-Token", token);
        }
        request.body(Full::new(Bytes::from(ask.body.clone()))).map_err(|_| {
            // The cause may show the token.
            failure::error(
                ErrorKind::InvalidConfig,
                host,
                "the request cannot be written; is the ACL token one line?",
            )
        })
    }

    // ---- the token ----

    fn token(&self) -> Result<Option<String>> {
        match &self.config.token {
            Token::None => Ok(None),
            Token::Given(token) => Ok(Some(token.clone())),
            Token::File(path) => {
                let mut state = self.state();
                if state.token.is_none() {
                    state.token = Some(read_token(path)?);
                }
                Ok(state.token.clone())
            }
        }
    }

    /// The token was refused: the file may hold a newer one by now.
    pub(super) fn forget_token(&self) {
        self.state().token = None;
    }

    // ---- connections ----

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> Option<Connection> {
        let mut state = self.state();
        while let Some(connection) = state.idle.pop_back() {
            if connection.host == state.current && !connection.sender.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, connection: Connection) {
        let mut state = self.state();
        if connection.host == state.current && state.idle.len() < AT_ONCE && !connection.sender.is_closed() {
            state.idle.push_back(connection);
        }
    }

    /// The next request goes to the next host.
    pub(super) fn give_up(&self, host: usize) {
        let mut state = self.state();
        if state.current == host {
            state.current = (host + 1) % self.hosts.len();
            state.idle.clear();
        }
    }

    /// As [`give_up`](Http::give_up), for the host that gave an answer.
    pub(super) fn give_up_named(&self, name: &str) {
        if let Some(host) = self.hosts.iter().position(|host| **host == *name) {
            self.give_up(host);
        }
    }

    /// A connection to the first host that takes one, beginning with the one in use; a silent one gets company by the next.
    async fn connect(&self) -> Result<Connection> {
        let first = self.state().current;
        let count = self.hosts.len();
        let mut waiting = (0..count).map(|step| (first + step) % count);
        let mut dials = FuturesUnordered::new();
        let mut last = None;
        if let Some(host) = waiting.next() {
            dials.push(self.dial(host));
        }
        loop {
            let dialed = match waiting.len() {
                0 => dials.next().await,
                _ => match timeout(self.config.patience, dials.next()).await {
                    Ok(dialed) => dialed,
                    Err(_) => {
                        dials.extend(waiting.next().map(|host| self.dial(host)));
                        continue;
                    }
                },
            };
            match dialed {
                Some(Ok(connection)) => {
                    let mut state = self.state();
                    if state.current == first && connection.host != first {
                        state.current = connection.host;
                        state.idle.clear();
                    }
                    return Ok(connection);
                }
                Some(Err(failure)) => {
                    last = Some(failure);
                    dials.extend(waiting.next().map(|host| self.dial(host)));
                }
                None => {
                    return Err(last.unwrap_or_else(|| {
                        failure::error(ErrorKind::Unavailable, "the URL", "no host can be connected to")
                    }));
                }
            }
        }
    }

    async fn dial(&self, index: usize) -> Result<Connection> {
        let host = &self.hosts[index];
        let io = self.open(index).await.map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => failure::cannot_connect(error, host),
        })?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(io)).await.map_err(|error| failure::cannot_connect(error, host))?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer is told.
            let _ = driver.await;
        });
        Ok(Connection { sender, task: task.abort_handle(), host: index })
    }

    async fn open(&self, index: usize) -> io::Result<Box<dyn Io>> {
        let tcp = TcpStream::connect(&*self.hosts[index]).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.config.tls else { return Ok(Box::new(tcp)) };
        let config = tls.config(&[b"http/1.1"]).map_err(|error| error.with_backend("consul"));
        let name = tls.server_name(&self.config.hosts[index].0).map_err(|error| error.with_backend("consul"));
        let name: ServerName<'static> = name.map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config.map_err(io::Error::other)?));
        Ok(Box::new(connector.connect(name, tcp).await?))
    }
}

/// The token in a file.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if it cannot be read.
pub(super) fn read_token(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(cause) => {
            let text = format!("the token file {} cannot be read", path.display());
            Err(Error::new(ErrorKind::InvalidConfig, text).with_source(cause).with_backend("consul"))
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("hosts", &self.hosts)
            .field("tls", &self.config.tls.is_some())
            .finish_non_exhaustive()
    }
}
