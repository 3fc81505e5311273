//! What the record stores that speak SQL share: requests that many elections put into one statement, a lane of such statements,
//! and the search for the host that may write.

pub(crate) mod hosts;
pub(crate) mod lane;

use incumbent_core::record::{RecordKey, TokenRule};
use incumbent_core::{Note, Stored, Swapped};

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
