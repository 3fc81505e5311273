//! What a failure of ZooKeeper, of a connection or of TLS means for the caller, and what to do about it.

use std::io;

use incumbent_core::{Error, ErrorKind};

use super::jute::{code, op};
use crate::backend::tls;

/// An error of this backend about the server at `host`.
pub(super) fn error(kind: ErrorKind, host: &str, text: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("zookeeper at {host}: {text}")).with_backend("zookeeper").ambiguous(false)
}

/// A request that was sent to `host` and not answered in time.
pub(super) fn unanswered(host: &str, writes: bool) -> Error {
    error(ErrorKind::TimedOut, host, "no answer in time").ambiguous(writes)
}

/// The connection to `host` ended before the answer came.
pub(super) fn lost(host: &str, why: &str, writes: bool) -> Error {
    error(ErrorKind::Unavailable, host, why).ambiguous(writes)
}

/// The server at `host` answered something that is no answer.
pub(super) fn garbage(host: &str) -> Error {
    error(
        ErrorKind::Unavailable,
        host,
        "what it answers is not ZooKeeper's protocol; is this a client port, and does it expect TLS?",
    )
}

/// The server at `host` closed the connection in answer to a connect.
pub(super) fn closed(host: &str) -> Error {
    error(
        ErrorKind::Unavailable,
        host,
        "it closed the connection in answer: it has no majority or too many clients, wants TLS, or has seen less than this process",
    )
}

/// What the code of an answer of `host` to a request about `path` means; it was certainly not done.
pub(super) fn refused(answer: i32, op: i32, path: &str, host: &str) -> Error {
    let (kind, text) = match answer {
        code::NO_NODE => (ErrorKind::NotFound, format!("{path} does not exist")),
        code::NODE_EXISTS => (ErrorKind::Unavailable, format!("{path} exists already")),
        code::BAD_VERSION => (ErrorKind::Unavailable, format!("{path} was changed by someone else")),
        code::NO_AUTH => {
            let (right, place) = match op {
                op::CREATE | op::CREATE2 => ("CREATE", format!("the node above {path}")),
                op::DELETE => ("DELETE", format!("the node above {path}")),
                op::SET_DATA => ("WRITE", path.to_owned()),
                _ => ("READ", path.to_owned()),
            };
            let text = format!(
                "the right {right} on {place} is missing; put the user into the URL whom its ACL names, or grant it with setAcl"
            );
            (ErrorKind::Denied, text)
        }
        code::AUTH_FAILED => (ErrorKind::Denied, "user and password are not accepted".to_owned()),
        code::SESSION_EXPIRED => (ErrorKind::Unavailable, "the session has ended".to_owned()),
        code::SESSION_MOVED => (ErrorKind::Unavailable, "the session has moved to another server".to_owned()),
        -119 => (ErrorKind::ReadOnly, "it is cut off from its majority and only reads".to_owned()),
        -125 => (ErrorKind::ReadOnly, format!("the quota of {path} is used up; raise it with setquota")),
        -4 => (ErrorKind::Unavailable, "it has lost its leader".to_owned()),
        other => (ErrorKind::Unavailable, format!("code {other} about {path}")),
    };
    error(kind, host, text)
}

/// A failure to open a connection to `host`, so nothing was sent.
pub(super) fn cannot_connect(cause: io::Error, host: &str) -> Error {
    let error = match tls::advice(&cause) {
        Some(advice) => error(ErrorKind::Denied, host, advice),
        None => error(ErrorKind::Unavailable, host, format_args!("cannot connect: {cause}")),
    };
    error.with_source(cause)
}

/// The server at `host` was spoken to in TLS and speaks plain text.
pub(super) fn not_tls(host: &str) -> Error {
    error(ErrorKind::Denied, host, tls::NOT_TLS)
}
