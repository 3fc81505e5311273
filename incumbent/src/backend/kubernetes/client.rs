//! Requests to the API server. One attempt each; the connections are this backend's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use incumbent_core::{BootInstant, Result};
use kube_client::client::middleware::{AuthLayer, BaseUriLayer, ExtraHeadersLayer};
use kube_client::client::{Body, ConfigExt};
use kube_client::{Client as Sender, Config};
use rustls::pki_types::ServerName;
use tokio::sync::Semaphore;
use tower::{BoxError, Layer, ServiceExt};

use super::config::Source;
use super::failure::{self, Verb, garbage, misconfigured, unreachable};
use crate::clock;

/// The API's own bound on an object is 1.5 MiB.
const ANSWER_MAX: usize = 4 << 20;
/// Streams that share one connection; API servers allow 100.
const WATCHES_PER_CONNECTION: usize = 50;
/// Calls under way at a time: what waits here has not been sent, and costs no connection when it is given up.
const CALLS: usize = 50;

/// The way to one API server.
pub(super) struct Client {
    source: Source,
    ttl: Duration,
    places: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ways: Option<Shared<BoxFuture<'static, Result<Arc<Ways>>>>>,
    calls: Option<Sender>,
    /// Which `calls` it is; a failure of an older one says nothing about it.
    generation: u64,
    watches: Vec<(Sender, Arc<()>)>,
    /// The server asked for a pause until then.
    not_before: Option<BootInstant>,
}

/// What is needed to make a connection.
struct Ways {
    base: BaseUriLayer,
    auth: Option<AuthLayer>,
    headers: ExtraHeadersLayer,
    connector: HttpsConnector<HttpConnector>,
    host: String,
    namespace: String,
    ping: Duration,
}

/// An answer, read whole.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Boot-clock moment before the bytes of the request left.
    pub(super) sent_at: BootInstant,
    pub(super) host: String,
    pub(super) namespace: String,
}

impl Client {
    pub(super) fn new(source: Source, ttl: Duration) -> Client {
        Client { source, ttl, places: Semaphore::new(CALLS), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one request about a Lease: by `name`, or in the collection.
    ///
    /// Dropping the future gives up the connection with the unanswered request; the next call makes a new one.
    pub(super) async fn call(&self, verb: Verb, name: Option<&str>, body: Vec<u8>) -> Result<Reply> {
        self.pause().await;
        let ways = self.ways().await?;
        let _place = self.places.acquire().await;
        let (sender, generation) = self.calls(&ways);
        let uri = ways.uri(name, "");
        let method = match verb {
            Verb::Get | Verb::Watch => Method::GET,
            Verb::Create => Method::POST,
            Verb::Update => Method::PUT,
        };
        let mut abandoned = Abandoned(Some((self, generation)));
        let sent_at = clock::now();
        let response = send(&sender, method, &uri, body, verb, &ways.host).await?;
        let (parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        if let Some(pause) = parts.headers.get(header::RETRY_AFTER).and_then(seconds) {
            // Not longer than a call may take, or a leader would be silent until its term is over.
            self.state().not_before = Some(clock::now() + pause.min(self.ttl / 12));
        }
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|error| unreachable(error, verb, &ways.host))?.to_bytes().to_vec();
        abandoned.0 = None;
        if status == 401 {
            // The files may hold newer credentials.
            self.forget_all();
        }
        let (host, namespace) = (ways.host.clone(), ways.namespace.clone());
        Ok(Reply { status, body, sent_at, host, namespace })
    }

    /// Opens a watch; the pass must be kept as long as its body is read.
    pub(super) async fn watch(&self, name: &str, query: &str) -> Result<(Response<Body>, Arc<()>, Arc<str>)> {
        self.pause().await;
        let ways = self.ways().await?;
        let (sender, pass) = self.watches(&ways);
        let uri = ways.uri(None, &format!("?watch=true&fieldSelector=metadata.name%3D{name}&{query}"));
        let opened = send(&sender, Method::GET, &uri, Vec::new(), Verb::Watch, &ways.host).await;
        let response = match opened {
            Ok(response) if response.status().as_u16() == 200 => response,
            failed => {
                self.state().watches.retain(|(_, other)| !Arc::ptr_eq(other, &pass));
                let (parts, body) = failed?.into_parts();
                let body = Limited::new(body, ANSWER_MAX).collect().await;
                let body = body.map_err(|error| unreachable(error, Verb::Watch, &ways.host))?.to_bytes();
                let status = parts.status.as_u16();
                return Err(failure::refused(status, &body, Verb::Watch, &ways.host, &ways.namespace));
            }
        };
        Ok((response, pass, ways.host.as_str().into()))
    }

    /// Waits as long as the server asked for.
    async fn pause(&self) {
        let until = self.state().not_before.take_if(|until| *until <= clock::now());
        let until = until.or(self.state().not_before);
        if let Some(until) = until {
            tokio::time::sleep(until.since(clock::now())).await;
        }
    }

    /// Reads the settings, off this thread: an exec plugin may take its time.
    async fn ways(&self) -> Result<Arc<Ways>> {
        let ways = {
            let mut state = self.state();
            state.ways.get_or_insert_with(|| read(self.source.clone(), self.ttl).boxed().shared()).clone()
        };
        let ways = ways.await;
        if ways.is_err() {
            self.state().ways = None;
        }
        ways
    }

    fn calls(&self, ways: &Arc<Ways>) -> (Sender, u64) {
        let mut state = self.state();
        let sender = state.calls.get_or_insert_with(|| ways.connect()).clone();
        (sender, state.generation)
    }

    fn watches(&self, ways: &Arc<Ways>) -> (Sender, Arc<()>) {
        let mut state = self.state();
        state.watches.retain(|(_, pass)| Arc::strong_count(pass) > 1);
        if let Some((sender, pass)) =
            state.watches.iter().find(|(_, pass)| Arc::strong_count(pass) <= WATCHES_PER_CONNECTION)
        {
            return (sender.clone(), pass.clone());
        }
        let way = (ways.connect(), Arc::new(()));
        state.watches.push(way.clone());
        way
    }

    fn forget_all(&self) {
        let mut state = self.state();
        state.ways = None;
        state.calls = None;
        state.generation += 1;
        state.watches.clear();
    }
}

/// Gives up the connection of a request whose answer nobody waits for any more, or that failed.
struct Abandoned<'a>(Option<(&'a Client, u64)>);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Some((client, generation)) = self.0 else { return };
        let mut state = client.state();
        if state.generation == generation {
            state.calls = None;
            state.generation += 1;
        }
    }
}

