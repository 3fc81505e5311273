//! The one error type.

use core::fmt;
use std::error::Error as StdError;
use std::sync::Arc;

/// What kind of thing went wrong, for code that decides what to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An election name, candidate id or nonce breaks its rule.
    InvalidName,
    /// A URL, option or combination of settings cannot work.
    InvalidConfig,
    /// The URL's scheme is unknown, or its feature is not compiled in.
    UnknownScheme,
    /// The store cannot be reached, has no quorum or did not answer.
    Unavailable,
    /// A request ran out of time; it may have taken effect.
    TimedOut,
    /// The store refused the credentials, or TLS could not be agreed.
    Denied,
    /// The store answers, but cannot be written (read-only, full, wrong permissions).
    ReadOnly,
    /// A stored record cannot be understood: garbage, or written by a newer release.
    Corrupt,
    /// The store broke a rule that it declares (a token or a record went back).
    StoreRegressed,
    /// The term is over, so what was asked can no longer be done.
    NotLeader,
    /// What was asked for does not exist (a candidate to hand over to, an election).
    NotFound,
    /// This backend cannot do what was asked.
    Unsupported,
    /// A fence refused an older token, or a token of another authority.
    Fenced,
    /// Something of ours failed; please report it.
    Internal,
}

/// Any error of this family of crates. Cheap to clone; the text is a lowercase fragment that says what to do next
/// and never holds a secret.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    ambiguous: bool,
    backend: Option<&'static str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `message` is a lowercase fragment without a secret in it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let ambiguous = matches!(kind, ErrorKind::TimedOut);
        Error(Arc::new(Inner { kind, message: message.into(), ambiguous, backend: None, source: None }))
    }

    fn map(self, change: impl FnOnce(&mut Inner)) -> Error {
        let mut inner = Arc::try_unwrap(self.0).unwrap_or_else(|shared| Inner {
            kind: shared.kind,
            message: shared.message.clone(),
            ambiguous: shared.ambiguous,
            backend: shared.backend,
            source: Some(Box::new(Error(shared))),
        });
        change(&mut inner);
        Error(Arc::new(inner))
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.map(|inner| inner.source = Some(source.into()))
    }

    /// Names the backend that the error came from.
    #[must_use]
    pub fn with_backend(self, scheme: &'static str) -> Error {
        self.map(|inner| inner.backend = Some(scheme))
    }

    /// Says that the request may have taken effect although it failed.
    #[must_use]
    pub fn ambiguous(self, ambiguous: bool) -> Error {
        self.map(|inner| inner.ambiguous = ambiguous)
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// True if the request may have taken effect although it failed: its outcome is unknown.
    pub fn is_ambiguous(&self) -> bool {
        self.0.ambiguous
    }

    /// True if the same request may succeed later without anyone changing a setting.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
    }

    /// The scheme of the backend that the error came from, if one did.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if self.0.ambiguous {
            out.field("ambiguous", &true);
        }
        if let Some(backend) = self.0.backend {
            out.field("backend", &backend);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A result of this family of crates.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl PartialEq for Error {
    /// Equal in kind, text and ambiguity; sources are not compared.
    fn eq(&self, other: &Error) -> bool {
        self.kind() == other.kind()
            && self.0.message == other.0.message
            && self.is_ambiguous() == other.is_ambiguous()
    }
}

impl Eq for Error {}

impl core::hash::Hash for Error {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.kind().hash(state);
        self.0.message.hash(state);
        self.is_ambiguous().hash(state);
    }
}
