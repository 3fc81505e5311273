//! The compare-and-swap of a record, under two locks: the election's lock file, and the record itself.
//!
//! Either would do if nobody ever touched the files by hand. The lock file alone excludes nobody while someone replaces
//! it; the record alone does not while someone deletes it. Both are `flock`, never a POSIX lock, which any close of the
//! file would drop, and count only while the path still names the locked file.
//!
//! What takes long, writing and flushing, is done before and after: a process that is frozen while it holds the locks stops
//! the election, so it holds them for one rename.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use incumbent_core::record::{RecordKey, TokenRule};
use incumbent_core::{Result, Stored};
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
    /// Another is writing; nothing was written.
    Busy,
}

impl Commit {
    /// Tries once; never waits for a lock. Writes nothing once nobody waits for the outcome any more.
    ///
    /// # Errors
    /// [ambiguous](incumbent_core::Error::is_ambiguous) if the record was written and may not last.
    pub(super) fn run(&self, dir: &Path, cancelled: &AtomicBool) -> Result<Outcome> {
        // A look ahead: of many who want the same, all but one write nothing.
        if let Err(why_not) = self.lock(dir)? {
            return Ok(why_not);
        }
        let (version, token) = self.next()?;
        let bytes = format::encode(&self.key.election, version, token, &self.body)?;
        let mut new = NewFile::write(format::new_path(dir, &self.key.election)?, &bytes)?;
        // A note must not be lost to a write that nobody confirmed. For the election's own record one flush afterwards
        // is enough: what a power cut may leave half written belongs to processes that it killed.
        if self.key.note.is_some() {
            new.file.sync_all().map_err(|error| failure("flush", &new.path, error))?;
        }
        let locks = match self.lock(dir)? {
            Ok(_) if cancelled.load(Ordering::Relaxed) => return Ok(Outcome::Busy),
            Ok(locks) => locks,
            Err(why_not) => return Ok(why_not),
        };
        let path = format::record_path(dir, &self.key);
        if !new.place(&path, self.expected.is_some())? {
            return Ok(Outcome::Busy);
        }
        // Whoever builds on this record before it is durable dies in the same power cut.
        drop(locks);
        flush(&new.file, dir).map_err(|error| failure("flush", &path, error).ambiguous(true))?;
        Ok(Outcome::Done { version, token })
    }

    /// Locks what stands there, if it is what is expected.
    fn lock(&self, dir: &Path) -> Result<Result<(Lock, Option<Lock>), Outcome>> {
        // Read-only, so that closing it is no news to those who watch the directory.
        let path = format::lock_path(dir, &self.key.election);
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| failure("lock", &path, error))?);
        let Some(election) = Lock::try_take(file, &path)? else { return Ok(Err(Outcome::Busy)) };
        let path = format::record_path(dir, &self.key);
        let record = match format::open(&path) {
            Ok(file) => match Lock::try_take(file, &path)? {
                Some(lock) => Some(lock),
                None => return Ok(Err(Outcome::Busy)),
            },
            Err(Errno::NOENT) => None,
            Err(error) => return Err(failure("lock", &path, error)),
        };
        let there = record.as_ref().map(|lock| format::read_file(&lock.0, &path, &self.key.election));
        // The body too: an editor does not raise the version.
        if there.transpose()? == self.expected {
            Ok(Ok((election, record)))
        } else {
            Ok(Err(Outcome::Conflict))
        }
    }

    fn next(&self) -> Result<(u64, u64)> {
        let old = self.expected.as_ref();
        let token = old.map_or(0, |stored| stored.token);
        let token = self.token.apply(token, clock::unix_us().unwrap_or(0))?;
        // A record that was removed and made again must not meet a version of its earlier life. 53 bits: every reader
        // of JSON keeps them exactly.
        let version = match old {
            Some(stored) if stored.version < 1 << 53 => stored.version + 1,
            _ => format::random()? >> 11,
        };
        Ok((version, token))
    }
}

/// A lock on a file that its path names.
struct Lock(File);

impl Lock {
    /// `None` if another holds it, or the path does not name the file any more.
    fn try_take(file: File, path: &Path) -> Result<Option<Lock>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failure("lock", path, error)),
        }
        let lock = Lock(file);
        let named = lock.0.metadata().and_then(|locked| match fs::symlink_metadata(path) {
            Ok(there) => Ok(there.dev() == locked.dev() && there.ino() == locked.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        });
        match named {
            Ok(named) => Ok(named.then_some(lock)),
            Err(error) => Err(failure("examine", path, error)),
        }
    }
}

impl Drop for Lock {
    /// Not merely closed: a process that was forked meanwhile shares the lock until it executes something.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A file that is to take a record's place. Locked while it does not, so that a sweeper can tell it from what a dead process
/// has left; removed if it never does.
struct NewFile {
    file: File,
    path: PathBuf,
    placed: bool,
}

impl NewFile {
    fn write(path: PathBuf, bytes: &[u8]) -> Result<NewFile> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(error) => return Err(failure("write", &path, error)),
        };
        let mut new = NewFile { file, path, placed: false };
        // If a sweeper was faster, the file is gone when it is needed, and the commit is tried again.
        let _ = flock(&new.file, FlockOperation::NonBlockingLockExclusive);
        match new.file.write_all(bytes) {
            Ok(()) => Ok(new),
            Err(error) => Err(failure("write", &new.path, error)),
        }
    }

    /// Puts it where the record is or, if there is none, is not. False if somebody has made or removed one by hand.
    fn place(&mut self, path: &Path, replace: bool) -> Result<bool> {
        // From now on it is the record, which others lock.
        flock(&self.file, FlockOperation::Unlock).map_err(|error| failure("unlock", &self.path, error))?;
        let placed = if replace { fs::rename(&self.path, path) } else { fs::hard_link(&self.path, path) };
        self.placed = replace && placed.is_ok();
        match placed {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                Ok(false)
            }
            Err(error) => Err(failure("replace", path, error)),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the file and its name durable, at the same time: on a journalling file system both wait for one commit.
fn flush(file: &File, dir: &Path) -> io::Result<()> {
    let folder = File::open(dir)?;
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, || folder.sync_all()) {
        Ok(name) => {
            file.sync_all()?;
            name.join().unwrap_or_else(|_| Err(io::Error::other("the flush panicked")))
        }
        // There is no thread to be had: one after the other.
        Err(_) => file.sync_all().and_then(|()| folder.sync_all()),
    })
}
