//! `file:[PATH]`: elections among the processes of one machine, in a directory of small readable files. The default.
//!
//! Each election has a record (`billing.record`), a lock file under which it is replaced (`billing.lock`), notes beside
//! it (`billing.checkpoint`, `billing.handover`), and one file per campaign (`billing.NONCE.alive`) that is locked as long
//! as the campaign's process lives: when it is free, a standby need not wait for the lease to run out.
//!
//! A record that is not there tells nothing of who leads: somebody may have removed it, or the directory, under a leader that is frozen.
//! Whoever finds none looks for living locks, also of files that have no name any more.
//!
//! The directory is made by the first campaign. Whoever only looks makes nothing, so that a path with a typing error stays as
//! empty as it was.
//!
//! A hand-over note stays when it has been obeyed. It names one term and is ignored in every other, and the next request
//! overwrites it; to remove it would begin its versions anew, under a request that is being written at that moment.
//!
//! Every access to the disk runs on a thread that may block, so that a stalled disk stops no deadline. A call that was
//! dropped meanwhile may still take effect: it compares under the lock, like a request that arrives late.

mod changes;
mod commit;
mod failure;
pub(crate) mod filesystem;
mod format;
mod liveness;
mod place;
mod vanished;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{Holder, RecordKey, RecordStore, TokenRule};
use incumbent_core::time::exact;
use incumbent_core::{
    Authority, BoxFuture, BoxStream, Claim, Contender, ElectionName, Error, ErrorKind, Nonce, Result,
    Settings, Stored, Swapped,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::backend::record::RecordBackend;
use crate::backend::signals::Signals;
use crate::clock;
use crate::thread::Factory;
use crate::url::{StoreUrl, bad};

use commit::{Commit, Outcome};
use failure::failure;
use liveness::Held;
use vanished::Vanished;

pub(crate) use liveness::lock_of;
pub use place::default_state_dir;

pub(crate) const SCHEME: &str = "file";

/// Jobs on the disk at the same time. They do not wait for each other, only for the disk.
const JOBS: usize = 32;
/// The pauses between tries for the election's lock: a commit takes some milliseconds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

static SUMMARY: &str = "excludes only processes on this machine that use this directory; a process frozen inside a commit stops its election until it wakes or dies";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::SingleNode,
        expiry: Expiry::Challenger,
        token: TokenSource::Hybrid,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_millis(500),
        expiry_slack: Duration::ZERO,
        renew_spacing: Duration::ZERO,
        takeover_ttls: 1,
        takeover_extra: Duration::from_millis(250),
        handover: Handover::Pushed,
        survives: Survives { crash: true, power_loss: true, failover: false },
        lists_candidates: true,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

/// The directory that a `file:` URL names; `None` for any other URL.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if `url` cannot be understood.
pub fn state_dir(url: &str) -> Result<Option<PathBuf>> {
    let url = StoreUrl::parse(url)?;
    if url.scheme == SCHEME { dir_of(&url).map(Some) } else { Ok(None) }
}

fn dir_of(url: &StoreUrl) -> Result<PathBuf> {
    match url.path.as_str() {
        "" => default_state_dir(),
        path if path.starts_with('~') => {
            Err(bad(format!("{path:?}: the shell does not put your home there; write the path in full")))
        }
        path => std::path::absolute(path)
            .map_err(|error| bad(format!("{path:?} is no path: {error}")).with_source(error)),
    }
}

pub(crate) fn open(url: &StoreUrl, settings: &Settings) -> Result<Factory> {
    url.only(&[])?;
    if !url.hosts.is_empty() {
        return Err(bad("file: has no host; write file: or file:/PATH"));
    }
    let dir = dir_of(url)?;
    // Less than a call may take, so that the error tells what it waited for.
    let patience = settings.ttl / 8;
    Ok(Box::new(move || {
        let authority = place::examine(&dir).map_err(|error| error.with_backend(SCHEME))?;
        // The threads that may block are kept once there is one; a first that cannot be made would be a panic.
        thread::Builder::new().spawn(|| {}).map_err(|error| {
            let message =
                "no thread can be started; raise the limit of processes (ulimit -u, pids.max) or of memory";
            Error::new(ErrorKind::Unavailable, message).with_source(error).with_backend(SCHEME)
        })?;
        let signals = Arc::new(Signals::default());
        let mut news = JoinSet::new();
        news.spawn(changes::follow(dir.clone(), signals.clone()));
        let disk = Arc::new(Disk {
            dir,
            authority: Mutex::new(authority),
            boot: liveness::boot_id(),
            held: Mutex::default(),
            swept: AtomicBool::new(false),
            vanished: Vanished::default(),
        });
        let jobs = Arc::new(Semaphore::new(JOBS));
        Ok(Arc::new(RecordBackend::new(FileStore {
            disk,
            signals,
            _news: news,
            jobs,
            patience,
            guarantees: guarantees(),
        })))
    }))
}

#[derive(Debug)]
struct FileStore {
    disk: Arc<Disk>,
    signals: Arc<Signals>,
    /// What sends the signals; ends with the store.
    _news: JoinSet<()>,
    jobs: Arc<Semaphore>,
    patience: Duration,
    guarantees: Guarantees,
}

/// What the jobs share.
#[derive(Debug)]
struct Disk {
    dir: PathBuf,
    /// `None` until the directory is there.
    authority: Mutex<Option<Authority>>,
    boot: Option<String>,
    /// Locked while the disk may stall: only jobs lock it.
    held: Mutex<BTreeMap<Nonce, Held>>,
    swept: AtomicBool,
    vanished: Vanished,
}

/// Tells a job that nobody waits for it any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl FileStore {
    /// Runs `job` on a thread that may block.
    async fn run<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk, &AtomicBool) -> Result<T> + Send + 'static,
    {
        let permit = self.jobs.clone().acquire_owned().await;
        let permit = permit.map_err(|error| internal("no jobs are taken").with_source(error))?;
        let disk = self.disk.clone();
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(cancelled.clone());
        let done = tokio::task::spawn_blocking(move || {
            let result = job(&disk, &cancelled);
            drop(permit);
            result
        });
        let done = done.await.map_err(|error| internal("a job on the disk panicked").with_source(error))?;
        done.map_err(|error| error.with_backend(SCHEME))
    }

    async fn commit(&self, commit: Commit) -> Result<Swapped> {
        let sent_at = clock::now();
        let commit = Arc::new(commit);
        let mut pause = PAUSES.0;
        loop {
            let job = commit.clone();
            match self.run(move |disk, cancelled| disk.commit(&job, cancelled)).await? {
                Outcome::Done { version, token } => {
                    if commit.token == TokenRule::Raise {
                        self.sweep_predecessor(commit);
                    }
                    return Ok(Swapped::Done { version, token, sent_at });
                }
                Outcome::Conflict => return Ok(Swapped::Conflict),
                Outcome::Busy if clock::now().since(sent_at) < self.patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                Outcome::Busy => {
                    let path = format::lock_path(&self.disk.dir, &commit.key.election);
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        format!(
                            "another process has held {} for {}; if it is frozen, wake or kill it (fuser tells which)",
                            path.display(),
                            exact(self.patience)
                        ),
                    )
                    .with_backend(SCHEME));
                }
            }
        }
    }
}

