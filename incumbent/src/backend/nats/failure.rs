//! What an error of NATS, of its protocol or of the connection means for the caller: its kind, whether the request may have taken
//! effect, and what to do about it.

use std::error::Error as StdError;

use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};
use incumbent_core::{Error, ErrorKind};
use serde::Deserialize;

use super::dial::{Config, Login};
use super::keys::Keys;
use crate::backend::tls;

/// Whether a request could change anything at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// It only reads, so that its failure leaves nothing behind.
    None,
    /// It may write.
    Write,
}

/// What JetStream says when it does not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    description: String,
}

impl Refusal {
    /// Another revision stands there than was expected, or a write is under way: nothing was written.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.err_code, 10071 | 10164)
    }

    /// The key was never written, or what was written is gone.
    pub(super) fn is_absence(&self) -> bool {
        self.err_code == 10037
    }

    /// What it means about the server at `host`.
    pub(super) fn explain(&self, host: &str, keys: &Keys, effect: Effect) -> Error {
        let bucket = &keys.bucket;
        let certain = |kind, advice: &str| {
            error(kind, host, format_args!("{} ({}){advice}", self.description, self.err_code))
        };
        match self.err_code {
            10059 => error(
                ErrorKind::InvalidConfig,
                host,
                format_args!(
                    "there is no bucket {bucket}; its operator makes it once: nats kv add {bucket} --storage=file --replicas=3 (1 without a cluster)"
                ),
            ),
            10039 | 10076 => certain(
                ErrorKind::InvalidConfig,
                "; elections need JetStream: start nats-server with -js, and enable it for this account",
            ),
            10002 | 10023 | 10047 | 10054 | 10109 | 10122 => {
                certain(ErrorKind::ReadOnly, "; raise the limit or free space, then it goes on")
            }
            10077 => certain(ErrorKind::ReadOnly, "; see the limits of the bucket and the server's log")
                .ambiguous(effect == Effect::Write),
            _ => certain(ErrorKind::Unavailable, "").ambiguous(effect == Effect::Write),
        }
    }
}

/// An error of this backend about the server at `host`.
pub(super) fn error(kind: ErrorKind, host: &str, text: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("nats at {host}: {text}")).with_backend("nats").ambiguous(false)
}

/// An answer that is none.
pub(super) fn garbage(host: &str, effect: Effect) -> Error {
    error(ErrorKind::Unavailable, host, "JetStream answers what cannot be understood")
        .ambiguous(effect == Effect::Write)
}

/// The connection has ended before an answer came.
pub(super) fn cut(host: &str, effect: Effect) -> Error {
    error(ErrorKind::Unavailable, host, "the connection was closed before an answer came")
        .ambiguous(effect == Effect::Write)
}

/// What the server tells beside its answers, if it means that nothing on `subject` will be answered.
pub(super) fn denied(told: &str, subject: &str, host: &str, keys: &Keys) -> Option<Error> {
    let hit = told.contains("Permissions Violation")
        && (told.contains(&format!("\"{subject}\"")) || told.contains("Subscription to"));
    let (bucket, stream) = (&keys.bucket, keys.stream());
    hit.then(|| {
        error(
            ErrorKind::Denied,
            host,
            format_args!(
                "{}; the user needs permissions: publish = [\"$KV.{bucket}.>\", \"$JS.API.STREAM.INFO.{stream}\", \"$JS.API.STREAM.MSG.GET.{stream}\", \"$JS.API.CONSUMER.CREATE.{stream}\"], subscribe = [\"_INBOX.>\"]",
                told.trim_start_matches("nats: ")
            ),
        )
    })
}

/// What the failure of a request means.
pub(super) fn explain(cause: RequestError, host: &str, has_jetstream: bool, effect: Effect) -> Error {
    match cause.kind() {
        // Nobody got it.
        RequestErrorKind::NoResponders if has_jetstream => error(
            ErrorKind::Unavailable,
            host,
            "nobody answers for JetStream; it may be choosing a leader, or be off for this account",
        ),
        RequestErrorKind::NoResponders => error(
            ErrorKind::InvalidConfig,
            host,
            "it has no JetStream, which elections need; start nats-server with -js",
        ),
        RequestErrorKind::MaxPayloadExceeded => {
            error(ErrorKind::ReadOnly, host, "the record is larger than its max_payload; raise that")
        }
        _ => cut(host, effect).with_source(cause),
    }
}

/// A failure to connect to `host`, so nothing was asked.
pub(super) fn cannot_connect(cause: ConnectError, host: &str, config: &Config) -> Error {
    let text = root(&cause);
    let words = text.to_lowercase();
    let error = |kind, text: &dyn std::fmt::Display| error(kind, host, text);
    let failure = if tls::find(&cause).is_some() && config.tls.is_none() {
        let text = "it speaks TLS only; use tls=on, and ca= if its authority is not one of the system's";
        error(ErrorKind::Denied, &text)
    } else if let Some(advice) = tls::advice(&cause) {
        error(ErrorKind::Denied, &advice)
    } else if cause.kind() == ConnectErrorKind::AuthorizationViolation {
        error(ErrorKind::Denied, &format_args!("it refuses the login; {}", advice(&config.login)))
    } else if cause.kind() == ConnectErrorKind::Authentication {
        error(ErrorKind::Denied, &format_args!("the login cannot be signed; {}", advice(&config.login)))
    } else if words.contains("authentication") || words.contains("authorization") {
        error(ErrorKind::Denied, &format_args!("{text}; {}", advice(&config.login)))
    } else if is_garbled(&cause) {
        error(
            ErrorKind::Unavailable,
            &"what it says is not the protocol of NATS; is this really a port for its clients?",
        )
    } else {
        error(ErrorKind::Unavailable, &format_args!("cannot connect: {text}"))
    };
    failure.with_source(cause)
}

fn advice(login: &Login) -> &'static str {
    match login {
        Login::None => {
            "put user@ in the URL and the password in password_file=, or give token_file=, nkey_file= or creds_file="
        }
        Login::Password(..) => "check user and password",
        Login::Token(_) => "check the token in token_file=",
        Login::Nkey(_) => "check the seed in nkey_file=",
        Login::Creds(_) => "check creds_file=: it may have expired or been revoked",
    }
}

fn is_garbled(cause: &ConnectError) -> bool {
    let text = root(cause);
    chain(cause).filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|cause| {
        matches!(cause.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData)
    }) || text.starts_with("expected INFO, got")
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
