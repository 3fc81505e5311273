//! A fence before an HTTP service: a tower layer that refuses requests of an older term, on every replica of the service.
//!
//! A leader names its term in each request, in two headers: `Fencing-Token`, a number, and `Fencing-Authority`, who issued it. A
//! program in Rust takes them from [`headers`]; a job of `incumbent run` finds the values in its environment:
//!
//! ```text
//! curl -H "Fencing-Token: $INCUMBENT_TOKEN" -H "Fencing-Authority: $INCUMBENT_AUTHORITY" -X POST http://ledger.local/charges …
//! ```
//!
//! | request | answer, if the service does not get it |
//! | --- | --- |
//! | of an older term than one seen, or of another authority | 409 |
//! | without the headers; `GET`, `HEAD`, `OPTIONS` and `TRACE` need none | 428 |
//! | with headers that cannot be understood | 400 |
//! | while the fence cannot be asked, or earlier terms' requests do not end | 503 with `Retry-After` |
//!
//! The body is a problem in JSON (RFC 9457) whose `detail` says what is wrong. A refused request was not passed on.
//!
//! The mark is kept where all replicas of the service find it, in one of the other fences: see [`SharedFence`]. It is asked for every
//! request that names a term, so that what one replica has seen, no other forgets.
//!
//! **What it cannot do**: a request that was admitted goes on while a newer term begins. A replica passes the first request of a
//! newer term on only when its own requests of earlier terms are answered; it does not know what the other replicas are doing. A
//! service that writes to a database also shows the mark there, in the transaction that writes: it is in the request's extensions,
//! as a [`HighWater`].
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::routing::post;
//! use incumbent::fence::file::FileFence;
//! use incumbent::fence::http::FenceLayer;
//!
//! let fence = FenceLayer::new(FileFence::new("/srv/ledger.fence"));
//! let app: Router = Router::new().route("/charges", post(|| async { "charged\n" })).layer(fence);
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use incumbent_core::{Authority, BoxFuture, Error, ErrorKind, FencingToken, HighWater, Result};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tower_layer::Layer;
use tower_service::Service;

use super::file::FileFence;

/// The header with the token, a decimal number.
pub const TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The header with the authority, in UTF-8.
pub const AUTHORITY: HeaderName = HeaderName::from_static("fencing-authority");

/// How long the first request of a new term waits for the requests of earlier ones, unless [`FenceLayer::patience`] says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);

/// The headers that show `mark` to a fenced service.
///
/// ```
/// # fn charge(leadership: &incumbent::Leadership) -> incumbent::Result<()> {
/// let headers = incumbent::fence::http::headers(&leadership.mark()?)?;
/// // With reqwest: client.post(url).headers(headers)…
/// # let _ = headers; Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if the authority has control characters.
pub fn headers(mark: &HighWater) -> Result<HeaderMap> {
    let authority = HeaderValue::from_bytes(mark.authority.as_str().as_bytes()).map_err(|error| {
        Error::new(ErrorKind::InvalidConfig, "the authority has characters that no header can have")
            .with_source(error)
    })?;
    Ok([(TOKEN, mark.token.0.into()), (AUTHORITY, authority)].into_iter().collect())
}

/// The mark that a request shows; `None` if it shows none.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if a header is missing, stands twice or cannot be understood.
pub fn mark(headers: &HeaderMap) -> Result<Option<HighWater>> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidConfig, what);
    let one = |name: &HeaderName| -> Result<Option<&str>> {
        let mut values = headers.get_all(name).iter();
        let value = values.next().map(|value| std::str::from_utf8(value.as_bytes()));
        match (value, values.next()) {
            (_, Some(_)) => Err(bad(&format!("the header {name} stands twice"))),
            (Some(Err(_)), None) => Err(bad(&format!("the header {name} is not UTF-8"))),
            (value, None) => Ok(value.transpose().unwrap_or_default()),
        }
    };
    match (one(&TOKEN)?, one(&AUTHORITY)?) {
        (None, None) => Ok(None),
        (Some(token), Some(authority)) if !authority.is_empty() => {
            let number = token.parse().ok().filter(|_| token.bytes().all(|byte| byte.is_ascii_digit()));
            let token = number.ok_or_else(|| bad("the header fencing-token is no number"))?;
            Ok(Some(HighWater { authority: Authority::new(authority), token: FencingToken(token) }))
        }
        _ => Err(bad("the headers fencing-token and fencing-authority go together")),
    }
}

/// A fence that all replicas of a service ask.
///
/// Implemented for [`FileFence`], for replicas on one machine, and for any function that takes a mark and returns a future: for a
/// [`SqlFence`](super::sql::SqlFence) or a [`RedisFence`](super::redis::RedisFence) it raises the fence through your client.
pub trait SharedFence: Send + Sync + 'static {
    /// Admits `mark` and remembers it, or refuses it with [`ErrorKind::Fenced`], in one step. Any other error: it cannot be asked now.
    fn admit(&self, mark: HighWater) -> BoxFuture<'static, Result<()>>;
}

impl SharedFence for FileFence {
    fn admit(&self, mark: HighWater) -> BoxFuture<'static, Result<()>> {
        let fence = self.clone();
        Box::pin(async move {
            let raised = tokio::task::spawn_blocking(move || fence.raise(&mark)).await;
            raised
                .map_err(|error| Error::new(ErrorKind::Internal, "the fence panicked").with_source(error))?
        })
    }
}