impl FileStore {
    /// Removes what the dead holder of the record that was overwritten has left.
    fn sweep_predecessor(&self, commit: Arc<Commit>) {
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || {
            if let Some(before) = &commit.expected {
                liveness::sweep_predecessor(&disk.dir, &commit.key.election, &before.body);
            }
        });
    }
}

impl Disk {
    fn commit(&self, commit: &Commit, cancelled: &AtomicBool) -> Result<Outcome> {
        if commit.token == TokenRule::Raise
            && let Some(holder) = liveness::holder(&commit.body)
            && let Some(held) = self.held().get(&holder.nonce)
        {
            held.may_lead().map_err(|error| failure("write", held.path(), error))?;
        }
        let outcome = match commit.run(&self.dir, cancelled) {
            // Someone removed the directory: its elections start anew, under an authority of its own.
            Err(_) if !self.dir.exists() && commit.expected.is_some() => Outcome::Conflict,
            Err(_) if !self.dir.exists() && commit.key.note.is_some() => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("there is no directory {}; no candidate was ever there", self.dir.display()),
                ));
            }
            Err(_) if !self.dir.exists() => {
                place::prepare(&self.dir)?;
                commit.run(&self.dir, cancelled)?
            }
            outcome => outcome?,
        };
        if commit.token == TokenRule::Raise && matches!(outcome, Outcome::Done { .. }) {
            let authority = place::identity(&self.dir).map_err(|error| error.ambiguous(true))?;
            self.learn(authority);
        }
        Ok(outcome)
    }

    fn authority(&self) -> Option<Authority> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, authority: Authority) {
        *self.authority.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority);
    }

    fn hold(&self, claim: &Claim, cancelled: &AtomicBool) -> Result<Option<String>> {
        let mut held = self.held();
        if let Some(held) = held.get(&claim.nonce) {
            return Ok(held.description());
        }
        // The campaign may be over and cleaned up behind: nothing of it may come after that.
        if cancelled.load(Ordering::Relaxed) {
            return Err(internal("the campaign is over"));
        }
        if self.authority().is_none() || !self.dir.exists() {
            self.learn(place::prepare(&self.dir)?);
        }
        let lock = Held::take(&self.dir, claim, self.boot.as_deref())?;
        let description = lock.description();
        held.insert(claim.nonce, lock);
        Ok(description)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Nonce, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message).with_backend(SCHEME)
}

