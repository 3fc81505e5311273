//! One connection to one member at a time: which member, when to give it up for another, and whether it is the same
//! cluster.

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use incumbent_core::time::exact;
use incumbent_core::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::auth::{Auth, Credentials};
use super::dial::Dialer;
use super::failure::{self, Effect};
use super::proto::{Headed, RangeRequest, ResponseHeader, Rpc};
use crate::backend::hosts::{Hosts, SEARCH};
use crate::backend::tls::Tls;

/// etcd closes a connection that is pinged more often than every 5 s, or while no stream is open.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// More than any answer that we ask for.
const MAX_MESSAGE: usize = 64 << 20;

/// Where etcd is, and how to get in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    /// `host:port` of the members, in the order in which they are tried.
    pub(super) endpoints: Vec<String>,
    /// `None` for plain text.
    pub(super) tls: Option<Tls>,
    /// `None` if etcd has no users, or takes the name in the client certificate.
    pub(super) credentials: Option<Credentials>,
    /// An endpoint that has not answered for this long gets company by the next one.
    pub(super) patience: Duration,
}

/// A connection to one member that has answered at least once.
#[derive(Clone)]
pub(super) struct Link {
    channel: Channel,
    host: Arc<str>,
    index: usize,
    /// Counts up from 1 over all links of a client.
    number: u64,
}

impl Link {
    /// The `host:port` that it is connected to.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// A gRPC client on this link.
    pub(super) fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Sends `request` once and waits for its answer. It serves the calls with one answer and, because the request
    /// stream ends with the request, the keep-alive too: its answer cannot be taken for that of another one.
    pub(super) async fn send<R: Rpc>(&self, mut request: Request<R>) -> Result<R::Response, Status> {
        require_leader(&mut request);
        let mut grpc = self.grpc();
        grpc.ready().await.map_err(|cause| Status::from_error(cause.into()))?;
        let codec = ProstCodec::<R, R::Response>::default();
        Ok(grpc.unary(request, PathAndQuery::from_static(R::PATH), codec).await?.into_inner())
    }
}

/// Has a member that knows no leader refuse at once, instead of holding the request until it knows one.
pub(super) fn require_leader<T>(request: &mut Request<T>) {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
}

type Search = watch::Receiver<Option<Result<Link>>>;

/// The link in use, and what is known about the endpoints.
pub(super) struct Connections {
    config: Config,
    hosts: Hosts,
    auth: Auth,
    state: Mutex<State>,
    /// The number of the link that was given up last.
    given_up: watch::Sender<u64>,
    /// The highest term that an answer has shown.
    term: AtomicU64,
}

struct State {
    link: Option<Link>,
    /// The search for a link that is under way.
    search: Option<Search>,
    /// How many links there have been.
    links: u64,
    /// The cluster that answered first; no other one is talked to.
    cluster: Option<u64>,
}

