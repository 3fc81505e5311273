//! What user code holds during a term.

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use incumbent_core::{
    Authority, BootInstant, CandidateId, Claim, ElectionName, Error, ErrorKind, FencingToken, Grant, Input,
    LossReason, Nonce, Result, StopReason,
};
use tokio::sync::{mpsc, watch};

use crate::backend;
use crate::checkpoint::Checkpoint;
use crate::clock;
use crate::thread::Handle;

/// The right to do the job, for one term. Cheap to clone; all clones end together and for good.
///
/// A fencing token goes to every resource that can compare it. Where a resource cannot, call
/// [`check`](Leadership::check) right before each critical step.
#[derive(Clone)]
pub struct Leadership(Arc<Term>);

struct Term {
    election: ElectionName,
    id: CandidateId,
    nonce: Nonce,
    token: Option<FencingToken>,
    authority: Authority,
    /// Nanoseconds on the boot clock; 0 is over, final. Whoever first sees it passed makes it 0, so that no late
    /// extension revives the term.
    deadline: AtomicU64,
    alive_at: AtomicU64,
    extended: watch::Sender<BootInstant>,
    stopping: watch::Sender<Option<Stopping>>,
    lost: watch::Sender<Option<LossReason>>,
    /// Held as long as someone may believe in this term.
    lock: Option<Arc<File>>,
    handle: Handle,
    inputs: mpsc::UnboundedSender<Input>,
}

/// The work was told to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopping {
    /// Why.
    pub reason: StopReason,
    /// When the term ends at the latest: the drain bound, or the deadline in an outage.
    pub until: Option<BootInstant>,
}

/// The term is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    election: ElectionName,
    reason: Option<Box<LossReason>>,
}

impl Lost {
    /// Why, if that is known already: a frozen process finds the deadline passed before anything tells it.
    pub fn reason(&self) -> Option<&LossReason> {
        self.reason.as_deref()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this term of {} is over; stop, another may lead", self.election)
    }
}

impl std::error::Error for Lost {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Error {
        Error::new(ErrorKind::NotLeader, lost.to_string())
    }
}

impl Leadership {
    pub(crate) fn new(
        claim: &Claim,
        grant: &Grant,
        deadline: BootInstant,
        handle: Handle,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> Leadership {
        Leadership(Arc::new(Term {
            election: claim.election.clone(),
            id: claim.id.clone(),
            nonce: claim.nonce,
            token: grant.token,
            authority: grant.authority.clone(),
            deadline: AtomicU64::new(deadline.as_nanos()),
            alive_at: AtomicU64::new(clock::now().as_nanos()),
            extended: watch::Sender::new(deadline),
            stopping: watch::Sender::new(None),
            lost: watch::Sender::new(None),
            lock: backend::file::lock_of(claim.nonce),
            handle,
            inputs,
        }))
    }

    /// The election.
    pub fn election(&self) -> &ElectionName {
        &self.0.election
    }

    /// The candidate that leads: this one.
    pub fn id(&self) -> &CandidateId {
        &self.0.id
    }

    /// The campaign that won this term.
    pub fn nonce(&self) -> Nonce {
        self.0.nonce
    }

    /// The fencing token of this term; it never changes during the term. `None` where the backend declares that it has none.
    pub fn token(&self) -> Option<FencingToken> {
        self.0.token
    }

    /// Who issued the token. Fences store it beside the token.
    pub fn authority(&self) -> &Authority {
        &self.0.authority
    }

    /// When trust in this term ends unless it is extended before, on the boot clock; [`BootInstant::ZERO`] once it is over.
    pub fn valid_until(&self) -> BootInstant {
        BootInstant::from_nanos(self.0.deadline.load(Ordering::Acquire))
    }

    /// Whether the term is still good, by the boot clock, now. Costs one clock read; once false it stays false.
    #[inline]
    pub fn is_valid(&self) -> bool {
        let deadline = self.0.deadline.load(Ordering::Acquire);
        clock::now().as_nanos() < deadline || self.seal(deadline)
    }

    /// The deadline was seen passed: make that final, unless an extension was published in between.
    #[cold]
    fn seal(&self, mut seen: u64) -> bool {
        while seen != 0 {
            match self.0.deadline.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(newer) if clock::now().as_nanos() < newer => return true,
                Err(newer) => seen = newer,
            }
        }
        false
    }

