//! One connection to one server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use incumbent_core::{BootInstant, ErrorKind, Result};
use mysql_async::prelude::Queryable;
use mysql_async::{ClientIdentity, Conn, OptsBuilder, Row, SslOpts};

use super::failure::{self, Failure};
use super::statements::{SET, Statements};
use crate::backend::tls::Tls;
use crate::clock;
use crate::url::Host;

const PORT: u16 = 3306;
/// After this long without an answer a connection is asked whether it is still there before it is used.
const IDLE: Duration = Duration::from_secs(30);

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

    fn options(&self, index: usize) -> Result<OptsBuilder> {
        let host = &self.hosts[index];
        let options = OptsBuilder::default()
            .ip_or_hostname(host.name.clone())
            .tcp_port(host.port.unwrap_or(PORT))
            .user(Some(self.user.clone()))
            .pass(self.password.clone())
            .db_name(Some(self.database.clone()))
            // Nothing that would be asked of the server first, or make it answer by another way.
            .prefer_socket(false)
            .max_allowed_packet(Some(16 << 20))
            .wait_timeout(Some(0))
            .stmt_cache_size(0)
            .tcp_keepalive(Some(Duration::from_secs(10)))
            .tcp_nodelay(true);
        let Some(tls) = &self.tls else { return Ok(options) };
        // Here it is said well what is wrong with the files.
        tls.config(&[])?;
        tls.server_name(&host.name)?;
        // The client takes the provider of the process: ours, unless the program has chosen one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identity = tls.identity.clone().map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
        Ok(options.ssl_opts(
            SslOpts::default()
                .with_disable_built_in_roots(true)
                .with_root_certs(tls.authorities()?.into_iter().map(|der| der.to_vec().into()).collect())
                .with_client_identity(identity)
                .with_danger_tls_hostname_override(tls.server_name.clone()),
        ))
    }
}

/// A connection with at most one packet of statements under way. Dropping it closes it at once, whatever the server still does.
pub(super) struct Link {
    /// `None` only while it is being dropped.
    conn: Option<Conn>,
    host: Arc<str>,
    pub(super) index: usize,
    pub(super) statements: Arc<Statements>,
    answered_at: BootInstant,
}

/// What a statement was answered with.
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// Rows that it changed, if it is one that changes something.
    pub(super) affected: u64,
    pub(super) warnings: u16,
}

impl Link {
    /// Connects to the host with this number.
    ///
    /// # Errors
    /// None of them is ambiguous.
    pub(super) async fn dial(config: &Config, index: usize, bell: &str) -> Result<Link> {
        let host: Arc<str> = config.host(index).into();
        let explain = |cause| failure::explain(cause, &host, false).error;
        let conn = Conn::new(config.options(index)?).await.map_err(explain)?;
        let mut link = Link {
            conn: Some(conn),
            host: Arc::clone(&host),
            index,
            statements: Arc::new(Statements::new(true, bell)),
            answered_at: clock::now(),
        };
        let answers = link.query(&format!("{SET}; SELECT VERSION()"), false).await?;
        let version: Option<String> = answers.get(1).and_then(|answer| answer.rows.first()?.get_opt(0)?.ok());
        let version = version.unwrap_or_default();
        let mariadb = version.contains("MariaDB");
        let (needed, name) = if mariadb { ((10, 6), "MariaDB 10.6") } else { ((8, 0), "MySQL 8.0") };
        if number(&version) < needed {
            let text = format!("it is version {version}; {name} or newer is needed");
            return Err(failure::error(ErrorKind::Unsupported, &host, text));
        }
        if !mariadb {
            link.statements = Arc::new(Statements::new(false, bell));
        }
        Ok(link)
    }

    /// The `host:port` that it is connected to.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// True if nothing can be asked on it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.conn.as_ref().is_none_or(Conn::is_disconnected)
    }

    /// False if it has been idle so long that the server may be gone, and it is.
    pub(super) async fn is_alive(&mut self) -> bool {
        if clock::now().since(self.answered_at) < IDLE {
            return true;
        }
        let Some(conn) = &mut self.conn else { return false };
        conn.ping().await.is_ok()
    }

    /// Runs the statements of one packet in order, and gives an answer for each. After an error the connection must be dropped.
    pub(super) async fn query(&mut self, sql: &str, writes: bool) -> Result<Vec<Answer>, Failure> {
        let host = Arc::clone(&self.host);
        let explain = |cause| failure::explain(cause, &host, writes);
        let Some(conn) = &mut self.conn else {
            return Err(failure::error(ErrorKind::Unavailable, &host, "the connection was closed").into());
        };
        let mut result = conn.query_iter(sql).await.map_err(explain)?;
        let mut answers = Vec::new();
        loop {
            // After the last answer there is nothing, or the error that ended the packet.
            if result.columns().is_none() && result.next().await.map_err(explain)?.is_none() {
                break;
            }
            let (affected, warnings) = (result.affected_rows(), result.warnings());
            let rows = result.collect().await.map_err(explain)?;
            answers.push(Answer { rows, affected, warnings });
        }
        self.answered_at = clock::now();
        Ok(answers)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // By itself the client would go on reading what is still to come.
        if let Some(conn) = self.conn.take() {
            let _ = conn.disconnect().now_or_never();
        }
    }
}

/// The first two numbers of a version.
fn number(version: &str) -> (u32, u32) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
