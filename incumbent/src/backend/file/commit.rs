//! The compare-and-swap of a record, under the election's lock file.
//!
//! The lock is `flock`, never a POSIX lock, which any close of the file would drop. It excludes as long as everyone locks
//! the same file, so a commit counts only if the path named the locked file before *and after* the new record was put
//! into its place: whoever locks a file that took its place later reads what was put there.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use incumbent_core::record::{RecordKey, TokenRule};
use incumbent_core::{ElectionName, Error, ErrorKind, Result, Stored};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::failure::failure;
use super::format;
use crate::clock;

/// What is to be written, and in place of what.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) key: RecordKey,
    pub(super) expected: Option<Stored>,
    pub(super) token: TokenRule,
    pub(super) body: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum Outcome {
    /// It is written: the new version, the new token.
    Done { version: u64, token: u64 },
    /// Something else stands there; nothing was written.
    Conflict,
    /// Another is writing, or the lock file was replaced; nothing was written.
    Busy,
}

impl Commit {
    /// Tries once; never waits for the lock. Writes nothing once nobody waits for the outcome any more.
    ///
    /// # Errors
    /// [ambiguous](Error::is_ambiguous) if the record may have been written.
    pub(super) fn run(&self, dir: &Path, cancelled: &AtomicBool) -> Result<Outcome> {
        let path = format::record_path(dir, &self.key);
        let Some(lock) = Lock::try_take(dir, &self.key.election)? else { return Ok(Outcome::Busy) };
        let there = format::read(&path, &self.key.election)?;
        // The body too: an editor does not raise the version.
        if there != self.expected {
            return Ok(Outcome::Conflict);
        }
        let (version, token) = self.next(there.as_ref())?;
        let bytes = format::encode(&self.key.election, version, token, &self.body)?;
        let new = format::new_path(dir, &self.key.election, lock.inode());
        let written = write(&new, &bytes).and_then(|file| {
            // A note must not be lost to a write that nobody confirmed. For the election's own record one flush for
            // both is enough: what a power cut may leave half written belongs to processes that it killed.
            if self.key.note.is_some() {
                file.sync_all()?;
            }
            Ok(file)
        });
        let given_up = cancelled.load(Ordering::Relaxed) || !lock.is_in_place()?;
        let file = match written {
            Ok(file) if !given_up => file,
            other => {
                let _ = fs::remove_file(&new);
                return other.map(|_| Outcome::Busy).map_err(|error| failure("write", &new, error));
            }
        };
        fs::rename(&new, &path).map_err(|error| failure("replace", &path, error))?;
        let ambiguous = |error: Error| error.ambiguous(true);
        if !lock.is_in_place().map_err(ambiguous)? {
            return Err(ambiguous(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} was replaced during a commit",
                    format::lock_path(dir, &self.key.election).display()
                ),
            )));
        }
        flush(&file, dir).map_err(|error| ambiguous(failure("flush", &path, error)))?;
        Ok(Outcome::Done { version, token })
    }

    fn next(&self, there: Option<&Stored>) -> Result<(u64, u64)> {
        let old = there.map_or(0, |stored| stored.token);
        let token = match self.token {
            TokenRule::Keep => old,
            TokenRule::Raise => old.saturating_add(1).max(clock::unix_us().unwrap_or(0)),
            TokenRule::Set(token) => token.0,
        };
        // A record that was removed and made again must not meet a version of its earlier life. 53 bits: every reader
        // of JSON keeps them exactly.
        let version = match there {
            Some(stored) if stored.version < 1 << 53 => stored.version + 1,
            _ => format::random()? >> 11,
        };
        Ok((version, token))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Makes the file and its name durable, at the same time: on a journalling file system both wait for one commit.
fn flush(file: &File, dir: &Path) -> io::Result<()> {
    let folder = File::open(dir)?;
    thread::scope(|scope| {
        let name = scope.spawn(move || folder.sync_all());
        file.sync_all()?;
        name.join().unwrap_or_else(|_| Err(io::Error::other("the flush panicked")))
    })
}

/// The election's lock, held.
struct Lock<'a> {
    file: File,
    metadata: Metadata,
    dir: &'a Path,
    election: &'a ElectionName,
}

impl<'a> Lock<'a> {
    fn try_take(dir: &'a Path, election: &'a ElectionName) -> Result<Option<Lock<'a>>> {
        let path = format::lock_path(dir, election);
        let failed = |error: io::Error| failure("lock", &path, error);
        // Read-only, so that closing it is no news to those who watch the directory.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        }
        let metadata = file.metadata().map_err(failed)?;
        let lock = Lock { file, metadata, dir, election };
        Ok(lock.is_in_place()?.then_some(lock))
    }

    fn inode(&self) -> u64 {
        self.metadata.ino()
    }

    /// Whether everyone else who locks meets this very file.
    fn is_in_place(&self) -> Result<bool> {
        let path = format::lock_path(self.dir, self.election);
        match fs::symlink_metadata(&path) {
            Ok(there) => Ok(there.dev() == self.metadata.dev() && there.ino() == self.metadata.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failure("examine", &path, error)),
        }
    }
}

impl Drop for Lock<'_> {
    /// Not merely closed: a process that was forked meanwhile shares the lock until it executes something.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
