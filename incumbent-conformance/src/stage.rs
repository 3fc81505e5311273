//! What every case stands on: connections whose calls are recorded, fresh elections and campaigns, and ways to play
//! a candidate.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use incumbent_core::timing::DEFAULT_DRIFT_PPM;
use incumbent_core::{
    Acquired, Backend, BootInstant, CandidateId, Claim, ElectionName, Error, Grant, Guarantees, Nonce,
    Observation, Renewed, Result,
};

use crate::check::{Tolerance, check};
use crate::clock::{self, now, sleep_until};
use crate::harness::{Harness, Hook};
use crate::history::{History, Recorder};

/// Why a case does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    NotApplicable(String),
    Failed(String),
    /// The store did not answer in time, as may happen on a busy machine: worth another try, from the beginning.
    Unanswered(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error.is_retryable() {
            true => Stop::Unanswered(format!("the backend failed: {error:?}")),
            false => Stop::Failed(format!("the backend failed: {error:?}")),
        }
    }
}

/// How a case ends.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Fails the case with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::stage::Stop::Failed(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// A connection whose calls are recorded.
pub(crate) type Handle = Arc<dyn Backend>;

/// The stage of one case.
pub(crate) struct Stage {
    pub(crate) harness: Arc<dyn Harness>,
    pub(crate) guarantees: Guarantees,
    pub(crate) terms: usize,
    history: History,
    run: u64,
    elections: AtomicU64,
    handles: AtomicUsize,
}

