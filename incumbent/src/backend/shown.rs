//! What a connection has shown of each election: it never shows anything older as if nothing had happened (R9).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use incumbent_core::{ElectionName, Error, ErrorKind, FencingToken, Result};

/// The highest token of each election that was looked at.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<BTreeMap<ElectionName, FencingToken>>);

impl Shown {
    /// Lets `token` pass unless a higher one was shown before.
    pub(super) fn pass(&self, election: &ElectionName, token: FencingToken) -> Result<()> {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let highest = shown.entry(election.clone()).or_insert(token);
        if token < *highest {
            return Err(Error::new(
                ErrorKind::StoreRegressed,
                format!(
                    "the store went back: it shows token {token} of {election} after {highest}; fences are all that protects now"
                ),
            ));
        }
        *highest = token;
        Ok(())
    }
}
