//! The checkpoint: a small value that a leader leaves for its successor, fenced like any resource.
//!
//! It is a record of its own with a token beside it. A leader raises that token to its own *before it first reads the
//! value in a term*, so that no late write of a predecessor lands afterwards.

use serde::{Deserialize, Serialize};

use crate::backend::Stored;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{encode, refuse_newer};
use crate::ids::FencingToken;

/// The longest value of one part, in bytes.
pub const CHECKPOINT_MAX: usize = 64 * 1024;

const FORMAT: u32 = 1;

/// A checkpoint's value: the user's part and the scheduler's.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CheckpointValue {
    /// What the user's leader wrote.
    pub user: Option<Vec<u8>>,
    /// What the scheduler wrote.
    pub cron: Option<Vec<u8>>,
}

impl core::fmt::Debug for CheckpointValue {
    // The content is the user's and may hold a secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CheckpointValue")
            .field("user_bytes", &self.user.as_ref().map(Vec::len))
            .field("cron_bytes", &self.cron.as_ref().map(Vec::len))
            .finish()
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    v: u32,
    user: Option<usize>,
    cron: Option<usize>,
}

impl CheckpointValue {
    /// The bytes to store: one line of JSON with the lengths, then the parts as they are.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if a part is longer than [`CHECKPOINT_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let parts = [&self.user, &self.cron];
        if let Some(part) = parts.into_iter().flatten().find(|part| part.len() > CHECKPOINT_MAX) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("a checkpoint of {} bytes is longer than {CHECKPOINT_MAX}", part.len()),
            ));
        }
        let head = Head {
            v: FORMAT,
            user: self.user.as_ref().map(Vec::len),
            cron: self.cron.as_ref().map(Vec::len),
        };
        let mut bytes = encode(&head);
        bytes.push(b'\n');
        for part in parts.into_iter().flatten() {
            bytes.extend_from_slice(part);
        }
        Ok(bytes)
    }

    /// The value in a stored note.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it cannot be understood or a newer release wrote it.
    pub fn decode(stored: &Stored) -> Result<CheckpointValue> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "the stored checkpoint cannot be read");
        let line = stored.body.iter().position(|byte| *byte == b'\n').ok_or_else(corrupt)?;
        let (head, mut rest) = (&stored.body[..line], &stored.body[line + 1..]);
        refuse_newer(head, FORMAT, "the stored checkpoint")?;
        let head: Head = serde_json::from_slice(head).map_err(|error| corrupt().with_source(error))?;
        let mut part = |length: Option<usize>| -> Result<Option<Vec<u8>>> {
            let Some(length) = length else { return Ok(None) };
            let (part, more) = rest.split_at_checked(length).ok_or_else(corrupt)?;
            rest = more;
            Ok(Some(part.to_vec()))
        };
        Ok(CheckpointValue { user: part(head.user)?, cron: part(head.cron)? })
    }
}

/// What the holder of `token` has to do before it may read or write what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Nothing: the record carries its token.
    Open,
    /// Swap the record for the same value under its token.
    Raise,
}

/// Judges access to a checkpoint under `token`.
///
/// # Errors
/// [`ErrorKind::Fenced`] if a later term has been here.
pub fn access(stored: Option<&Stored>, token: FencingToken) -> Result<Access> {
    match stored.map(|stored| stored.token) {
        Some(there) if there > token.0 => Err(Error::new(
            ErrorKind::Fenced,
            format!("the checkpoint belongs to a later term: its token is {there}, this one's is {token}"),
        )),
        Some(there) if there == token.0 => Ok(Access::Open),
        _ => Ok(Access::Raise),
    }
}
