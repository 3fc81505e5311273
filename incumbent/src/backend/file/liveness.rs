//! The lock that a campaign holds as long as its process lives, and the test whether it still does.
//!
//! Its file is named by the campaign's nonce, so that no file name is ever used for two campaigns. A holder locks it
//! exclusively; whoever tests it locks it shared, so that two testers do not take each other for the holder, and opens it
//! for reading, so that closing it is no news. The kernel drops the lock when the last process that shares it is gone.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use incumbent_core::record::{Holder, Record, RecordKey, Seen};
use incumbent_core::{Claim, Contender, ElectionName, Nonce, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use serde::{Deserialize, Serialize};

use super::failure::failure;
use super::format::{self, Named};

const FORMAT: u32 = 1;
/// How often a new file is tried to be locked: someone who tests it holds it for an instant.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// The lock of one campaign. Dropping it removes the file; the lock itself lives on as long as someone shares it.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    nonce: Nonce,
    lock: Arc<File>,
    /// Where the file says whether the campaign may lead.
    may_lead_at: u64,
    description: Option<String>,
}

impl Held {
    /// Creates and locks the file of `claim`. `boot` names this boot of this machine.
    pub(super) fn take(dir: &Path, claim: &Claim, boot: Option<&str>) -> Result<Held> {
        let path = format::alive_path(dir, &claim.election, claim.nonce);
        let (lock, may_lead_at) = create(&path, claim).map_err(|error| failure("lock", &path, error))?;
        let metadata = lock.metadata().map_err(|error| failure("examine", &path, error))?;
        let lock = Arc::new(lock);
        shared().insert(claim.nonce, Arc::downgrade(&lock));
        let description = boot.map(|boot| describe(&metadata, boot));
        Ok(Held { path, nonce: claim.nonce, lock, may_lead_at, description })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Says that from now on the campaign may lead. To be called before it is written into the record.
    pub(super) fn may_lead(&self) -> io::Result<()> {
        self.lock.write_all_at(b"1", self.may_lead_at)
    }

    /// Says that the campaign is over. The lock may be held for longer, by whoever keeps the handle of its term.
    pub(super) fn gave_up(&self) {
        // If it fails, others are only too careful.
        let _ = self.lock.write_all_at(b"0", self.may_lead_at);
    }

    /// What others compare before they believe that it is this lock which is free.
    pub(super) fn description(&self) -> Option<String> {
        self.description.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        shared().remove(&self.nonce);
        let _ = fs::remove_file(&self.path);
    }
}

/// The locks of this process, for the processes that it starts.
fn shared() -> MutexGuard<'static, BTreeMap<Nonce, Weak<File>>> {
    static SHARED: OnceLock<Mutex<BTreeMap<Nonce, Weak<File>>>> = OnceLock::new();
    SHARED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock that the campaign of `nonce` holds, if it is one of this process and holds one.
pub(crate) fn lock_of(nonce: Nonce) -> Option<Arc<File>> {
    shared().get(&nonce)?.upgrade()
}

/// What the file says of its campaign, for whoever lists the candidates.
#[derive(Serialize, Deserialize)]
struct Content {
    v: u32,
    #[serde(flatten)]
    contender: Contender,
    /// How long a grant of it lasts. Releases that did not write it are taken for as patient as whoever reads it.
    #[serde(default)]
    ttl_ms: u64,
    /// The directory, which may be removed or renamed later. Releases that did not write it may be in any.
    #[serde(default)]
    dir: String,
    /// 1 from before it is first elected until it has given up, else 0: one byte, which is replaced in place. Releases that did not write it may lead.
    #[serde(default = "yes")]
    may_lead: u8,
}

fn yes() -> u8 {
    1
}

/// The locked file, and where in it stands whether the campaign may lead.
fn create(path: &Path, claim: &Claim) -> io::Result<(File, u64)> {
    let contender =
        Contender { id: claim.id.to_string(), nonce: Some(claim.nonce), address: claim.address.clone() };
    // Rounded up: who waits for it must not wait less.
    let ttl_ms = claim.ttl.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX);
    let dir = name_of(path.parent().unwrap_or(path));
    let content = serde_json::to_vec(&Content { v: FORMAT, contender, ttl_ms, dir, may_lead: 0 })?;
    // The last field, before the brace.
    let may_lead_at = content.len() as u64 - 2;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..TRIES {
        let mut file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
        let written = lock(&file).and_then(|()| {
            file.write_all(&content)?;
            file.write_all(b"\n")?;
            // Until it was locked, a sweeper could take it for a dead one's.
            Ok(file.metadata()?.nlink() > 0)
        });
        match written {
            Ok(true) => return Ok((file, may_lead_at)),
            Ok(false) => {}
            Err(error) => {
                let _ = fs::remove_file(path);
                return Err(error);
            }
        }
    }
    Err(io::Error::other("it is removed again and again"))
}

fn lock(file: &File) -> io::Result<()> {
    for _ in 0..TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Err(io::Error::other("another process keeps it locked"))
}

/// What is compared with the same of the holder's record: device, inode, boot.
fn describe(metadata: &Metadata, boot: &str) -> String {
    format!("{boot} {} {}", metadata.dev(), metadata.ino())
}

