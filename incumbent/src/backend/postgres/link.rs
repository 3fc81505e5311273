//! One connection to one server, and what the server says beside its answers.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use incumbent_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{self, Effect, Failure};
use crate::backend::tls::Tls;
use crate::url::Host;

const PORT: u16 = 5432;

/// Where the database is, and how to get in.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) hosts: Vec<Host>,
    pub(super) tls: Option<Tls>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
}

impl Config {
    /// `host:port` of the host with this number.
    pub(super) fn host(&self, index: usize) -> String {
        self.hosts[index].authority(PORT)
    }
}

/// A connection with at most one statement under way. Dropping it closes it at once, whatever the server still does.
pub(super) struct Link {
    client: Client,
    driver: AbortHandle,
    host: Arc<str>,
    pub(super) index: usize,
    said: Arc<Mutex<Vec<String>>>,
    /// The payloads of notifications.
    pub(super) told: mpsc::UnboundedReceiver<String>,
}

impl Link {
    /// Connects to the host with this number.
    ///
    /// # Errors
    /// None of them is ambiguous.
    pub(super) async fn dial(config: &Config, index: usize) -> Result<Link> {
        let host = config.host(index);
        let unreachable = |cause: std::io::Error| {
            failure::error(ErrorKind::Unavailable, &host, format_args!("cannot connect: {cause}"))
                .with_source(cause)
        };
        let tcp = TcpStream::connect(&*host).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let mut settings = tokio_postgres::Config::new();
        settings.user(&config.user).dbname(&config.database).application_name("incumbent");
        if let Some(password) = &config.password {
            settings.password(password);
        }
        let explain = |cause| failure::explain(cause, &host, Effect::None).error;
        match &config.tls {
            None => {
                settings.ssl_mode(SslMode::Disable);
                let (client, connection) = settings.connect_raw(tcp, NoTls).await.map_err(explain)?;
                Ok(Link::drive(client, connection, &host, index))
            }
            Some(tls) => {
                settings.ssl_mode(SslMode::Require);
                let name = &config.hosts[index].name;
                let name = tls.server_name.as_deref().unwrap_or(name);
                let mut maker = MakeRustlsConnect::new(tls.config(&[])?);
                let connector =
                    MakeTlsConnect::<TcpStream>::make_tls_connect(&mut maker, name).map_err(|cause| {
                        let text = format!("{name:?} can be no server_name");
                        Error::new(ErrorKind::InvalidConfig, text).with_source(cause)
                    })?;
                let (client, connection) = settings.connect_raw(tcp, connector).await.map_err(explain)?;
                Ok(Link::drive(client, connection, &host, index))
            }
        }
    }

    fn drive<S, T>(client: Client, connection: Connection<S, T>, host: &str, index: usize) -> Link
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let said = Arc::default();
        let (tell, told) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(connection, Arc::clone(&said), tell)).abort_handle();
        Link { client, driver, host: host.into(), index, said, told }
    }

    /// The `host:port` that it is connected to.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs one statement to the end of its commit. What the server said beside its answer comes back too: after a NOTICE or WARNING
    /// nothing is proven.
    ///
    /// An unnamed statement in one round trip: nothing of it stays in a session that may be somebody else's next.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
        effect: Effect,
    ) -> Result<Answer, Failure> {
        self.said().clear();
        match self.client.query_typed(sql, parameters).await {
            Ok(rows) => Ok(Answer { rows, notices: std::mem::take(&mut *self.said()) }),
            Err(cause) => Err(failure::explain(cause, &self.host, effect)),
        }
    }

    /// Runs statements without parameters, in one transaction.
    pub(super) async fn batch(&self, sql: &str) -> Result<()> {
        let explain = |cause| failure::explain(cause, &self.host, Effect::Write).error;
        self.client.batch_execute(sql).await.map_err(explain)
    }

    fn said(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows, and the notices that came with them.
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    pub(super) notices: Vec<String>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Moves the bytes. A notice is noted before the answer that follows it is passed on.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    said: Arc<Mutex<Vec<String>>>,
    tell: mpsc::UnboundedSender<String>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            AsyncMessage::Notice(notice) => {
                let text = format!("{}: {}", notice.severity(), notice.message());
                said.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            }
            AsyncMessage::Notification(notification) => drop(tell.send(notification.payload().to_owned())),
            _ => {}
        }
    }
}
