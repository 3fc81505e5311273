//! A fence on disk: a small file that holds the high-water mark, and a lock that is held for the whole of each write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use incumbent_core::time::exact;
use incumbent_core::{Admission, Authority, Error, ErrorKind, Fence, FencingToken, HighWater, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use crate::backend::file::filesystem;
use crate::clock;

const FORMAT: u32 = 1;
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(50);

/// A fence for files, and for whatever its users agree to touch only inside [`enter`](FileFence::enter).
///
/// Beside the file at its path it keeps `PATH.lock`, which must not be removed while the fence is in use. All calls block the
/// thread. Only on a local file system: the locks of others are not known to exclude.
///
/// ```
/// # fn write_report(leadership: &incumbent::Leadership) -> incumbent::Result<()> {
/// use incumbent::fence::file::FileFence;
///
/// let fence = FileFence::new("/srv/report.fence");
/// let mark = leadership.mark()?;
/// fence.raise(&mark)?; // once in a term, before anything is read
/// fence.write(&mark, "/srv/report.csv", b"...")?; // refused once a later leader has raised it
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileFence {
    path: PathBuf,
    patience: Duration,
}

impl FileFence {
    /// The fence whose mark lies at `path`. Touches nothing yet; a file that is absent is a fence that never saw a token.
    pub fn new(path: impl Into<PathBuf>) -> FileFence {
        FileFence { path: path.into(), patience: Duration::from_secs(5) }
    }

    /// How long to wait for another writer that is inside. Default 5 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> FileFence {
        self.patience = patience;
        self
    }

    /// Makes `mark` the highest, durably: when this returns, no write under an older one lands any more.
    ///
    /// # Errors
    /// As [`enter`](FileFence::enter).
    pub fn raise(&self, mark: &HighWater) -> Result<()> {
        self.enter(mark).map(drop)
    }

    /// Replaces the file at `path` under the fence: readers see the old bytes or the new ones, and a crash leaves one of them.
    ///
    /// # Errors
    /// As [`enter`](FileFence::enter) and [`Entered::replace`].
    pub fn write(&self, mark: &HighWater, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        self.enter(mark)?.replace(path, bytes)
    }

    /// Admits a writer and keeps everyone else out until what this returns is dropped. Whatever is written meanwhile is fenced:
    /// a process that freezes inside makes its successor wait, and one that dies lets go.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: an older token, or another authority. [`ErrorKind::Unavailable`]: another writer is inside, and has
    /// been for all of the [`patience`](FileFence::patience); check the term, then try again. [`ErrorKind::Corrupt`],
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::NotFound`]: the fence's file cannot be used. [`ErrorKind::InvalidConfig`]: its file
    /// system cannot be trusted.
    pub fn enter(&self, mark: &HighWater) -> Result<Entered> {
        let lock = self.lock()?;
        let mut fence = Fence::new(self.stored()?);
        if fence.admit(mark)? == Admission::Raise {
            self.store(mark)?;
        }
        Ok(Entered { _lock: lock })
    }

    /// The highest mark so far; `None` for a fence that never saw one.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file cannot be understood, or a newer release wrote it.
    pub fn stored(&self) -> Result<Option<HighWater>> {
        match read(&self.path) {
            Ok(bytes) => decode(&bytes)
                .map(Some)
                .map_err(|error| Error::new(error.kind(), format!("{}: {error}", self.path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &self.path, error)),
        }
    }

    /// Makes `mark` the highest whatever was there, and returns what was: an operator's act, when the election has moved to another
    /// authority for good. From then on tokens of the old authority are refused.
    ///
    /// # Errors
    /// As [`enter`](FileFence::enter), but never [`ErrorKind::Fenced`].
    pub fn adopt(&self, mark: &HighWater) -> Result<Option<HighWater>> {
        let _lock = self.lock()?;
        let before = self.stored()?;
        self.store(mark)?;
        Ok(before)
    }

    fn store(&self, mark: &HighWater) -> Result<()> {
        replace(&self.path, &encode(mark))
    }

    fn lock(&self) -> Result<File> {
        let folder = folder_of(&self.path);
        if let Err(name) = filesystem::check(folder).map_err(|error| failed("examine", folder, error))? {
            let message = format!(
                "{} is on a file system ({name}) whose locks are not known to exclude; keep the fence on a local one",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let path = with_suffix(&self.path, ".lock");
        let give_up = clock::now() + self.patience;
        let mut pause = POLL_MIN;
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(|error| failed("open", &path, error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Ok(file),
                // Someone removed the file between the two calls: what was locked is not what others lock.
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed("lock", &path, error.into())),
            }
            if clock::now() >= give_up {
                let message = format!(
                    "another process has been writing under {} for {} (it may be frozen); check the term, then try again",
                    self.path.display(),
                    exact(self.patience)
                );
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

/// A writer that was admitted. Nobody else is, and nobody raises the fence, until this is dropped.
#[derive(Debug)]
#[must_use = "the fence is open only as long as this lives"]
pub struct Entered {
    _lock: File,
}

impl Entered {
    /// Replaces the file at `path`: written beside it, flushed to the disk, then renamed over it. Keeps its permissions.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] (also: full, or not permitted), [`ErrorKind::NotFound`] (its folder), [`ErrorKind::Unavailable`].
    pub fn replace(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        replace(path.as_ref(), bytes)
    }
}

/// A pipe in its place keeps nobody waiting.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// One name per target is enough: whoever writes it holds the lock, and what a dead writer left is overwritten.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = with_suffix(path, ".incumbent-new");
    let write = || -> io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        if let Ok(old) = std::fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(folder_of(path))?.sync_all()
    };
    write().map_err(|error| failed("write", path, error))
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    authority: Authority,
    token: FencingToken,
}

fn encode(mark: &HighWater) -> Vec<u8> {
    let stored = Stored { v: FORMAT, authority: mark.authority.clone(), token: mark.token };
    let mut bytes = serde_json::to_vec(&stored).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn decode(bytes: &[u8]) -> Result<HighWater> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let corrupt = |error: serde_json::Error| {
        let message = "this is not a fence's mark; find out what wrote it, move it away, then run `incumbent fence adopt`";
        Error::new(ErrorKind::Corrupt, message).with_source(error)
    };
    let Version { v } = serde_json::from_slice(bytes).map_err(corrupt)?;
    if v > FORMAT {
        let message = format!("the fence has format {v}, newer than {FORMAT}; update this program");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let Stored { authority, token, .. } = serde_json::from_slice(bytes).map_err(corrupt)?;
    Ok(HighWater { authority, token })
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let kind = match error.kind() {
        NotFound => ErrorKind::NotFound,
        PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull => ErrorKind::ReadOnly,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot {what} {}: {error}", path.display())).with_source(error)
}
