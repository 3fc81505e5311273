//! One connection to one server, and what the server says about itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, HeaderMap, Message, Request, ServerAddr};
use futures_util::future::join_all;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use rustls::RootCertStore;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::bucket::{self, Facts, REPLICATED_SINCE, Version};
use super::failure::{self, Effect};
use super::keys::Keys;
use crate::backend::tls::{self, Tls};
use crate::clock;
use crate::url::{Host, bad};

/// The port of NATS for its clients.
const PORT: u16 = 4222;
/// How long the other servers may take to say their version.
const GREETING: Duration = Duration::from_millis(500);
/// No server greets with more.
const GREETING_MAX: u64 = 64 * 1024;
/// Where nobody listens. The client library would by itself connect anew and then send what was meant for the old connection.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// How to reach the servers, and how to get in.
pub(super) struct Config {
    /// In the order in which they are tried.
    pub(super) hosts: Vec<Host>,
    /// `None` for plain text.
    pub(super) tls: Option<Tls>,
    pub(super) login: Login,
    pub(super) keys: Keys,
    /// A server that has not answered for this long gets company by the next one; a connection on which a request was given up
    /// after this long is used no more.
    pub(super) patience: Duration,
    /// How long grants last.
    pub(super) ttl: Duration,
}

/// Who we are. Files are read at each connect, so that renewed credentials count.
pub(super) enum Login {
    None,
    Password(String, String),
    Token(PathBuf),
    /// The file of a seed.
    Nkey(PathBuf),
    /// The file of a JWT and its seed.
    Creds(PathBuf),
}

impl Config {
    pub(super) fn name(&self, index: usize) -> String {
        self.hosts[index].authority(PORT)
    }

    /// How old the latest look at the bucket may be that an answer counts with.
    pub(super) fn look_every(&self) -> Duration {
        self.ttl / 4
    }

    /// How often to look for changes where the server tells nothing.
    pub(super) fn poll(&self) -> Duration {
        self.ttl / 3
    }
}

impl Login {
    /// Adds what lets us in.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if a file cannot be used.
    pub(super) fn add_to(&self, options: ConnectOptions) -> Result<ConnectOptions> {
        match self {
            Login::None => Ok(options),
            Login::Password(user, password) => Ok(options.user_and_password(user.clone(), password.clone())),
            Login::Token(path) => Ok(options.token(read(path, "token_file")?)),
            Login::Nkey(path) => Ok(options.nkey(read(path, "nkey_file")?)),
            // The library finds no seed without a line end behind it.
            Login::Creds(path) => options.credentials(&(read(path, "creds_file")? + "\n")).map_err(|_| {
                // The cause is left out: nothing of a key belongs into an error.
                bad(format!("creds_file={} holds no JWT of a user with its seed", path.display()))
            }),
        }
    }
}

fn read(path: &PathBuf, parameter: &str) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(cause) => {
            Err(bad(format!("cannot read {parameter}={}: {cause}", path.display())).with_source(cause))
        }
    }
}

/// A connection to one server through which the bucket was seen. Dropping the last owner closes it.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) host: Arc<str>,
    pub(super) index: usize,
    keys: Keys,
    patience: Duration,
    has_jetstream: bool,
    /// Servers that hold the bucket and whose version could not be seen.
    unseen: OnceLock<Vec<String>>,
    /// True once it is of no more use.
    closed: Arc<watch::Sender<bool>>,
    /// What the server tells beside its answers.
    told: broadcast::Sender<String>,
}

/// A link and what was seen of the bucket by a question that was sent at that moment.
pub(super) type Opened = (Arc<Link>, Facts, BootInstant);

/// Connects to the server number `index` and looks at the bucket.
///
/// # Errors
/// None of them is ambiguous.
pub(super) async fn connect(config: &Config, index: usize) -> Result<Opened> {
    let name = config.name(index);
    let addr: ServerAddr = format!("nats://{name}").parse().map_err(|cause| {
        Error::new(ErrorKind::InvalidConfig, format!("{name} is no address")).with_source(cause)
    })?;
    let closed = Arc::new(watch::Sender::new(false));
    let told = broadcast::Sender::new(16);
    let settings = match &config.tls {
        Some(tls) => tls.config_with_name().map_err(|error| error.with_backend("nats"))?,
        // No authority is trusted: a server that insists on TLS is found out by its certificate.
        None => tls::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    };
    let (ended, heard) = (Arc::clone(&closed), told.clone());
    let options = ConnectOptions::new()
        .name("incumbent")
        .require_tls(config.tls.is_some())
        .tls_client_config(settings)
        .ignore_discovered_servers()
        .max_reconnects(1)
        .event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed | Event::ClientError(_) => {
                    ended.send_replace(true);
                }
                Event::ServerError(error) => drop(heard.send(error.to_string())),
                _ => {}
            }
            std::future::ready(())
        });
    let options = config.login.add_to(options).map_err(|error| error.with_backend("nats"))?;
    let client =
        options.connect(addr).await.map_err(|cause| failure::cannot_connect(cause, &name, config))?;
    let lost = |_| failure::cut(&name, Effect::None);
    client.set_server_pool(NOWHERE).await.map_err(lost)?;
    let info = client.server_info();
    let link = Arc::new(Link {
        client,
        host: name.as_str().into(),
        index,
        keys: config.keys.clone(),
        patience: config.patience,
        has_jetstream: info.jetstream,
        unseen: OnceLock::new(),
        closed,
        told,
    });
    let sent_at = clock::now();
    let facts = link.look().await?;
    if facts.is_replicated() {
        let mine = Greeting { server_name: info.server_name, version: info.version };
        let unseen = check_versions(config, &facts, mine, info.connect_urls, &name).await?;
        let _ = link.unseen.set(unseen);
    }
    Ok((link, facts, sent_at))
}

