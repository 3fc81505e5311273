//! From an input/output error to one that says what to do.

use std::io::{self, ErrorKind as Io};
use std::path::Path;

use incumbent_core::{Error, ErrorKind};
use rustix::io::Errno;

/// The error of an operation on `path`, as in `cannot write PATH`.
pub(super) fn failure(verb: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let errno = Errno::from_io_error(&error);
    let (kind, advice) = match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => (ErrorKind::ReadOnly, "; free some space there"),
        Io::PermissionDenied | Io::ReadOnlyFilesystem => {
            (ErrorKind::ReadOnly, "; run as its owner, or choose another directory with file:PATH")
        }
        Io::NotADirectory | Io::AlreadyExists => {
            (ErrorKind::InvalidConfig, "; it must be a directory: choose another one with file:PATH")
        }
        Io::IsADirectory => (ErrorKind::Corrupt, "; it must be a plain file: move the directory away"),
        Io::NotFound => (ErrorKind::Unavailable, "; the state directory was removed"),
        _ if matches!(errno, Some(Errno::MFILE | Errno::NFILE)) => {
            (ErrorKind::Unavailable, "; raise the limit of open files (ulimit -n)")
        }
        _ if errno == Some(Errno::LOOP) => {
            (ErrorKind::Corrupt, "; it must not be a symbolic link: remove it")
        }
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("cannot {verb} {}: {error}{advice}", path.display())).with_source(error)
}