impl Stage {
    pub(crate) fn new(harness: Arc<dyn Harness>, guarantees: Guarantees, terms: usize) -> Stage {
        Stage {
            harness,
            guarantees,
            terms,
            history: History::new(),
            run: random(),
            elections: AtomicU64::new(0),
            handles: AtomicUsize::new(0),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.harness.ttl()
    }

    /// A connection of its own.
    pub(crate) async fn open(&self) -> Outcome<Handle> {
        let backend = self.harness.connect().await?;
        let number = self.handles.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Recorder::new(backend, self.history.clone(), number)))
    }

    /// `count` of them.
    pub(crate) async fn open_many(&self, count: usize) -> Outcome<Vec<Handle>> {
        let mut handles = Vec::new();
        for _ in 0..count {
            handles.push(self.open().await?);
        }
        Ok(handles)
    }

    /// A connection whose calls are not recorded, for cases that measure memory.
    pub(crate) async fn open_unrecorded(&self) -> Outcome<Handle> {
        Ok(self.harness.connect().await?)
    }

    /// An election that nobody has ever used.
    pub(crate) fn election(&self) -> ElectionName {
        let number = self.elections.fetch_add(1, Ordering::Relaxed);
        // Lower-case letters, digits and dashes: a name that every store can carry.
        let name = format!("c{:010x}-{number}", self.run & 0xff_ffff_ffff);
        ElectionName::new(name).unwrap_or_else(|error| unreachable!("{error}"))
    }

    /// A campaign of its own.
    pub(crate) fn claim(&self, election: &ElectionName, id: &str) -> Claim {
        Claim {
            election: election.clone(),
            id: CandidateId::new(id).unwrap_or_else(|error| unreachable!("{error}")),
            nonce: Nonce(u128::from(random()) << 64 | u128::from(random())),
            address: Some(format!("{id}.test:8080")),
            ttl: self.ttl(),
        }
    }

    /// Does something to the store by hand, or ends the case as not applicable.
    pub(crate) async fn hook<T>(&self, hook: Hook<'_, T>) -> Outcome<T> {
        match hook {
            Ok(act) => act.await.map_err(|error| Stop::Failed(format!("the harness failed: {error:?}"))),
            Err(reason) => Err(Stop::NotApplicable(reason.to_owned())),
        }
    }

    /// As [`hook`](Stage::hook), for what takes grants of `election` (`None`: of all elections) away.
    pub(crate) async fn removal(&self, election: Option<&ElectionName>, hook: Hook<'_>) -> Outcome {
        match hook {
            Ok(act) => {
                let removed = self.history.removal(election, act).await;
                removed.map_err(|error| Stop::Failed(format!("the harness failed: {error:?}")))
            }
            Err(reason) => Err(Stop::NotApplicable(reason.to_owned())),
        }
    }

    pub(crate) fn needs_tokens(&self) -> Outcome {
        if self.guarantees.has_tokens() {
            return Ok(());
        }
        Err(Stop::NotApplicable("the backend issues no tokens".to_owned()))
    }

    /// How long after a leader has gone silent the next one may take: what is declared, and some for a busy machine.
    pub(crate) fn takeover(&self) -> Duration {
        let declared = self.guarantees.takeover_max(self.ttl());
        declared + self.ttl() / 2 + Duration::from_secs(5)
    }

    /// How long after its proof was sent a grant is certain to be unexpired.
    pub(crate) fn certain_until(&self, sent_at: BootInstant) -> BootInstant {
        sent_at + (self.ttl() - self.ttl() / 500).saturating_sub(self.guarantees.expiry_slack)
    }

    /// What the history proves to be broken.
    pub(crate) fn violations(&self) -> Vec<String> {
        let tolerance = Tolerance { slack: self.guarantees.expiry_slack, drift_ppm: DEFAULT_DRIFT_PPM };
        let violations = check(&self.history.entries(), tolerance);
        violations.iter().take(5).map(ToString::to_string).collect()
    }

    // ---- playing a candidate ----

    /// Tries until it wins, at the moments that the backend itself names and no others: without a hint.
    pub(crate) async fn win_unaided(&self, handle: &Handle, claim: &Claim) -> Outcome<Grant> {
        self.win_by(handle, claim, |try_again| try_again).await
    }

    /// Tries until it wins, often.
    pub(crate) async fn win(&self, handle: &Handle, claim: &Claim) -> Outcome<Grant> {
        let pause = self.ttl() / 30;
        self.win_by(handle, claim, |try_again| try_again.min(now() + pause)).await
    }

    async fn win_by(
        &self,
        handle: &Handle,
        claim: &Claim,
        next: impl Fn(BootInstant) -> BootInstant,
    ) -> Outcome<Grant> {
        let begin = now();
        let end = begin + self.takeover();
        loop {
            let (next, answer) = match handle.try_acquire(claim).await {
                Ok(Acquired::Granted(grant)) => return Ok(grant),
                Ok(Acquired::Held { observation, try_again }) => {
                    (next(try_again), format!("{observation:?}"))
                }
                Err(error) if error.is_retryable() => (now() + self.ttl() / 30, format!("{error:?}")),
                Err(error) => return Err(error.into()),
            };
            let (so_far, wait) = (now().since(begin), next.since(now()));
            ensure!(
                next < end,
                "{} did not win within {so_far:?}, and shall try again in {wait:?}; answered was {answer}",
                claim.id
            );
            // Never more often than every 5 ms: a busy loop is another case's matter.
            sleep_until(next.max(now() + Duration::from_millis(5))).await;
        }
    }

    /// Makes a call until it is answered: on a busy machine it may run out of time.
    pub(crate) async fn answer<T>(&self, mut call: impl AsyncFnMut() -> Result<T>) -> Outcome<T> {
        let end = now() + self.takeover();
        loop {
            match call().await {
                Err(error) if error.is_retryable() && now() < end => {}
                answer => return Ok(answer?),
            }
            tokio::time::sleep(self.ttl() / 30).await;
        }
    }

    /// One try, which must not be granted. Gives what is shown.
    pub(crate) async fn must_not_win(&self, handle: &Handle, claim: &Claim) -> Outcome<Observation> {
        match self.answer(async || handle.try_acquire(claim).await).await? {
            Acquired::Held { observation, .. } => Ok(observation),
            Acquired::Granted(grant) => {
                Err(Stop::Failed(format!("{} won although it must not: {grant:?}", claim.id)))
            }
        }
    }

    /// One renewal, which must extend. Gives the send of its proof.
    pub(crate) async fn must_extend(
        &self,
        handle: &Handle,
        claim: &Claim,
        grant: &Grant,
    ) -> Outcome<BootInstant> {
        match self.answer(async || handle.renew(claim, grant).await).await? {
            Renewed::Extended { sent_at, .. } => Ok(sent_at),
            Renewed::Lost(seen) => {
                Err(Stop::Failed(format!("{} lost its grant {grant:?}; there is {seen:?}", claim.id)))
            }
        }
    }

    /// Renewals until one answers that the grant is lost, which it is from now on: what was proved before may
    /// still be told, a newer proof fails.
    pub(crate) async fn must_be_lost(
        &self,
        handle: &Handle,
        claim: &Claim,
        grant: &Grant,
    ) -> Outcome<Observation> {
        let gone_at = now();
        let end = gone_at + self.takeover();
        loop {
            match self.answer(async || handle.renew(claim, grant).await).await? {
                Renewed::Lost(seen) => return Ok(seen),
                Renewed::Extended { sent_at, .. } if sent_at < gone_at && now() < end => {}
                Renewed::Extended { .. } => {
                    let text =
                        format!("the grant {grant:?} of {} is gone, and yet it was extended", claim.id);
                    return Err(Stop::Failed(text));
                }
            }
            tokio::time::sleep(self.ttl() / 30).await;
        }
    }

    /// Ends a campaign.
    pub(crate) async fn release(&self, handle: &Handle, claim: &Claim, grant: Option<&Grant>) -> Outcome {
        self.answer(async || handle.release(claim, grant, None).await).await
    }

    /// What the store shows.
    pub(crate) async fn observe(&self, handle: &Handle, election: &ElectionName) -> Outcome<Observation> {
        self.answer(async || handle.observe(election).await).await
    }

    /// Renews as an elector does, until `end`. Gives the send of the last proof.
    pub(crate) async fn keep(
        &self,
        handle: &Handle,
        claim: &Claim,
        grant: &Grant,
        end: BootInstant,
    ) -> Outcome<BootInstant> {
        let mut sent_at = grant.sent_at;
        while now() < end {
            sent_at = self.must_extend(handle, claim, grant).await?;
            sleep_until((sent_at + self.ttl() / 3).max(now() + self.ttl() / 100).min(end)).await;
        }
        Ok(sent_at)
    }
}

/// 64 bits that no other run has.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(clock::now())
}
