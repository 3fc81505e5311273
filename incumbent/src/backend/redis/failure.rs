//! What an error of Redis, of its protocol or of the connection means for the caller: its kind, whether the request may have taken
//! effect, and what to do about it.

use std::error::Error as StdError;
use std::sync::Arc;

use incumbent_core::{Error, ErrorKind};
use redis::RedisError;

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
    Error::new(kind, format!("redis at {host}: {text}")).with_backend("redis").ambiguous(false)
}

/// A request that was sent to `host` and not answered in time.
pub(super) fn unanswered(host: &str, effect: Effect) -> Error {
    error(ErrorKind::TimedOut, host, "no answer in time").ambiguous(effect == Effect::Write)
}

/// A failure to connect to `host`, so nothing was sent.
pub(super) fn cannot_connect(source: std::io::Error, host: &str) -> Error {
    let error = match tls::advice(&source) {
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => error(ErrorKind::Unavailable, host, format_args!("cannot connect: {source}")),
    };
    error.with_source(source)
}

/// What `failure`, the outcome of the first words to `host`, means.
pub(super) fn at_the_greeting(failure: RedisError, host: &str) -> Error {
    let hangs_up = failure.is_connection_dropped();
    let error = explain(failure, host, Effect::None);
    if !hangs_up || error.kind() != ErrorKind::Unavailable {
        return error;
    }
    let text = "it closes the connection at the first word; is this really a port of Redis?";
    self::error(ErrorKind::Unavailable, host, text).with_source(error)
}

/// A server that is no primary: it cannot be written to.
pub(super) fn replica(host: &str) -> Error {
    let text =
        "it is a replica, which takes no writes; name the primary, or all servers: redis://HOST1,HOST2";
    error(ErrorKind::ReadOnly, host, text)
}

/// True if the connection is of no more use, or the server is not the primary any more.
pub(super) fn is_final(failure: &RedisError) -> bool {
    match failure.code() {
        Some(code) => matches!(code, "READONLY" | "NOAUTH" | "MASTERDOWN"),
        None => true,
    }
}

/// What `failure`, the outcome of a request to `host`, means.
pub(super) fn explain(failure: RedisError, host: &str, effect: Effect) -> Error {
    match failure.code() {
        // The server's words are all that there is to it.
        Some(code) => of_server(code, failure.detail().unwrap_or_default(), host, effect),
        None => local(&failure, host).ambiguous(effect == Effect::Write).with_source(failure),
    }
}

/// A refusal of the server, by its first word.
fn of_server(code: &str, detail: &str, host: &str, effect: Effect) -> Error {
    // What a script says after it began to write may have had an effect; all other refusals come before.
    let began = effect == Effect::Write && detail.contains("script:");
    // The place in the script and its hash are of no use to anyone.
    let detail = detail.split(" script: ").next().unwrap_or(detail);
    // The server's own words tell of HELLO, which nobody here types.
    let detail = if code == "NOAUTH" { "it wants a password" } else { detail };
    let error =
        |kind, advice: &str| error(kind, host, format_args!("{code} {detail}{advice}")).ambiguous(began);
    match code {
        "NOAUTH" => error(
            ErrorKind::Denied,
            "; put user@ in the URL (without a user of your own: default@) and the password in password_file=",
        ),
        "WRONGPASS" => error(ErrorKind::Denied, "; check user and password"),
        "NOPERM" => error(ErrorKind::Denied, RIGHTS),
        "READONLY" => replica(host),
        "NOREPLICAS" => error(
            ErrorKind::Unavailable,
            "; fewer replicas follow it than its min-replicas-to-write asks for, so it takes no writes",
        ),
        "MISCONF" => error(ErrorKind::ReadOnly, "; its disk does not take its data, see its log"),
        "OOM" => error(ErrorKind::ReadOnly, "; raise its maxmemory or delete something"),
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => cluster(host),
        // So says a script of a command that it may not call.
        _ if detail.starts_with("The user executing the script can't") => error(ErrorKind::Denied, RIGHTS),
        _ if detail.contains("unknown command") => error(
            ErrorKind::InvalidConfig,
            "; Redis 7.0 or newer is needed, with all of its commands under their own names",
        ),
        _ => error(ErrorKind::Unavailable, ""),
    }
}

const RIGHTS: &str = "; with the prefix PREFIX in the URL the user needs: ACL SETUSER NAME ~PREFIX/* &PREFIX/* +eval +hmget +hset +exists +del +time +info +publish +subscribe +unsubscribe (and +select with another database than 0); without a prefix ~* and &*";

/// A server that is a member of a Redis Cluster.
pub(super) fn cluster(host: &str) -> Error {
    error(
        ErrorKind::InvalidConfig,
        host,
        "it is a member of a Redis Cluster, which is not supported; name a Redis without cluster mode",
    )
}

/// What went wrong on this side or on the way.
fn local(failure: &RedisError, host: &str) -> Error {
    if let Some(advice) = tls::advice(&failure.clone()).or_else(|| hidden(failure)) {
        // TLS 1.3 tells a client only after the handshake that its certificate is refused; nothing was read.
        return error(ErrorKind::Denied, host, advice);
    }
    match failure.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            let detail = failure.detail().unwrap_or("refused");
            error(ErrorKind::Denied, host, format_args!("{detail}; check user and password"))
        }
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => error(
            ErrorKind::Unavailable,
            host,
            "what it answers is not the Redis protocol; is this really a port of Redis?",
        ),
        redis::ErrorKind::RESP3NotSupported => {
            error(ErrorKind::InvalidConfig, host, "it is older than Redis 7.0, which is needed")
        }
        _ => error(ErrorKind::Unavailable, host, format_args!("connection failed: {failure}")),
    }
}

/// The TLS error that the client library keeps behind a shared pointer.
fn hidden(failure: &RedisError) -> Option<String> {
    let shared = failure.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    tls::advice(&**shared)
}
