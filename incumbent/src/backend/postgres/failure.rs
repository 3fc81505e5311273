//! What an error of PostgreSQL means for the caller: its kind, whether the request may have taken effect, and what to do about it.

use std::error::Error as StdError;

use incumbent_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::tls;

/// Whether a request could change anything at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// It only reads, so that its failure leaves nothing behind.
    None,
    /// It may write.
    Write,
}

/// A failed statement.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// The server's code, if it is the server that refused.
    pub(super) code: Option<SqlState>,
}

impl Failure {
    pub(super) fn is(&self, codes: &[SqlState]) -> bool {
        self.code.as_ref().is_some_and(|code| codes.contains(code))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, code: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

/// An error of this backend about the server at `host`.
pub(super) fn error(kind: ErrorKind, host: &str, text: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("PostgreSQL at {host}: {text}")).with_backend("postgres").ambiguous(false)
}

/// What `cause`, the outcome of a request to `host`, means.
pub(super) fn explain(cause: tokio_postgres::Error, host: &str, effect: Effect) -> Failure {
    let code = cause.code().cloned();
    Failure { error: describe(cause, host, effect), code }
}

fn describe(cause: tokio_postgres::Error, host: &str, effect: Effect) -> Error {
    if let Some(refusal) = cause.as_db_error() {
        // The rest of the cause may show the row, and its first part stands in the text.
        return refused(refusal, host, effect);
    }
    if let Some(advice) = tls::advice(&cause) {
        return error(ErrorKind::Denied, host, advice).with_source(cause);
    }
    let root = root(&cause);
    let certain = |kind, text: &str| error(kind, host, text);
    let explained = match root.as_str() {
        "server does not support TLS" => certain(ErrorKind::Denied, tls::NOT_TLS),
        "password missing" => certain(
            ErrorKind::Denied,
            "it wants a password; put user@ in the URL and the password in password_file=",
        ),
        "unexpected message from server" | "unsupported authentication method" => {
            certain(ErrorKind::Unavailable, &format!("{root}; is this really a PostgreSQL server's port?"))
        }
        _ if cause.is_closed() => certain(ErrorKind::Unavailable, "the connection was closed"),
        _ => certain(ErrorKind::Unavailable, &format!("connection failed: {root}")),
    };
    explained.ambiguous(effect == Effect::Write).with_source(cause)
}

fn refused(refusal: &DbError, host: &str, effect: Effect) -> Error {
    let text = refusal.message();
    let code = refusal.code();
    let say = |kind, advice: &str| error(kind, host, format_args!("{text}{advice}"));
    // The session ends with it: a commit that was under way may have been written.
    let fatal = matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    let unknown = |error: Error| error.ambiguous(fatal && effect == Effect::Write);
    match code {
        code if *code == SqlState::INVALID_PASSWORD || text.contains("authentication failed") => {
            say(ErrorKind::Denied, "; check user and password")
        }
        code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION && text.contains("no encryption") => {
            say(
                ErrorKind::Denied,
                "; it may let this user in with TLS only: use tls=on, and ca= if its authority is not one of the system's",
            )
        }
        code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            say(ErrorKind::Denied, "; check the user and the server's pg_hba.conf")
        }
        code if *code == SqlState::UNDEFINED_DATABASE => say(
            ErrorKind::InvalidConfig,
            "; create it, or name another one in the URL, as in postgres://HOST/DATABASE",
        ),
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => say(
            ErrorKind::Denied,
            "; `incumbent doctor --print-schema` prints what an administrator has to run, rights included",
        ),
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => say(
            ErrorKind::ReadOnly,
            "; it is a standby, or default_transaction_read_only is on: name the primary too",
        ),
        code if *code == SqlState::DISK_FULL => say(ErrorKind::ReadOnly, "; make room on its disk"),
        code if *code == SqlState::LOCK_NOT_AVAILABLE => {
            say(ErrorKind::Unavailable, "; another session has the row locked")
        }
        code if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::UNDEFINED_SCHEMA => {
            say(ErrorKind::NotFound, "")
        }
        code => match code.code().get(..2) {
            Some("08" | "25" | "40" | "53" | "55" | "57" | "58" | "XX") => {
                unknown(say(ErrorKind::Unavailable, ""))
            }
            _ if fatal => unknown(say(ErrorKind::Unavailable, "")),
            _ => say(ErrorKind::Internal, &format!(" ({})", code.code())),
        },
    }
}

/// The last cause, which says most.
fn root(mut cause: &(dyn StdError + 'static)) -> String {
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
