//! A request to the leader to hand over, as it stands in the note [`Handover`](crate::Note::Handover).

use serde::{Deserialize, Serialize};

use crate::backend::Stored;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{encode, refuse_newer};
use crate::ids::{CandidateId, FencingToken};

/// The version of the stored format.
const FORMAT: u32 = 1;

/// Asks the leader of one term to go. Under any other token than the one it names it is ignored.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct HandoverRequest {
    /// The term that is addressed.
    pub token: FencingToken,
    /// Who shall lead next; `None`: whoever is next.
    pub to: Option<CandidateId>,
}

#[derive(Serialize, Deserialize)]
struct Body {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<CandidateId>,
    /// False once it was withdrawn.
    open: bool,
}

impl HandoverRequest {
    /// The bytes of the note; its token stands beside them.
    pub fn encode(&self) -> Vec<u8> {
        encode(&Body { v: FORMAT, to: self.to.clone(), open: true })
    }

    /// The bytes of a note that asks for nothing.
    pub fn withdrawn() -> Vec<u8> {
        encode(&Body { v: FORMAT, to: None, open: false })
    }

    /// The request in a stored note; `None` if it asks for nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it cannot be understood or a newer release wrote it.
    pub fn decode(stored: &Stored) -> Result<Option<HandoverRequest>> {
        refuse_newer(&stored.body, FORMAT, "the stored hand-over request")?;
        let body: Body = serde_json::from_slice(&stored.body).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "the stored hand-over request cannot be read").with_source(error)
        })?;
        Ok(body.open.then_some(HandoverRequest { token: FencingToken(stored.token), to: body.to }))
    }
}
