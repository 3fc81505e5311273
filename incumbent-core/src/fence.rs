//! The check at the protected resource: it remembers the highest token and refuses an older one.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, FencingToken};

/// What a fence stores beside the resource: the highest token it has seen, and who issued it.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct HighWater {
    /// Who issued the token.
    pub authority: Authority,
    /// The highest token so far.
    pub token: FencingToken,
}

/// What a fence does with a token that it admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Admission {
    /// It is the highest token so far: nothing to store.
    Current,
    /// It is a higher one: store it, durably, before the write that it came with.
    Raise,
}

impl HighWater {
    /// Judges `token` of `authority` against what is stored (`None`: a fence that never saw a token).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: the token is older than one seen, or another authority issued it. Tokens of two
    /// authorities cannot be compared; an operator who moves a resource from one to the other says so.
    pub fn admit(
        stored: Option<&HighWater>,
        authority: &Authority,
        token: FencingToken,
    ) -> Result<Admission> {
        let Some(stored) = stored else { return Ok(Admission::Raise) };
        if stored.authority != *authority {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "the fence knows tokens of authority {}, this one is of {authority}; if the election has moved there for good, an operator runs `incumbent fence adopt`",
                    stored.authority
                ),
            ));
        }
        match token.cmp(&stored.token) {
            core::cmp::Ordering::Less => Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "token {token} is older than {}, which this resource has seen: another leads",
                    stored.token
                ),
            )),
            core::cmp::Ordering::Equal => Ok(Admission::Current),
            core::cmp::Ordering::Greater => Ok(Admission::Raise),
        }
    }
}
