//! Faults on the client's side of a real backend: answers that are lost, late or doubled, and hints that cannot be relied on.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use incumbent_core::{
    Acquired, Backend, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, Error, ErrorKind,
    FencingToken, Grant, Guarantees, Note, Observation, Renewed, Result, Stored, Swapped,
};

/// Which faults there are, and how often. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The same seed draws the same faults, call by call.
    pub seed: u64,
    /// Of a hundred calls so many are done, and their answer is lost: they fail as timed out.
    pub lost: u8,
    /// So many are done twice; the second answer counts.
    pub doubled: u8,
    /// So many are answered late, by up to `delay`.
    pub late: u8,
    /// How late at most.
    pub delay: Duration,
    /// What becomes of hints.
    pub hints: Hints,
}

/// What becomes of the hints of [`Backend::watch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hints {
    /// They come as they are.
    #[default]
    Honest,
    /// There are none, and the backend says so.
    Absent,
    /// There are none, and nobody says so.
    Silent,
    /// Each comes three times.
    Tripled,
    /// After each comes an error, and the stream ends.
    Broken,
}

/// A backend with faults between it and whoever calls it. What is done is really done.
pub struct Faulty {
    inner: Arc<dyn Backend>,
    faults: Faults,
    calls: AtomicU64,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// Puts `faults` before `inner`.
    pub fn new(inner: Arc<dyn Backend>, faults: Faults) -> Faulty {
        Faulty { inner, faults, calls: AtomicU64::new(0) }
    }

    /// A number in 0..100 for the next call.
    fn dice(&self) -> u8 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        (BuildHasherDefault::<DefaultHasher>::new().hash_one((self.faults.seed, call)) % 100) as u8
    }

    async fn call<'a, T>(&self, make: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
        let (lost, doubled, late) = (self.dice(), self.dice(), self.dice());
        let mut answer = make().await;
        if doubled < self.faults.doubled {
            answer = make().await;
        }
        if late < self.faults.late {
            tokio::time::sleep(self.faults.delay * u32::from(self.dice()) / 100).await;
        }
        if lost < self.faults.lost {
            return Err(Error::new(ErrorKind::TimedOut, "the answer was lost"));
        }
        answer
    }
}

impl Backend for Faulty {
    fn guarantees(&self) -> &Guarantees {
        self.inner.guarantees()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(self.call(|| self.inner.try_acquire(claim)))
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(self.call(|| self.inner.renew(claim, grant)))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.call(move || self.inner.release(claim, grant, next)))
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(self.call(|| self.inner.observe(election)))
    }

    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        let hints = match self.faults.hints {
            Hints::Absent => return None,
            Hints::Silent => return Some(Box::pin(stream::pending())),
            Hints::Honest | Hints::Tripled | Hints::Broken => self.inner.watch(election, campaign)?,
        };
        Some(match self.faults.hints {
            Hints::Tripled => {
                Box::pin(hints.flat_map(|hint| stream::iter([hint.clone(), hint.clone(), hint])))
            }
            Hints::Broken => {
                let error = Error::new(ErrorKind::Unavailable, "the watch broke");
                Box::pin(hints.take(1).chain(stream::iter([Err(error)])))
            }
            Hints::Honest | Hints::Absent | Hints::Silent => hints,
        })
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(self.call(move || self.inner.read_note(election, note)))
    }

    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(self.call(move || self.inner.swap_note(election, note, expected, token, body.clone())))
    }
}