impl Connections {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if there is no endpoint or one is not `host:port`.
    pub(super) fn new(config: Config) -> Result<Connections> {
        for endpoint in &config.endpoints {
            address(endpoint, config.tls.is_some())?;
        }
        if config.endpoints.is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, "no etcd endpoint given").with_backend("etcd"));
        }
        let state = State { link: None, search: None, links: 0, cluster: None };
        Ok(Connections {
            hosts: Hosts::new(config.endpoints.len(), config.patience),
            auth: Auth::new(config.credentials.clone()),
            config,
            state: Mutex::new(state),
            given_up: watch::Sender::new(0),
            term: AtomicU64::new(0),
        })
    }

    pub(super) fn auth(&self) -> &Auth {
        &self.auth
    }

    /// The highest term that an answer has shown so far; 0 before the first.
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// The cluster that answered first; `None` before.
    pub(super) fn cluster_id(&self) -> Option<u64> {
        self.lock().cluster
    }

    /// The link in use, or a new one to the first endpoint that works. Waits for it no longer than `patience`; the search
    /// goes on beyond, so that the next caller need not begin anew.
    ///
    /// # Errors
    /// None of them is ambiguous: nothing was asked that could have an effect. [`ErrorKind::Denied`] or
    /// [`ErrorKind::InvalidConfig`] only if no endpoint is merely unreachable.
    pub(super) async fn link(self: &Arc<Self>, patience: Duration) -> Result<Link> {
        let mut search = {
            let mut state = self.lock();
            if let Some(link) = &state.link {
                return Ok(link.clone());
            }
            state.search.get_or_insert_with(|| self.start_search()).clone()
        };
        if let Ok(Ok(found)) = timeout(patience, search.wait_for(Option::is_some)).await
            && let Some(outcome) = &*found
        {
            return outcome.clone();
        }
        let hosts = self.config.endpoints.join(",");
        let text = format_args!("no connection within {}", exact(patience));
        Err(failure::error(ErrorKind::Unavailable, &hosts, text))
    }

    fn start_search(self: &Arc<Self>) -> Search {
        let (found, search) = watch::channel(None);
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = connections.connect_to_any().await;
            let mut state = connections.lock();
            state.search = None;
            if let Ok(link) = &outcome {
                state.link = Some(link.clone());
            }
            found.send_replace(Some(outcome));
        });
        search
    }

    /// The first endpoint that answers.
    async fn connect_to_any(&self) -> Result<Link> {
        let silent = |index: usize| {
            let text = format_args!("no answer within {}", exact(SEARCH));
            failure::error(ErrorKind::Unavailable, &self.config.endpoints[index], text)
        };
        self.hosts.search(|index| self.connect(index), silent).await
    }

    async fn connect(&self, index: usize) -> Result<Link> {
        let failure = match self.try_connect(index).await {
            Err(failure) if failure.is_retryable() && failure.source().is_some() => failure,
            outcome => return outcome,
        };
        let host = &self.config.endpoints[index];
        match Dialer::new(host, self.config.tls.as_ref())?.diagnose().await {
            Some(advice) => Err(failure::error(ErrorKind::Denied, host, advice).with_source(failure)),
            None => Err(failure),
        }
    }

    async fn try_connect(&self, index: usize) -> Result<Link> {
        let host = &self.config.endpoints[index];
        let channel = self.dial(host).await?;
        let number = {
            let mut state = self.lock();
            state.links += 1;
            state.links
        };
        let link = Link { channel, host: host.as_str().into(), index, number };
        self.probe(&link).await?;
        Ok(link)
    }

    async fn dial(&self, host: &str) -> Result<Channel> {
        let dialer = Dialer::new(host, self.config.tls.as_ref())?;
        // The scheme is for the server; tonic's own TLS is not asked to act upon it.
        Endpoint::from(address(host, false)?)
            .origin(address(host, self.config.tls.is_some())?)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(false)
            .connect_with_connector(dialer)
            .await
            .map_err(|cause| failure::cannot_connect(cause, host))
    }

    /// Asks for something without effect, for which the member needs the cluster. A connection that cannot work (a refused
    /// client certificate, plain text against TLS, a member that is cut off, another cluster) shows it here, where nothing
    /// is in doubt.
    async fn probe(&self, link: &Link) -> Result<()> {
        let pass = self.auth.pass(link).await?;
        let key = b".incumbent".to_vec();
        let mut request = Request::new(RangeRequest { key, count_only: true, ..Default::default() });
        pass.stamp(&mut request);
        match link.send(request).await {
            Ok(answer) => self.check(link, answer.header(), Effect::None).map(drop),
            Err(status) if failure::is_token_refused(&status) && self.auth.refused(&pass) => Ok(()),
            // Whoever may not read this key is known to a working etcd.
            Err(status) if status.code() == Code::PermissionDenied && !failure::is_local(&status) => Ok(()),
            Err(status) => Err(failure::explain(status, link.host(), Effect::None)),
        }
    }

    /// The header of an answer that came over `link`, if it is of the cluster that we began with.
    ///
    /// # Errors
    /// [`ErrorKind::StoreRegressed`] if it is another cluster's; ambiguous if the request had an effect there.
    pub(super) fn check(
        &self,
        link: &Link,
        header: Option<&ResponseHeader>,
        effect: Effect,
    ) -> Result<ResponseHeader> {
        let Some(header) = header else {
            return Err(failure::error(ErrorKind::Internal, link.host(), "an answer without a header")
                .ambiguous(effect == Effect::Write));
        };
        let cluster = *self.lock().cluster.get_or_insert(header.cluster_id);
        if cluster != header.cluster_id {
            self.give_up(link);
            let text = format!(
                "it belongs to cluster {:x}, not to {cluster:x} as before; name members of one cluster only, and start this program anew if the cluster was made anew",
                header.cluster_id
            );
            return Err(failure::error(ErrorKind::StoreRegressed, link.host(), text)
                .ambiguous(effect == Effect::Write));
        }
        self.term.fetch_max(header.raft_term, Ordering::Relaxed);
        Ok(*header)
    }

    /// Stops using `link`, which failed; the next call goes to another endpoint if there is one.
    pub(super) fn give_up(&self, link: &Link) {
        self.hosts.punish(link.index);
        let mut state = self.lock();
        if state.link.as_ref().is_some_and(|current| current.number == link.number) {
            state.link = None;
            drop(state);
            self.hosts.give_up(link.index);
            self.given_up.send_replace(link.number);
            tracing::debug!(host = link.host(), "endpoint given up");
        }
    }

    /// Returns when `link` has been given up.
    pub(super) async fn is_given_up(&self, link: &Link) {
        // An error would mean that the sender is gone, but it lives as long as `self`.
        let _ = self.given_up.subscribe().wait_for(|number| *number >= link.number).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The URI of `host:port`.
fn address(endpoint: &str, tls: bool) -> Result<http::Uri> {
    let scheme = if tls { "https" } else { "http" };
    let uri = format!("{scheme}://{endpoint}").parse::<http::Uri>().ok();
    uri.filter(|uri| uri.port().is_some() && uri.path() == "/").ok_or_else(|| {
        Error::new(ErrorKind::InvalidConfig, format!("etcd endpoint {endpoint:?} is not host:port"))
            .with_backend("etcd")
    })
}
