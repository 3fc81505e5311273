//! What an error of etcd, gRPC or TLS means for the caller: its kind, whether the request may have taken effect, and
//! what to do about it.

use std::error::Error as StdError;

use incumbent_core::{Error, ErrorKind};
use tonic::{Code, ConnectError, Status};

use crate::backend::tls;

/// Whether a request could change anything at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// It only reads, so that its failure leaves nothing behind.
    None,
    /// It may write.
    Write,
}

/// An error of this backend about the server at `host`.
pub(super) fn error(kind: ErrorKind, host: &str, text: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("etcd at {host}: {text}")).with_backend("etcd").ambiguous(false)
}

/// A request that was sent to `host` and not answered in time.
pub(super) fn unanswered(host: &str, effect: Effect) -> Error {
    error(ErrorKind::TimedOut, host, "no answer in time").ambiguous(effect == Effect::Write)
}

/// True if the server refused the token, which is certain to have prevented the request.
pub(super) fn is_token_refused(status: &Status) -> bool {
    let message = status.message();
    !is_local(status)
        && (status.code() == Code::Unauthenticated
            || message.contains("invalid auth token")
            || message.contains("revision of auth store is old")
            || message.contains("user name is empty"))
}

/// True if the server has no users, so that no token is needed.
pub(super) fn is_auth_disabled(status: &Status) -> bool {
    !is_local(status) && status.message().contains("authentication is not enabled")
}

/// What `status`, the outcome of a request to `host`, means.
pub(super) fn explain(status: Status, host: &str, effect: Effect) -> Error {
    if is_local(&status) {
        return local(status, host, effect);
    }
    let text = status.message();
    let has = |part: &str| text.contains(part);
    let certain = |kind, advice: &str| error(kind, host, format_args!("{}{advice}", brief(&status)));
    let unknown = |kind| certain(kind, "").ambiguous(effect == Effect::Write);
    match status.code() {
        Code::Unauthenticated => certain(ErrorKind::Denied, "; check user and password"),
        Code::PermissionDenied => certain(
            ErrorKind::Denied,
            "; grant the user a role with readwrite permission on the prefix in the URL",
        ),
        Code::Unimplemented => certain(ErrorKind::InvalidConfig, "; is this really an etcd v3 client port?"),
        Code::InvalidArgument if has("invalid user ID or password") => {
            certain(ErrorKind::Denied, "; check user and password")
        }
        Code::InvalidArgument if has("user name is empty") => certain(
            ErrorKind::Denied,
            "; this etcd wants a user: put user@ in the URL and the password in password_file=",
        ),
        Code::InvalidArgument if has("revision of auth store is old") => certain(ErrorKind::Unavailable, ""),
        Code::NotFound if has("lease not found") => certain(ErrorKind::NotFound, ""),
        Code::OutOfRange if has("compacted") => certain(ErrorKind::NotFound, ""),
        Code::OutOfRange if has("future revision") => {
            certain(ErrorKind::StoreRegressed, "; was the cluster restored from a backup?")
        }
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition if !has("learner") => {
            certain(ErrorKind::InvalidConfig, "")
        }
        // The server checks the space before it writes *and* reports a write that crossed the line.
        Code::ResourceExhausted if has("space exceeded") => certain(
            ErrorKind::ReadOnly,
            "; compact and defragment it or raise its quota, then disarm the alarm",
        )
        .ambiguous(effect == Effect::Write),
        Code::DataLoss if has("corrupt cluster") => certain(
            ErrorKind::ReadOnly,
            "; etcd refuses writes until the corrupt member is replaced and the alarm disarmed",
        ),
        // All of these are decided before the request is proposed to the cluster.
        _ if has("no leader") || has("too many requests") || has("not capable") || has("learner") => {
            certain(ErrorKind::Unavailable, "")
        }
        Code::DeadlineExceeded => unknown(ErrorKind::TimedOut),
        _ if has("timed out") => unknown(ErrorKind::TimedOut),
        _ => unknown(ErrorKind::Unavailable),
    }
}

/// A failure to connect to `host`, so nothing was sent.
pub(super) fn cannot_connect(source: impl StdError + Send + Sync + 'static, host: &str) -> Error {
    let error = match tls_advice(&source) {
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => error(ErrorKind::Unavailable, host, format_args!("cannot connect: {}", root(&source))),
    };
    error.with_source(source)
}

/// True if the status was made on this side and not sent by a server.
pub(super) fn is_local(status: &Status) -> bool {
    status.source().is_some()
}

/// A status that was made on this side: the connection failed before, during or after the request.
fn local(status: Status, host: &str, effect: Effect) -> Error {
    let sent = find::<ConnectError>(&status).is_none();
    let error = match tls_advice(&status) {
        // TLS 1.3 tells a client only after the handshake that its certificate is refused; nothing was read.
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => error(ErrorKind::Unavailable, host, format_args!("connection failed: {}", root(&status)))
            .ambiguous(sent && effect == Effect::Write),
    };
    error.with_source(status)
}

/// What to do, if TLS is what failed.
pub(super) fn tls_advice(source: &(dyn StdError + 'static)) -> Option<String> {
    tls::advice(source).or_else(|| {
        // Once HTTP/2 has begun, it keeps of an error only the text.
        root(source).strip_prefix("received fatal alert: ").map(tls::refused)
    })
}

/// True if `source` is a failed handshake in which the server did speak TLS.
pub(super) fn is_answer_in_tls(source: &(dyn StdError + 'static)) -> bool {
    tls::find(source).is_some_and(|error| !matches!(error, rustls::Error::InvalidMessage(_)))
}

fn find<'a, T: StdError + 'static>(source: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    chain(source).find_map(|cause| cause.downcast_ref::<T>())
}

fn chain<'a>(source: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(source);
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

/// The last cause, which says most.
fn root(source: &(dyn StdError + 'static)) -> String {
    chain(source).last().map(ToString::to_string).unwrap_or_default()
}

/// The server's own words without its name in front.
fn brief(status: &Status) -> String {
    let text = status.message();
    let text = text.strip_prefix("etcdserver: ").unwrap_or(text);
    if text.is_empty() { status.code().description().to_owned() } else { text.to_owned() }
}
