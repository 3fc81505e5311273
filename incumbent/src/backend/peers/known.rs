//! The other members, as they were met first: a member that comes with another state is another one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use incumbent_core::{CandidateId, Error, ErrorKind, Nonce, Result};

use super::disk::Disk;

/// The nonces of the members' states.
pub(super) struct Known {
    nonces: Mutex<BTreeMap<CandidateId, Nonce>>,
    /// `None`: nobody is remembered besides.
    disk: Option<Disk>,
}

impl Known {
    pub(super) fn new(nonces: BTreeMap<CandidateId, Nonce>, disk: Option<Disk>) -> Known {
        Known { nonces: Mutex::new(nonces), disk }
    }

    /// Remembers who is met for the first time, durably, unless it is only looked at.
    ///
    /// # Errors
    /// With what to do, if it is not the one that was met before.
    pub(super) async fn meet(&self, name: &CandidateId, nonce: Nonce, remember: bool) -> Result<()> {
        let known = self.lock().get(name).copied();
        let known = match (known, self.disk.as_ref().filter(|_| remember)) {
            (Some(known), _) => known,
            (None, None) => return Ok(()),
            (None, Some(disk)) => {
                let known = disk.know(name.clone(), nonce).await?;
                self.lock().insert(name.clone(), known);
                known
            }
        };
        if known == nonce {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "{name} has another state than when it was met first: two peers use this name, or its state was lost, and with it what {name} has promised; stop the one that does not belong there; whose state is lost comes back under another name, never with an older state: it may have promised more since"
            ),
        ))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CandidateId, Nonce>> {
        self.nonces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}