async fn read(source: Source, ttl: Duration) -> Result<Arc<Ways>> {
    let read = tokio::task::spawn_blocking(move || Ways::new(source.read()?, ttl).map(Arc::new));
    read.await.map_err(|error| misconfigured("reading the settings failed").with_source(error))?
}

impl Ways {
    fn new(config: Config, ttl: Duration) -> Result<Ways> {
        // kube-client asks for the process's provider; this backend's is the one that is compiled in for sure.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let unusable = |error: kube_client::Error| {
            misconfigured(format!("the credentials of the kubeconfig cannot be used: {}", brief(&error)))
        };
        let tls = config.rustls_client_config().map_err(unusable)?;
        let auth = config.auth_layer().map_err(unusable)?;
        let headers = config.extra_headers_layer().map_err(unusable)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        if let Some(name) = &config.tls_server_name {
            let name = ServerName::try_from(name.clone())
                .map_err(|_| misconfigured(format!("{name:?} can be no tls-server-name")))?;
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        Ok(Ways {
            base: config.base_uri_layer(),
            auth,
            headers,
            connector: builder.enable_all_versions().wrap_connector(tcp),
            host: config.cluster_url.authority().map(ToString::to_string).unwrap_or_default(),
            namespace: config.default_namespace,
            ping: ttl / 3,
        })
    }

    fn uri(&self, name: Option<&str>, query: &str) -> String {
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases{name}{query}", self.namespace)
    }

    /// A pool of connections of its own. Must be called within the runtime.
    fn connect(&self) -> Sender {
        let pool: Pool<_, Body> = Pool::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            // A dead connection under an open watch.
            .http2_keep_alive_interval(self.ping)
            .http2_keep_alive_timeout(self.ping)
            .build(self.connector.clone());
        let service = self.headers.layer(pool).map_err(BoxError::from);
        match &self.auth {
            Some(auth) => Sender::new(self.base.layer(auth.layer(service)), self.namespace.clone()),
            None => Sender::new(self.base.layer(service), self.namespace.clone()),
        }
    }
}

async fn send(
    sender: &Sender,
    method: Method,
    uri: &str,
    body: Vec<u8>,
    verb: Verb,
    host: &str,
) -> Result<Response<Body>> {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("incumbent/", env!("CARGO_PKG_VERSION")))
        .body(Body::from(body))
        .map_err(|error| misconfigured("the namespace or name fits into no URL").with_source(error))?;
    sender.send(request).await.map_err(|error| match error {
        kube_client::Error::Auth(error) => credentials(&error),
        kube_client::Error::Service(source) => match source.downcast::<kube_client::client::AuthError>() {
            Ok(error) => credentials(&error),
            Err(source) => unreachable(source, verb, host),
        },
        other => unreachable(other, verb, host),
    })
}

fn credentials(error: &kube_client::client::AuthError) -> incumbent_core::Error {
    failure::error(
        incumbent_core::ErrorKind::Denied,
        format!("the credentials of the kubeconfig cannot be used: {}", shown(error)),
    )
}

/// An error without what an exec plugin printed, which may hold a secret.
fn shown(error: &kube_client::client::AuthError) -> String {
    use kube_client::client::AuthError;
    match error {
        AuthError::AuthExecRun { cmd, out } => format!("the exec plugin {cmd} failed with {}", out.status),
        AuthError::AuthExecParse(_) => "the exec plugin printed no ExecCredential".to_owned(),
        AuthError::AuthExecStart(error) => format!("the exec plugin cannot be run: {error}"),
        AuthError::InvalidBearerToken(_) => "the token holds characters that no header may hold".to_owned(),
        other => other.to_string(),
    }
}

fn brief(error: &kube_client::Error) -> String {
    match error {
        kube_client::Error::Auth(error) => shown(error),
        other => other.to_string(),
    }
}

/// The pause in a Retry-After header; the API gives seconds.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

impl Reply {
    /// The object in the answer.
    pub(super) fn object(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).map_err(|_| garbage(&self.host, "something that is no JSON"))
    }

    /// The error that the answer is.
    pub(super) fn refused(&self, verb: Verb) -> incumbent_core::Error {
        failure::refused(self.status, &self.body, verb, &self.host, &self.namespace)
    }
}
