//! Campaigns whose files were removed or moved away while they lived, as by `rm -rf` of the directory: nothing in there tells of them
//! any more, but their locks are still held, and on Linux `/proc` shows who has the files open.
//!
//! What cannot be seen is not found: processes of another user, unless this one is root's, and of another container; nor one that
//! reached the directory by another mount. Elsewhere than on Linux none is.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use incumbent_core::{ElectionName, Nonce, Result};

use super::liveness::{self, Leading};

/// A campaign that lives and may have been elected.
#[derive(Debug)]
struct Found {
    election: String,
    nonce: Nonce,
    leading: Leading,
}

/// What the latest look has found. To look takes some milliseconds, so who asks meanwhile shares the next one.
#[derive(Debug, Default)]
pub(super) struct Vanished {
    asked: AtomicU64,
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// How many had asked before it began.
    answers: u64,
    found: Vec<Found>,
}

impl Vanished {
    /// The longest ttl of the campaigns of this election, other than that of `own`, that live and may have been elected, wherever
    /// their files are now. `None` if there is none.
    pub(super) fn may_lead(
        &self,
        dir: &Path,
        election: &ElectionName,
        own: Nonce,
    ) -> Result<Option<Duration>> {
        let question = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.answers < question {
            let answers = self.asked.load(Ordering::SeqCst);
            *latest = Latest { answers, found: look()? };
        }
        let dir = liveness::name_of(dir);
        let of_election = latest.found.iter().filter(|one| {
            let in_dir = one.leading.dir.is_empty() || one.leading.dir == dir;
            one.election == election.as_str() && one.nonce != own && in_dir
        });
        Ok(of_election.map(|one| one.leading.ttl).max())
    }
}

/// All of this machine that can be seen.
#[cfg(target_os = "linux")]
fn look() -> Result<Vec<Found>> {
    use std::fs;

    use super::failure::failure;
    use super::format::Named;

    let proc = Path::new("/proc");
    let failed = |error| failure("look for processes in", proc, error);
    // Another /proc than that of this process's pid namespace shows other processes.
    fs::read_link(proc.join("self")).map_err(failed)?;
    let mut found = Vec::new();
    for process in fs::read_dir(proc).map_err(failed)?.flatten() {
        if !process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        // One that has ended meanwhile, or is somebody else's.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(file) = fs::read_link(descriptor.path()) else { continue };
            let Some(name) = file.file_name().and_then(|name| name.to_str()) else { continue };
            // As the link of a removed file ends.
            let name = name.strip_suffix(" (deleted)").unwrap_or(name);
            if let Some(Named::Alive(election, nonce)) = Named::parse(name)
                && let Some(leading) = liveness::leading(&descriptor.path())
            {
                found.push(Found { election: election.to_owned(), nonce, leading });
            }
        }
    }
    Ok(found)
}

/// Nothing shows them here.
#[cfg(not(target_os = "linux"))]
fn look() -> Result<Vec<Found>> {
    Ok(Vec::new())
}