impl Link {
    /// Asks for what the bucket is.
    ///
    /// # Errors
    /// Also if elections cannot live in it.
    pub(super) async fn look(self: &Arc<Self>) -> Result<Facts> {
        let subject = format!("$JS.API.STREAM.INFO.{}", self.keys.stream());
        let answer = self.request(&subject, None, Vec::new(), Effect::None).await?;
        let facts = Facts::parse(&answer.payload, &self.host, &self.keys)?;
        facts.check(&self.host, &self.keys)?;
        Ok(facts)
    }

    /// What weakens the promises of the bucket, each as one line.
    ///
    /// # Errors
    /// As [`look`](Link::look).
    pub(super) async fn advice(self: &Arc<Self>) -> Result<Vec<String>> {
        let mut advice = self.look().await?.advice(&self.keys);
        advice.extend(self.unseen.get().into_iter().flatten().map(|server| {
            format!(
                "the version of the server {server}, which holds a replica of the bucket, cannot be seen from here; see that it is {REPLICATED_SINCE} or newer"
            )
        }));
        Ok(advice)
    }

    /// Sends one request and waits for its answer, for as long as the caller does. An answer that comes after that belongs to an
    /// inbox of its own, so it is taken for no other. The waiting is a task's: whether an answer has come is known also while
    /// nobody polls.
    pub(super) async fn request(
        self: &Arc<Self>,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
        effect: Effect,
    ) -> Result<Message> {
        let (link, subject) = (Arc::clone(self), subject.to_owned());
        let task = tokio::spawn(async move { link.ask(subject, headers, payload, effect).await });
        let mut waiting = Waiting { link: self, since: clock::now(), task };
        match (&mut waiting.task).await {
            Ok(outcome) => outcome,
            Err(_) => Err(failure::cut(&self.host, effect)),
        }
    }

    /// The same, whose abandonment says nothing about the connection.
    pub(super) async fn ask(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
        effect: Effect,
    ) -> Result<Message> {
        let mut request = Request::new().payload(payload.into()).timeout(None);
        request.headers = headers;
        let mut told = self.told.subscribe();
        tokio::select! {
            biased;
            answer = self.client.send_request(subject.clone(), request) => answer.map_err(|cause| {
                failure::explain(cause, &self.host, self.has_jetstream, effect)
            }),
            refusal = self.refused(&mut told, &subject) => Err(refusal),
            () = self.closed() => Err(failure::cut(&self.host, effect)),
        }
    }

    /// Returns when the server says that it will not take part in requests on `subject`.
    async fn refused(&self, told: &mut broadcast::Receiver<String>, subject: &str) -> Error {
        loop {
            match told.recv().await {
                Ok(text) => {
                    if let Some(refusal) = failure::denied(&text, subject, &self.host, &self.keys) {
                        return refusal;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// From now on it is of no use.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Returns when it is of no more use.
    pub(super) async fn closed(&self) {
        // The sender is here, so it cannot be gone.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("host", &self.host).finish_non_exhaustive()
    }
}

/// A request under way. One that is given up unanswered after a while speaks against its connection.
struct Waiting<'a> {
    link: &'a Link,
    since: BootInstant,
    task: JoinHandle<Result<Message>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.task.is_finished() && clock::now().since(self.since) >= self.link.patience {
            self.link.close();
        }
        self.task.abort();
    }
}

/// What a server says first to whoever connects.
#[derive(Debug, Deserialize)]
struct Greeting {
    #[serde(default)]
    server_name: String,
    #[serde(default)]
    version: String,
}

/// Refuses a server that is too old for a replicated bucket, `mine` and every other one that can be seen. Gives those that hold it
/// and cannot be seen.
async fn check_versions(
    config: &Config,
    facts: &Facts,
    mine: Greeting,
    discovered: Vec<String>,
    host: &str,
) -> Result<Vec<String>> {
    let mut others: Vec<String> = (0..config.hosts.len()).map(|index| config.name(index)).collect();
    others.extend(discovered);
    others.sort();
    others.dedup();
    let mut seen = join_all(others.iter().map(|addr| greeting(addr))).await;
    seen.push(Some(mine));
    let seen: Vec<Greeting> = seen.into_iter().flatten().collect();
    for server in &seen {
        let version = Version::parse(&server.version);
        if version < REPLICATED_SINCE {
            return Err(bucket::too_old(&server.server_name, version, host, &config.keys));
        }
    }
    let is_unseen = |member: &&str| !seen.iter().any(|server| server.server_name == *member);
    Ok(facts.members().filter(is_unseen).map(str::to_owned).collect())
}

async fn greeting(addr: &str) -> Option<Greeting> {
    let greet = async {
        let mut line = String::new();
        let tcp = TcpStream::connect(addr).await.ok()?;
        BufReader::new(tcp.take(GREETING_MAX)).read_line(&mut line).await.ok()?;
        serde_json::from_str(line.strip_prefix("INFO ")?.trim_end()).ok()
    };
    timeout(GREETING, greet).await.ok().flatten()
}
