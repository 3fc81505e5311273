//! What an error of Consul, HTTP or TLS means for the caller: its kind, whether the request may have taken effect, and what to do
//! about it.

use std::error::Error as StdError;

use http::StatusCode;
use incumbent_core::{Error, ErrorKind};

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
    Error::new(kind, format!("consul at {host}: {text}")).with_backend("consul").ambiguous(false)
}

/// A request that was sent to `host` and not answered in time.
pub(super) fn unanswered(host: &str, effect: Effect) -> Error {
    error(ErrorKind::TimedOut, host, "no answer in time").ambiguous(effect == Effect::Write)
}

/// A failure to connect to `host`, so nothing was sent.
pub(super) fn cannot_connect(source: impl StdError + Send + Sync + 'static, host: &str) -> Error {
    let error = match tls::advice(&source) {
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => error(ErrorKind::Unavailable, host, format_args!("cannot connect: {}", root(&source))),
    };
    error.with_source(source)
}

/// A connection that failed before its answer was whole.
pub(super) fn broken(
    source: impl StdError + Send + Sync + 'static,
    host: &str,
    sent: bool,
    effect: Effect,
) -> Error {
    let error = match tls::advice(&source) {
        // TLS 1.3 tells a client only after the handshake that its certificate is refused; nothing was read.
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => {
            let text = format_args!("no answer that can be understood: {}", root(&source)).to_string();
            error(ErrorKind::Unavailable, host, text).ambiguous(sent && effect == Effect::Write)
        }
    };
    error.with_source(source)
}

/// What an answer that is not the one wanted means. `right` is what the token must be allowed to do.
pub(super) fn explain(status: StatusCode, body: &[u8], host: &str, effect: Effect, right: &str) -> Error {
    let text = brief(body);
    let has = |part: &str| text.contains(part);
    let unknown =
        |kind| error(kind, host, format_args!("{status}: {text}")).ambiguous(effect == Effect::Write);
    if has("Client sent an HTTP request to an HTTPS server") {
        let advice = "it speaks TLS only; use tls=on, and ca= if its authority is not one of the system's";
        return error(ErrorKind::Denied, host, advice);
    }
    if has("ACL not found") {
        return error(
            ErrorKind::Denied,
            host,
            "it does not know the ACL token; it may have expired: give another in token_file=",
        );
    }
    if status == StatusCode::FORBIDDEN || has("Permission denied") {
        return denied(host, right);
    }
    if has("Invalid Session TTL") {
        let advice =
            "it keeps no session as short as that: raise ttl, or lower session_ttl_min on the servers";
        return error(ErrorKind::InvalidConfig, host, format_args!("{text}; {advice}"));
    }
    // Both are said before anything is proposed to the other servers.
    if has("No cluster leader") || has("No known Consul servers") {
        return error(ErrorKind::Unavailable, host, text);
    }
    if status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED {
        return error(
            ErrorKind::InvalidConfig,
            host,
            format_args!("{status}; is this Consul's HTTP address?"),
        );
    }
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        return error(ErrorKind::InvalidConfig, host, text);
    }
    unknown(ErrorKind::Unavailable)
}

/// The token may not do what was asked.
pub(super) fn denied(host: &str, right: &str) -> Error {
    error(
        ErrorKind::Denied,
        host,
        format_args!("permission denied; the ACL token needs {right}: give it in token_file="),
    )
}

/// An answer of HTTP that Consul would not give.
pub(super) fn garbled(host: &str, effect: Effect) -> Error {
    let text = "its answer cannot be understood; is this Consul's HTTP address?";
    error(ErrorKind::Unavailable, host, text).ambiguous(effect == Effect::Write)
}

/// The last cause, which says most.
fn root(source: &(dyn StdError + 'static)) -> String {
    let mut last = source;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

/// The server's own words, in one line.
fn brief(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim();
    let shown: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    shown.strip_prefix("rpc error making call: ").map(str::to_owned).unwrap_or(shown)
}
