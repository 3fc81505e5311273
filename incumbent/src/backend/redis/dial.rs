//! One connection to one server, and what the server says about itself.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::facts::Facts;
use super::failure;
use crate::backend::tls::{self, Tls};
use crate::url::Host;

/// How long a server may take to object to what it was spoken to in.
const OBJECTION: Duration = Duration::from_millis(500);

/// How to reach the servers, and how to get in.
pub(super) struct Config {
    /// In the order in which they are tried.
    pub(super) hosts: Vec<Host>,
    /// `None` for plain text.
    pub(super) tls: Option<Tls>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// How long an answer may take, whoever still waits for it.
    pub(super) limit: Duration,
    /// A server that has not answered for this long gets company by the next one; an answer that nobody waits for any more is
    /// waited for this long before the connection is given up.
    pub(super) patience: Duration,
}

/// The port of Redis.
const PORT: u16 = 6379;

impl Config {
    pub(super) fn name(&self, index: usize) -> String {
        self.hosts[index].authority(PORT)
    }
}

/// A connection to one server that has answered at least once. Dropping the last clone closes it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) host: Arc<str>,
    pub(super) index: usize,
    pub(super) facts: Arc<Facts>,
    driver: Arc<Driver>,
    ended: watch::Receiver<()>,
}

/// Closes the socket when it is dropped.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Closes the connection: whatever is still to be answered will not be.
    pub(super) fn close(&self) {
        self.driver.0.abort();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ended.has_changed().is_err()
    }

    /// Returns when the connection is closed.
    pub(super) async fn closed(&self) {
        // Nothing is ever sent; the sender goes away.
        let _ = self.ended.clone().changed().await;
    }

    pub(super) fn is(&self, other: &Link) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}

/// A connection, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects to the server number `index` and asks it what it is. `push` gets what it tells without being asked.
///
/// # Errors
/// None of them is ambiguous. [`ErrorKind::ReadOnly`] if it is a replica.
pub(super) async fn connect(
    config: &Config,
    index: usize,
    push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Link> {
    let name = config.name(index);
    match greet(config, index, &name, push).await {
        Ok(link) => Ok(link),
        Err(failure) if failure.is_retryable() => match diagnose(config, index).await {
            Some(advice) => Err(failure::error(ErrorKind::Denied, &name, advice).with_source(failure)),
            None => Err(failure),
        },
        Err(failure) => Err(failure),
    }
}

async fn greet(
    config: &Config,
    index: usize,
    name: &str,
    push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Link> {
    let stream = dial(config, index, name).await?;
    let settings = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None)
        .set_push_sender(move |told| {
            push(told);
            Ok::<(), ()>(())
        });
    let explain = |cause: RedisError| failure::at_the_greeting(cause, name);
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&login(config), stream, settings).await.map_err(explain)?;
    let (ends, ended) = watch::channel(());
    let driver = tokio::spawn(async move {
        driver.await;
        drop(ends);
    });
    let driver = Arc::new(Driver(driver.abort_handle()));
    let facts = Arc::new(Facts::ask(&mut connection).await.map_err(explain)?);
    facts.check(name)?;
    Ok(Link { connection, host: name.into(), index, facts, driver, ended })
}

fn login(config: &Config) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default()
        .set_db(config.database)
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(password) = &config.password {
        login = login.set_password(password);
    }
    login
}

async fn dial(config: &Config, index: usize, name: &str) -> Result<Box<dyn Io>> {
    let dialed = match &config.tls {
        None => tcp(config, index).await.map(|tcp| Box::new(tcp) as Box<dyn Io>),
        Some(tls) => {
            let named = |error: Error| error.with_backend("redis");
            let settings = tls.config(&[]).map_err(named)?;
            let server = tls.server_name(&config.hosts[index].name).map_err(named)?;
            let connector = TlsConnector::from(Arc::new(settings));
            let handshake = async { connector.connect(server, tcp(config, index).await?).await };
            let mut handshake = pin!(handshake);
            let done = match timeout(OBJECTION, &mut handshake).await {
                Ok(done) => done,
                Err(_) if speaks_plain(config, index).await => {
                    return Err(failure::error(ErrorKind::Denied, name, tls::NOT_TLS));
                }
                Err(_) => handshake.await,
            };
            done.map(|stream| Box::new(stream) as Box<dyn Io>)
        }
    };
    dialed.map_err(|cause| failure::cannot_connect(cause, name))
}

async fn tcp(config: &Config, index: usize) -> io::Result<TcpStream> {
    let host = &config.hosts[index];
    let tcp = TcpStream::connect((host.name.as_str(), host.port.unwrap_or(PORT))).await?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// What is wrong, if the server speaks TLS and we do not.
async fn diagnose(config: &Config, index: usize) -> Option<String> {
    if config.tls.is_some() {
        return None;
    }
    // No authority is trusted, so the handshake of a server with TLS fails, in its own way.
    let settings = tls::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let server = ServerName::try_from(config.hosts[index].name.clone()).ok()?;
    let connector = TlsConnector::from(Arc::new(settings));
    let handshake = async { connector.connect(server, tcp(config, index).await?).await };
    let failure = timeout(OBJECTION, handshake).await.ok()?.err()?;
    let spoke_tls =
        tls::find(&failure).is_some_and(|error| !matches!(error, rustls::Error::InvalidMessage(_)));
    spoke_tls.then(|| {
        "it speaks TLS only; use tls=on, and ca= if its authority is not one of the system's".to_owned()
    })
}

/// True if the server answers in plain text, where TLS was expected: a Redis that is spoken to in TLS waits for the end of a line.
async fn speaks_plain(config: &Config, index: usize) -> bool {
    let greet = async {
        let mut tcp = tcp(config, index).await?;
        tcp.write_all(b"PING\r\n").await?;
        let mut answer = [0; 5];
        tcp.read_exact(&mut answer).await?;
        io::Result::Ok(matches!(&answer, b"+PONG" | b"-NOAU" | b"-LOAD" | b"-DENI"))
    };
    matches!(timeout(OBJECTION, greet).await, Ok(Ok(true)))
}
