//! The checkpoint: a small value that one leader leaves for the next.

use std::sync::Arc;

use incumbent_core::checkpoint::{Access, CheckpointValue, access};
use incumbent_core::{Backend, ElectionName, Error, ErrorKind, FencingToken, Note, Result, Stored, Swapped};

use crate::leadership::Leadership;
use crate::thread::Handle;

pub use incumbent_core::checkpoint::CHECKPOINT_MAX;

/// Attempts against others that write the same note.
const TRIES: usize = 8;

/// The value that one leader leaves for the next: at most [`CHECKPOINT_MAX`] bytes, kept by the same store as the
/// election and fenced by its token. Whoever reads it in a term first shuts out late writes of earlier terms.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    election: ElectionName,
    handle: Handle,
    term: Option<Leadership>,
}

impl Checkpoint {
    pub(crate) fn of_term(term: Leadership, handle: Handle) -> Checkpoint {
        Checkpoint { election: term.election().clone(), handle, term: Some(term) }
    }

    pub(crate) fn of_election(election: ElectionName, handle: Handle) -> Checkpoint {
        Checkpoint { election, handle, term: None }
    }

    /// The value; `None` if no leader has left one. From a [`Leadership`] it is safe to continue from: no earlier leader
    /// can change it any more. From an [`Election`](crate::Election) it is a report.
    ///
    /// Dropping the future is safe.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] or [`ErrorKind::NotLeader`] if the term is over, [`ErrorKind::Corrupt`], and those of the store.
    pub async fn get(&self) -> Result<Option<Vec<u8>>> {
        let token = self.term.as_ref().map(token_of).transpose()?;
        let election = self.election.clone();
        let value = self
            .handle
            .call(move |backend| async move {
                match token {
                    Some(token) => Ok(raised(&*backend, &election, token).await?.1),
                    None => read(&*backend, &election).await.map(|(_, value)| value),
                }
            })
            .await?;
        if let Some(term) = &self.term {
            term.check()?;
        }
        Ok(value.user)
    }

    /// [`get`](Checkpoint::get) for a process that was handed the token of a term: a job that `incumbent run` started.
    /// Late writes of earlier terms are shut out first, as from a [`Leadership`].
    ///
    /// # Errors
    /// As [`get`](Checkpoint::get), but whether the term still is good is not known here.
    pub async fn get_under(&self, token: FencingToken) -> Result<Option<Vec<u8>>> {
        let election = self.election.clone();
        let call = move |backend: Arc<dyn Backend>| async move {
            raised(&*backend, &election, token).await.map(|(_, value)| value.user)
        };
        self.handle.call(call).await
    }

    /// Replaces the value, under the token of the term.
    ///
    /// If the future is dropped, or fails with an ambiguous error, the value may or may not be replaced.
    ///
    /// # Errors
    /// As [`get`](Checkpoint::get); [`ErrorKind::InvalidConfig`] if the value is too long.
    pub async fn put(&self, value: &[u8]) -> Result<()> {
        let Some(term) = &self.term else {
            return Err(Error::new(ErrorKind::NotLeader, "a checkpoint can be written in a term only"));
        };
        term.check()?;
        self.put_under(token_of(term)?, value).await
    }

    /// [`put`](Checkpoint::put) for a process that was handed the token of a term: a job that `incumbent run` started.
    ///
    /// # Errors
    /// As [`put`](Checkpoint::put).
    pub async fn put_under(&self, token: FencingToken, value: &[u8]) -> Result<()> {
        let (election, user) = (self.election.clone(), value.to_vec());
        let change = move |backend: Arc<dyn Backend>| async move {
            for _ in 0..TRIES {
                let (stored, mut value) = raised(&*backend, &election, token).await?;
                value.user = Some(user.clone());
                if swap(&*backend, &election, stored.as_ref(), token, &value).await? {
                    return Ok(());
                }
            }
            Err(busy())
        };
        self.handle.call(change).await
    }
}

fn token_of(term: &Leadership) -> Result<FencingToken> {
    term.check()?;
    term.token().ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "this backend has no fencing tokens, so it cannot keep a checkpoint safe",
        )
    })
}

async fn read(backend: &dyn Backend, election: &ElectionName) -> Result<(Option<Stored>, CheckpointValue)> {
    let stored = backend.read_note(election, Note::Checkpoint).await?;
    let value = stored.as_ref().map_or(Ok(CheckpointValue::default()), CheckpointValue::decode)?;
    Ok((stored, value))
}

/// What is stored, once it carries `token`.
async fn raised(
    backend: &dyn Backend,
    election: &ElectionName,
    token: FencingToken,
) -> Result<(Option<Stored>, CheckpointValue)> {
    for _ in 0..TRIES {
        let (stored, value) = read(backend, election).await?;
        match access(stored.as_ref(), token)? {
            Access::Open => return Ok((stored, value)),
            Access::Raise => {
                swap(backend, election, stored.as_ref(), token, &value).await?;
            }
        }
    }
    Err(busy())
}

async fn swap(
    backend: &dyn Backend,
    election: &ElectionName,
    expected: Option<&Stored>,
    token: FencingToken,
    value: &CheckpointValue,
) -> Result<bool> {
    let swapped = backend.swap_note(election, Note::Checkpoint, expected, token, value.encode()?).await?;
    Ok(matches!(swapped, Swapped::Done { .. }))
}

fn busy() -> Error {
    Error::new(ErrorKind::Unavailable, "the checkpoint is being written by others; try again")
}