    /// [`is_valid`](Leadership::is_valid) as a result, for `?`.
    ///
    /// # Errors
    /// [`Lost`] if the term is over.
    #[inline]
    pub fn check(&self) -> Result<(), Lost> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error()) }
    }

    fn lost_error(&self) -> Lost {
        Lost { election: self.0.election.clone(), reason: self.0.lost.borrow().clone().map(Box::new) }
    }

    /// Resolves when the work is told to go: stop taking new work, finish what is under way, return. The term stays
    /// valid meanwhile. Also resolves when the term is lost without warning. Cancel-safe.
    pub async fn stopping(&self) -> Stopping {
        let told = next(&self.0.stopping, Option::is_some).await;
        told.unwrap_or(Stopping { reason: StopReason::Outage, until: None })
    }

    /// What [`stopping`](Leadership::stopping) would resolve to, if it already did.
    pub fn is_stopping(&self) -> Option<Stopping> {
        self.0.stopping.borrow().clone()
    }

    /// Resolves when the term is over. Cancel-safe.
    pub async fn lost(&self) -> LossReason {
        next(&self.0.lost, Option::is_some).await.unwrap_or(LossReason::Expired)
    }

    /// Resolves with the new deadline when the term is extended beyond `known`. Cancel-safe.
    pub async fn extended(&self, known: BootInstant) -> BootInstant {
        next(&self.0.extended, |deadline| *deadline > known).await
    }

    /// Runs `work` as long as the term lasts; drops it when the term ends. The deadline is checked before each poll, so a process
    /// that was frozen does not go on with the work. Cancel-safe as far as `work` is.
    ///
    /// # Errors
    /// [`Lost`] if the term ended first.
    pub async fn guard<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        std::future::poll_fn(|cx| {
            if lost.as_mut().poll(cx).is_ready() || !self.is_valid() {
                return Poll::Ready(Err(self.lost_error()));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Gives up this term: the work is told to stop, and when it has returned the grant is released. The candidate campaigns
    /// again after a pause. Returns at once. A term that is over has nothing to give up, and a later one is not meant.
    pub fn resign(&self) {
        if self.0.lost.borrow().is_none() {
            let _ = self.0.inputs.send(Input::Stop(StopReason::Resigned));
        }
    }

    /// Says that the work is alive, where [`Candidate::liveness`](crate::Candidate::liveness) asks for it.
    pub fn alive(&self) {
        self.0.alive_at.store(clock::now().as_nanos(), Ordering::Release);
    }

    /// On the backend `file`: the lock that tells others that this campaign's process lives, once more; `None` elsewhere.
    ///
    /// When the last process that holds it is gone, a standby takes over without waiting for the lease to run out. So
    /// hand it to every process that works for this term, before it starts: as with `flock(1)`, it is enough that the
    /// process inherits the descriptor and never closes it. The descriptor is close-on-exec until that is changed.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if this process has no descriptor left.
    pub fn liveness_fd(&self) -> Result<Option<OwnedFd>> {
        let duplicate = self.0.lock.as_ref().map(|lock| lock.try_clone()).transpose();
        let duplicate = duplicate.map_err(|error| {
            Error::new(
                ErrorKind::Unavailable,
                "the liveness lock cannot be duplicated; raise the limit of open files (ulimit -n)",
            )
            .with_source(error)
        })?;
        Ok(duplicate.map(OwnedFd::from))
    }

    /// The value that one leader leaves for the next.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::of_term(self.clone(), self.0.handle.clone())
    }

    // ---- the driver's side ----

    /// False if someone saw the old deadline pass before: then the term is over.
    pub(crate) fn extend(&self, deadline: BootInstant) -> bool {
        let mut seen = self.0.deadline.load(Ordering::Acquire);
        while seen != 0 {
            let new = deadline.as_nanos();
            match self.0.deadline.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.0.extended.send_replace(deadline);
                    return true;
                }
                Err(newer) => seen = newer,
            }
        }
        false
    }

    pub(crate) fn tell_stopping(&self, reason: StopReason, until: Option<BootInstant>) {
        self.0.stopping.send_replace(Some(Stopping { reason, until }));
    }

    pub(crate) fn end(&self, reason: LossReason) {
        self.0.deadline.store(0, Ordering::Release);
        let why = match &reason {
            LossReason::Stopped(why) | LossReason::DrainOverran(why) => why.clone(),
            LossReason::Expired | LossReason::Superseded(_) => StopReason::Outage,
        };
        self.0.stopping.send_if_modified(|told| {
            let news = told.is_none();
            if news {
                *told = Some(Stopping { reason: why, until: Some(clock::now()) });
            }
            news
        });
        self.0.lost.send_replace(Some(reason));
    }

    pub(crate) fn silent_since(&self) -> BootInstant {
        BootInstant::from_nanos(self.0.alive_at.load(Ordering::Acquire))
    }
}

/// The first value that `wanted` wants.
async fn next<T: Clone>(values: &watch::Sender<T>, wanted: impl FnMut(&T) -> bool) -> T {
    let mut values = values.subscribe();
    let value = values.wait_for(wanted).await.map(|value| value.clone());
    match value {
        Ok(value) => value,
        // The sender is borrowed, so the channel is open.
        Err(_) => std::future::pending().await,
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("election", &self.0.election)
            .field("id", &self.0.id)
            .field("token", &self.0.token)
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}