/// Opens the file of a campaign and locks it shared, which succeeds only if nobody holds it any more.
fn probe(path: &Path) -> io::Result<(File, bool)> {
    let file = format::open(path)?;
    let free = is_free(&file)?;
    Ok((file, free))
}

fn is_free(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// True only if the lock that `holder` describes is there and free.
pub(super) fn is_gone(dir: &Path, election: &ElectionName, holder: &Holder, boot: Option<&str>) -> bool {
    let (Some(described), Some(boot)) = (&holder.liveness, boot) else { return false };
    let Ok((file, free)) = probe(&format::alive_path(dir, election, holder.nonce)) else { return false };
    free && file.metadata().is_ok_and(|metadata| describe(&metadata, boot) == *described)
}

/// The campaigns of one election that hold their lock. What the dead left behind is swept.
pub(super) fn candidates(dir: &Path, election: &ElectionName) -> Result<Vec<Contender>> {
    let mut candidates = Vec::new();
    if !dir.exists() {
        return Ok(candidates);
    }
    for path in files(dir)? {
        if let Some(Named::Alive(of, nonce)) = named(&path)
            && of == election.as_str()
            && !sweep(dir, election, nonce, &path)
        {
            candidates.extend(content(&path).map(|content| content.contender));
        }
    }
    candidates.sort_by(|a: &Contender, b| (&a.id, a.nonce).cmp(&(&b.id, b.nonce)));
    Ok(candidates)
}

/// The longest ttl of the campaigns of this election other than that of `own` that live and may have been elected, whatever the
/// record says. `None` if there is none.
pub(super) fn somebody_else_may_lead(
    dir: &Path,
    election: &ElectionName,
    own: Nonce,
) -> Result<Option<Duration>> {
    let mut longest = None;
    for path in files(dir)? {
        if let Some(Named::Alive(of, nonce)) = named(&path)
            && of == election.as_str()
            && nonce != own
        {
            longest = longest.max(leading(&path).map(|leading| leading.ttl));
        }
    }
    Ok(longest)
}

/// A campaign that lives and may have been elected.
#[derive(Debug, Default)]
pub(super) struct Leading {
    /// How long its grants last; zero if that is not known.
    pub(super) ttl: Duration,
    /// Its directory, as [`name_of`] has it.
    pub(super) dir: String,
}

/// The campaign whose file `path` is, or leads to, if it lives and may have been elected.
pub(super) fn leading(path: &Path) -> Option<Leading> {
    // A link of /proc, too.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if is_free(&file).unwrap_or(true) {
        return None;
    }
    match content_of(file) {
        Some(content) if content.may_lead == 0 => None,
        Some(content) => Some(Leading { ttl: Duration::from_millis(content.ttl_ms), dir: content.dir }),
        None => Some(Leading::default()),
    }
}

/// A directory as it stands in the files of its campaigns, whichever links lead to it.
pub(super) fn name_of(dir: &Path) -> String {
    fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned()).to_string_lossy().into_owned()
}

/// Removes what the dead of all elections left behind.
pub(super) fn sweep_all(dir: &Path) -> Result<()> {
    for path in files(dir)? {
        match named(&path) {
            Some(Named::Alive(election, nonce)) => {
                if let Ok(election) = ElectionName::new(election) {
                    sweep(dir, &election, nonce, &path);
                }
            }
            Some(Named::New) if matches!(probe(&path), Ok((_, true))) => {
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
    Ok(())
}

fn files(dir: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(dir).map_err(|error| failure("list", dir, error))?;
    Ok(entries.flatten().map(|entry| entry.path()))
}

fn named(path: &Path) -> Option<Named<'_>> {
    path.file_name()?.to_str().and_then(Named::parse)
}

/// Whether nobody holds the lock. Then the file is removed, unless the record still names it: it is what lets the next
/// one in at once.
fn sweep(dir: &Path, election: &ElectionName, nonce: Nonce, path: &Path) -> bool {
    let Ok((_locked, true)) = probe(path) else { return false };
    let key = RecordKey { election: election.clone(), note: None };
    let record = format::read(&format::record_path(dir, &key), election);
    let Ok(seen) = record.and_then(Seen::new) else { return true };
    if seen.holder().is_none_or(|holder| holder.nonce != nonce) {
        let _ = fs::remove_file(path);
    }
    true
}

/// Removes the file of a campaign that a record named until it was overwritten with `body` gone.
pub(super) fn sweep_predecessor(dir: &Path, election: &ElectionName, body: &[u8]) {
    if let Some(holder) = holder(body) {
        sweep(dir, election, holder.nonce, &format::alive_path(dir, election, holder.nonce));
    }
}

/// Who holds the record with this body.
pub(super) fn holder(body: &[u8]) -> Option<Holder> {
    serde_json::from_slice::<Record>(body).ok()?.holder
}

fn content(path: &Path) -> Option<Content> {
    content_of(format::open(path).ok()?)
}

fn content_of(file: File) -> Option<Content> {
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Names this boot of this machine: after the next one every lock is free, and means nothing.
#[cfg(target_os = "linux")]
pub(super) fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(target_os = "macos")]
pub(super) fn boot_id() -> Option<String> {
    let sysctl = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output();
    let id = String::from_utf8(sysctl.ok()?.stdout).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}
