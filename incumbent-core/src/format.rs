//! Stored formats carry a version: a newer one is refused unchanged, and unknown fields of a known one are no offence,
//! so that two releases can run side by side.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The JSON of `value`, one of this crate's own formats.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings, numbers and lists of them can always be written")
}

/// Refuses what a newer release wrote, however different the rest of it may look.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with what to do.
pub(crate) fn refuse_newer(json: &[u8], known: u32, what: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    match serde_json::from_slice(json) {
        Ok(Version { v }) if v > known => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{what} has format {v}, newer than {known}, which this release understands; update this program"
            ),
        )),
        _ => Ok(()),
    }
}
