//! What an error of MySQL or MariaDB means for the caller: its kind, whether the request may have taken effect, and what to do about it.

use std::error::Error as StdError;

use incumbent_core::{Error, ErrorKind};
use mysql_async::{DriverError, ServerError};

use crate::backend::tls;

/// A failed statement.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// The server's code, if it is the server that refused.
    pub(super) code: Option<u16>,
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
    Error::new(kind, format!("MySQL at {host}: {text}")).with_backend("mysql").ambiguous(false)
}

/// What `cause`, the outcome of a request to `host`, means.
pub(super) fn explain(cause: mysql_async::Error, host: &str, writes: bool) -> Failure {
    if let mysql_async::Error::Server(refusal) = &cause {
        // The cause says nothing that does not stand in the text.
        return Failure { error: refused(refusal, host, writes), code: Some(refusal.code) };
    }
    if let Some(advice) = tls::advice(&cause) {
        return error(ErrorKind::Denied, host, advice).with_source(cause).into();
    }
    let certain = |kind, text: String| error(kind, host, text);
    let explained = match &cause {
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            certain(ErrorKind::Denied, tls::NOT_TLS.to_owned())
        }
        mysql_async::Error::Driver(DriverError::UnknownAuthPlugin { name }) => certain(
            ErrorKind::Denied,
            format!("it wants {name} of this user, which is not supported; give the user a password"),
        ),
        mysql_async::Error::Driver(
            DriverError::CleartextPluginDisabled | DriverError::MysqlOldPasswordDisabled,
        ) => certain(ErrorKind::Denied, format!("{}; give the user another kind of password", root(&cause))),
        mysql_async::Error::Driver(
            DriverError::UnexpectedPacket { .. }
            | DriverError::PacketOutOfOrder
            | DriverError::CantParseServerVersion { .. },
        ) => certain(
            ErrorKind::Unavailable,
            format!("{}; is this really a MySQL server's port?", root(&cause)),
        ),
        _ => certain(ErrorKind::Unavailable, format!("connection failed: {}", root(&cause))),
    };
    explained.ambiguous(writes).with_source(cause).into()
}

fn refused(refusal: &ServerError, host: &str, writes: bool) -> Error {
    let text = &refusal.message;
    let say = |kind, advice: &str| error(kind, host, format_args!("{text}{advice}"));
    match refusal.code {
        1045 if text.contains("using password: NO") => {
            say(ErrorKind::Denied, "; it wants a password: put it into password_file=")
        }
        1045 | 1698 => say(
            ErrorKind::Denied,
            "; check user and password; it may let this user in with TLS only: then use tls=on",
        ),
        3159 => say(ErrorKind::Denied, "; use tls=on, and ca= if its authority is not one of the system's"),
        1130 | 1862 | 1820 | 3118 | 4151 => say(ErrorKind::Denied, "; check the user at the server"),
        1044 => say(
            ErrorKind::Denied,
            "; check that the database is there; `incumbent doctor --print-schema` prints what an administrator has to run, rights included",
        ),
        1142 | 1143 | 1227 | 1370 => say(
            ErrorKind::Denied,
            "; `incumbent doctor --print-schema` prints what an administrator has to run, rights included",
        ),
        1049 => say(
            ErrorKind::InvalidConfig,
            "; create it, or name another one in the URL, as in mysql://USER@HOST/DATABASE",
        ),
        1290 if text.contains("read") => {
            say(ErrorKind::ReadOnly, "; it is a replica, or read_only is on: name the primary too")
        }
        1792 | 1836 => say(ErrorKind::ReadOnly, "; it is a replica, or only reads: name the primary too"),
        1021 | 1114 => say(ErrorKind::ReadOnly, "; make room on its disk"),
        1146 => say(ErrorKind::NotFound, ""),
        1205 => say(ErrorKind::Unavailable, "; another session has the row or the table locked"),
        1213 => say(ErrorKind::Unavailable, ""),
        1040 | 1203 | 1226 => say(ErrorKind::Unavailable, "; let more connections in"),
        1129 => say(ErrorKind::Unavailable, "; at the server, run FLUSH HOSTS"),
        // The session ends with it, or the statement was broken off: a commit that was under way may have been written.
        1030 | 1053 | 1077 | 1079 | 1180 | 1181 | 1184 | 1317 | 1927 | 1969 | 3024 | 4031 => {
            say(ErrorKind::Unavailable, "").ambiguous(writes)
        }
        code => match refusal.state.get(..2) {
            Some("08" | "40" | "53" | "57" | "70") => say(ErrorKind::Unavailable, "").ambiguous(writes),
            _ => say(ErrorKind::Internal, &format!(" ({code})")).ambiguous(writes),
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