impl<F, Admitted> SharedFence for F
where
    F: Fn(HighWater) -> Admitted + Send + Sync + 'static,
    Admitted: Future<Output = Result<()>> + Send + 'static,
{
    fn admit(&self, mark: HighWater) -> BoxFuture<'static, Result<()>> {
        Box::pin(self(mark))
    }
}

/// Puts a fence before a service; see the [module](self).
#[derive(Clone)]
pub struct FenceLayer {
    gate: Arc<Gate>,
}

impl FenceLayer {
    /// A layer that asks `fence`.
    pub fn new(fence: impl SharedFence) -> FenceLayer {
        FenceLayer {
            gate: Arc::new(Gate { fence: Box::new(fence), patience: PATIENCE, term: Arc::default() }),
        }
    }

    /// How long the first request of a new term waits until those of earlier terms are answered: 5 s unless this says otherwise.
    /// To be called before the layer is used.
    #[must_use]
    pub fn patience(self, patience: Duration) -> FenceLayer {
        let gate = match Arc::try_unwrap(self.gate) {
            Ok(gate) => Gate { patience, ..gate },
            Err(shared) => return FenceLayer { gate: shared },
        };
        FenceLayer { gate: Arc::new(gate) }
    }
}

impl std::fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceLayer").field("patience", &self.gate.patience).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, gate: self.gate.clone() }
    }
}

/// A service behind a fence.
#[derive(Clone)]
pub struct Fenced<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S: std::fmt::Debug> std::fmt::Debug for Fenced<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fenced").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The one that said it was ready, not its copy.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let gate = self.gate.clone();
        Box::pin(async move {
            let mark = match mark(request.headers()) {
                Ok(Some(mark)) => mark,
                Ok(None) if request.method().is_safe() => return inner.call(request).await,
                Ok(None) => {
                    let detail =
                        "this resource is fenced: send fencing-token and fencing-authority with the request";
                    return Ok(refusal(StatusCode::PRECONDITION_REQUIRED, detail));
                }
                Err(error) => return Ok(refusal(StatusCode::BAD_REQUEST, &error.to_string())),
            };
            match gate.pass(&mark).await {
                Ok(_under_way) => {
                    request.extensions_mut().insert(mark);
                    inner.call(request).await
                }
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    Ok(refusal(StatusCode::CONFLICT, &error.to_string()))
                }
                Err(error) => {
                    tracing::warn!(%error, "a fenced request was not passed on");
                    // What went wrong may name what only the service's operator should know.
                    let detail = "the fence cannot be asked now; nothing was done";
                    Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, detail))
                }
            }
        })
    }
}

/// What the copies of a service share.
struct Gate {
    fence: Box<dyn SharedFence>,
    patience: Duration,
    /// The term whose requests are under way: they share the lock, and a newer term takes it alone before it is passed on.
    term: Arc<RwLock<Option<HighWater>>>,
}

impl Gate {
    /// Waits until requests of `mark` may be passed on. While the guard lives, no other term's are.
    async fn pass(&self, mark: &HighWater) -> Result<OwnedRwLockReadGuard<Option<HighWater>>> {
        // First of all, so that a late request of an old term disturbs nobody.
        self.fence.admit(mark.clone()).await?;
        let term = self.term.clone().read_owned().await;
        if term.as_ref() == Some(mark) {
            return Ok(term);
        }
        drop(term);
        let alone = tokio::time::timeout(self.patience, self.term.clone().write_owned()).await;
        let mut term = alone.map_err(|_| {
            Error::new(ErrorKind::TimedOut, "requests of an earlier term are still under way")
        })?;
        // Another may have come before, while this one waited.
        self.fence.admit(mark.clone()).await?;
        *term = Some(mark.clone());
        Ok(term.downgrade())
    }
}

fn refusal<R: From<String>>(status: StatusCode, detail: &str) -> Response<R> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = serde_json::json!({ "title": title, "status": status.as_u16(), "detail": detail });
    let mut response = Response::new(R::from(format!("{problem}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_arrives_as_it_was_shown() {
        for (authority, token) in [("etcd:7f3a:billing/", u64::MAX), ("postgres:1/Bücher/my schema", 0)] {
            let shown = HighWater { authority: Authority::new(authority), token: FencingToken(token) };
            assert_eq!(mark(&headers(&shown).unwrap()).unwrap(), Some(shown));
        }
        let odd = HighWater { authority: Authority::new("a\nb"), token: FencingToken(1) };
        assert_eq!(headers(&odd).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn what_is_no_mark_is_refused() {
        let map = |pairs: &[(&'static str, &'static [u8])]| -> HeaderMap {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(*name, HeaderValue::from_bytes(value).unwrap());
            }
            map
        };
        assert_eq!(mark(&map(&[])).unwrap(), None);
        for (pairs, word) in [
            (&[("fencing-token", &b"1"[..])][..], "together"),
            (&[("fencing-authority", b"a")], "together"),
            (&[("fencing-token", b"1"), ("fencing-authority", b"")], "together"),
            (&[("fencing-token", b"+1"), ("fencing-authority", b"a")], "no number"),
            (&[("fencing-token", b"-1"), ("fencing-authority", b"a")], "no number"),
            (&[("fencing-token", b"18446744073709551616"), ("fencing-authority", b"a")], "no number"),
            (&[("fencing-token", b"1"), ("fencing-token", b"2"), ("fencing-authority", b"a")], "twice"),
            (&[("fencing-token", b"1"), ("fencing-authority", b"\xff")], "UTF-8"),
        ] {
            let error = mark(&map(pairs)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
