//! What the record stores that speak SQL share: requests that many elections put into one statement, lanes of such statements,
//! and the search for the host that may write.

pub(crate) mod hints;
pub(crate) mod hosts;
pub(crate) mod lane;
pub(crate) mod store;

use incumbent_core::record::{RecordKey, TokenRule};
use incumbent_core::{Note, Result, Stored, Swapped};

use super::server;
use super::tls::Tls;
use crate::url::{StoreUrl, bad};

/// One request of one election.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Read the record.
    Read(RecordKey),
    /// Write it if there is none.
    Create { key: RecordKey, token: TokenRule, body: Vec<u8> },
    /// Write it if it still has this version, this token and, if one is named, this body; without a new body the old one stays.
    Swap {
        key: RecordKey,
        version: u64,
        token_was: u64,
        body_was: Option<Vec<u8>>,
        token: TokenRule,
        body: Option<Vec<u8>>,
    },
}

impl Ask {
    pub(crate) fn key(&self) -> &RecordKey {
        match self {
            Ask::Read(key) | Ask::Create { key, .. } | Ask::Swap { key, .. } => key,
        }
    }

    /// True if it may change something.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Ask::Read(_))
    }
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Found(Option<Stored>),
    Swapped(Swapped),
    /// Somebody else has the row locked; nothing was written.
    Busy,
}

/// How a key's note is named in the table.
pub(crate) fn note_name(key: &RecordKey) -> &'static str {
    match key.note {
        None => "",
        Some(Note::Checkpoint) => "checkpoint",
        Some(Note::Handover) => "handover",
    }
}

/// As `tls=` says, or the parameter that the store's own clients know. Only some of that one's values leave no doubt; wherever the
/// connection is encrypted, the certificate is verified in full.
pub(crate) fn tls(url: &StoreUrl, own: &str, off: &str, on: &[&str]) -> Result<Option<Tls>> {
    let Some(mode) = url.parameter(own) else { return server::tls(url) };
    if url.parameter("tls").is_some() {
        return Err(bad(format!("{own}= and tls= say the same; leave one out")));
    }
    match mode {
        mode if mode == off => Ok(None),
        mode if on.contains(&mode) => server::tls(url).map(|tls| Some(tls.unwrap_or_default())),
        _ => Err(bad(format!(
            "{own}={mode} leaves it open whether the connection is encrypted; use {} or {off}",
            on.last().unwrap_or(&"")
        ))),
    }
}
