//! What an answer of the API server, or the lack of one, means for the caller: the kind, and what to do about it.

use std::error::Error as StdError;

use incumbent_core::{Error, ErrorKind};
use serde_json::Value;

use super::SCHEME;

/// What was asked of the API, by the name of the right that it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Get,
    Create,
    Update,
    Watch,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Verb::Create | Verb::Update)
    }
}

/// An error of this backend.
pub(super) fn error(kind: ErrorKind, text: impl Into<String>) -> Error {
    Error::new(kind, text).with_backend(SCHEME).ambiguous(false)
}

/// Settings that cannot work.
pub(super) fn misconfigured(text: impl Into<String>) -> Error {
    error(ErrorKind::InvalidConfig, text)
}

/// Something that only an API server that breaks its contract answers.
pub(super) fn garbage(host: &str, what: &str) -> Error {
    error(
        ErrorKind::Corrupt,
        format!("the server at {host} answered {what}; is it really a Kubernetes API server?"),
    )
}

/// What an answer other than a success, a conflict or an absence means.
pub(super) fn refused(status: u16, body: &[u8], verb: Verb, host: &str, namespace: &str) -> Error {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let is_status = answer["kind"] == "Status";
    let said = answer["message"].as_str().unwrap_or("no reason given").chars().take(400).collect::<String>();
    let right = verb.name();
    match status {
        401 => error(
            ErrorKind::Denied,
            format!("the API server at {host} refused the credentials (401); renew the token or certificate"),
        ),
        403 if answer["details"]["causes"].to_string().contains("NamespaceTerminating") => {
            error(ErrorKind::ReadOnly, format!("the namespace {namespace} is being deleted; name another"))
        }
        403 => error(
            ErrorKind::Denied,
            format!(
                "the API server at {host} forbids it ({said}); grant the verb {right} on leases of coordination.k8s.io in the namespace {namespace}"
            ),
        ),
        404 if is_status => error(
            ErrorKind::NotFound,
            format!(
                "the API server at {host} knows no place for it ({said}); create the namespace {namespace}, or name another as kubernetes:NAMESPACE"
            ),
        ),
        429 | 500..=599 => error(
            ErrorKind::Unavailable,
            format!("the API server at {host} cannot do it now ({status}: {said})"),
        )
        // Some of these answers come after the write was begun.
        .ambiguous(verb.writes() && status != 429),
        400..=499 if is_status => error(
            ErrorKind::InvalidConfig,
            format!("the API server at {host} does not accept it ({status}: {said})"),
        ),
        _ => garbage(host, &format!("status {status} without a reason")),
    }
}

/// A connection that could not be made or broke.
pub(super) fn unreachable(
    source: impl Into<Box<dyn StdError + Send + Sync>>,
    verb: Verb,
    host: &str,
) -> Error {
    let source = source.into();
    let failure = match tls_advice(&*source) {
        Some(advice) => error(ErrorKind::Denied, format!("the API server at {host}: {advice}")),
        None => error(
            ErrorKind::Unavailable,
            format!("the API server at {host} cannot be reached: {}", root(&*source)),
        )
        .ambiguous(verb.writes() && !is_connect(&*source)),
    };
    failure.with_source(source)
}

/// What to do, if TLS is what failed.
fn tls_advice(source: &(dyn StdError + 'static)) -> Option<String> {
    match find_tls(source)? {
        rustls::Error::InvalidCertificate(reason) => Some(format!(
            "its certificate is not accepted ({reason}); check certificate-authority and tls-server-name in the kubeconfig"
        )),
        rustls::Error::AlertReceived(alert) => Some(format!(
            "it refused the TLS connection ({alert:?}); check the client certificate in the kubeconfig"
        )),
        rustls::Error::InvalidMessage(_) => {
            Some("it does not speak TLS; check the server in the kubeconfig".to_owned())
        }
        other => Some(format!("TLS cannot be agreed: {other}")),
    }
}

fn is_connect(source: &(dyn StdError + 'static)) -> bool {
    chain(source).any(|cause| {
        cause.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect())
    })
}

/// The TLS error in the chain of causes; it hides inside I/O errors, which do not show it as their source.
fn find_tls<'a>(source: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    chain(source).find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Some(error);
        }
        find_tls(cause.downcast_ref::<std::io::Error>()?.get_ref()?)
    })
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