impl RecordStore for FileStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn authority(&self) -> Authority {
        // A grant has one: whoever raises a token has asked for it.
        self.disk.authority().unwrap_or_else(|| Authority::new(SCHEME))
    }

    /// Whoever leads sees at once that its record was removed, unless it is frozen: then it still holds its lock.
    fn led_without_record<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Option<Duration>> {
        let (election, nonce) = (claim.election.clone(), claim.nonce);
        Box::pin(async move {
            let led = self.run(move |disk, _| {
                let seen = liveness::somebody_else_may_lead(&disk.dir, &election, nonce)?;
                Ok(seen.max(disk.vanished.may_lead(&disk.dir, &election, nonce)?))
            });
            led.await.unwrap_or(Some(Duration::ZERO))
        })
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        let key = key.clone();
        Box::pin(self.run(move |disk, _| format::read(&format::record_path(&disk.dir, &key), &key.election)))
    }

    fn swap<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<&'a Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(self.commit(Commit { key: key.clone(), expected: expected.cloned(), token, body }))
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        Some(self.signals.subscribe(election.as_str()))
    }

    fn hold<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Option<String>>> {
        let claim = claim.clone();
        Box::pin(async move {
            let description = self.run(move |disk, cancelled| disk.hold(&claim, cancelled)).await?;
            if !self.disk.swept.swap(true, Ordering::Relaxed) {
                let disk = self.disk.clone();
                tokio::task::spawn_blocking(move || liveness::sweep_all(&disk.dir));
            }
            Ok(description)
        })
    }

    fn let_go(&self, claim: &Claim) -> BoxFuture<'static, ()> {
        let (disk, nonce) = (self.disk.clone(), claim.nonce);
        let remove = move || disk.held().remove(&nonce).iter().for_each(Held::gave_up);
        // A future may be dropped after its runtime.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                let removed = runtime.spawn_blocking(remove);
                // It cannot fail but by a panic, and then the next one to sweep removes the file.
                Box::pin(async move { drop(removed.await) })
            }
            Err(_) => {
                remove();
                Box::pin(std::future::ready(()))
            }
        }
    }

    fn is_gone<'a>(&'a self, election: &'a ElectionName, holder: &'a Holder) -> BoxFuture<'a, bool> {
        let (election, holder) = (election.clone(), holder.clone());
        Box::pin(async move {
            let gone = self.run(move |disk, _| {
                Ok(liveness::is_gone(&disk.dir, &election, &holder, disk.boot.as_deref()))
            });
            gone.await.unwrap_or(false)
        })
    }

    fn candidates<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Option<Vec<Contender>>>> {
        let election = election.clone();
        Box::pin(self.run(move |disk, _| liveness::candidates(&disk.dir, &election).map(Some)))
    }
}
