//! What was called and answered, with a stamp before and after each call, so that only certain orders are judged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::{
    Acquired, Backend, BootInstant, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, FencingToken,
    Grant, Guarantees, Nonce, Note, Observation, Renewed, Result, Stored, Swapped,
};
use serde::Serialize;

use crate::clock;

/// One call, or something done to the store by hand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// Which connection made it.
    pub handle: usize,
    /// The election it is about; `None`: all of them.
    pub election: Option<ElectionName>,
    /// Whose campaign made it.
    pub campaign: Option<(CandidateId, Nonce)>,
    /// What was called.
    pub call: Call,
    /// A moment before it.
    pub begin: BootInstant,
    /// A moment after it, and the answer; `None`: its future was dropped, or still is under way.
    pub end: Option<(BootInstant, Answer)>,
}

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// [`Backend::try_acquire`].
    Acquire,
    /// [`Backend::renew`] of the grant with this token.
    Renew(Option<FencingToken>),
    /// [`Backend::release`].
    Release,
    /// [`Backend::observe`].
    Observe,
    /// Grants were taken away by hand.
    Remove,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The campaign holds the election.
    Granted {
        /// The grant's token.
        token: Option<FencingToken>,
        /// Before the proving request was sent.
        sent_at: BootInstant,
        /// The lease duration.
        ttl: Duration,
    },
    /// The grant is extended.
    Extended {
        /// Before the proving request was sent.
        sent_at: BootInstant,
        /// The lease duration.
        ttl: Duration,
    },
    /// Who leads, as the store shows it.
    Shown(Option<FencingToken>),
    /// Done.
    Done,
    /// Not granted, or lost.
    Not,
    /// An error: the outcome is unknown.
    Unknown,
}

/// A history that several connections write into.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Entry>>>);

impl History {
    /// An empty one.
    pub fn new() -> History {
        History::default()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All entries until now.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    /// Runs `removal`, which takes grants of `election` (`None`: of all elections) away by hand, and notes when.
    ///
    /// # Errors
    /// Those of `removal`.
    pub async fn removal<F>(&self, election: Option<&ElectionName>, removal: F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let entry = Entry {
            handle: usize::MAX,
            election: election.cloned(),
            campaign: None,
            call: Call::Remove,
            begin: clock::now(),
            end: None,
        };
        self.note(entry, removal, |result| if result.is_ok() { Answer::Done } else { Answer::Unknown }).await
    }

    async fn note<T>(
        &self,
        entry: Entry,
        call: impl Future<Output = T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> T {
        let place = {
            let mut entries = self.lock();
            entries.push(entry);
            entries.len() - 1
        };
        let result = call.await;
        let end = clock::now();
        self.lock()[place].end = Some((end, answer(&result)));
        result
    }
}

/// A backend that writes down what is called and answered, and changes nothing.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Backend>,
    history: History,
    handle: usize,
}

impl Recorder {
    /// Writes the calls of `inner` into `history`, as those of connection `handle`.
    pub fn new(inner: Arc<dyn Backend>, history: History, handle: usize) -> Recorder {
        Recorder { inner, history, handle }
    }

    fn entry(&self, claim: &Claim, call: Call) -> Entry {
        Entry {
            campaign: Some((claim.id.clone(), claim.nonce)),
            ..self.entry_of_nobody(&claim.election, call)
        }
    }

    fn entry_of_nobody(&self, election: &ElectionName, call: Call) -> Entry {
        Entry {
            handle: self.handle,
            election: Some(election.clone()),
            campaign: None,
            call,
            begin: clock::now(),
            end: None,
        }
    }
}

impl Backend for Recorder {
    fn guarantees(&self) -> &Guarantees {
        self.inner.guarantees()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(async move {
            let entry = self.entry(claim, Call::Acquire);
            let answer = |result: &Result<Acquired>| match result {
                Ok(Acquired::Granted(grant)) => Answer::Granted {
                    token: grant.token,
                    sent_at: grant.sent_at,
                    ttl: grant.ttl.min(claim.ttl),
                },
                Ok(Acquired::Held { .. }) => Answer::Not,
                Err(_) => Answer::Unknown,
            };
            self.history.note(entry, self.inner.try_acquire(claim), answer).await
        })
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move {
            let entry = self.entry(claim, Call::Renew(grant.token));
            let answer = |result: &Result<Renewed>| match result {
                Ok(Renewed::Extended { sent_at, ttl }) => {
                    Answer::Extended { sent_at: *sent_at, ttl: (*ttl).min(claim.ttl) }
                }
                Ok(Renewed::Lost(_)) => Answer::Not,
                Err(_) => Answer::Unknown,
            };
            self.history.note(entry, self.inner.renew(claim, grant), answer).await
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let entry = self.entry(claim, Call::Release);
            let answer = |result: &Result<()>| if result.is_ok() { Answer::Done } else { Answer::Unknown };
            self.history.note(entry, self.inner.release(claim, grant, next), answer).await
        })
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async move {
            let entry = self.entry_of_nobody(election, Call::Observe);
            let answer = |result: &Result<Observation>| match result {
                Ok(seen) => Answer::Shown(seen.leader.as_ref().and_then(|leader| leader.token)),
                Err(_) => Answer::Unknown,
            };
            self.history.note(entry, self.inner.observe(election), answer).await
        })
    }

    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        self.inner.watch(election, campaign)
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        self.inner.read_note(election, note)
    }

    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        self.inner.swap_note(election, note, expected, token, body)
    }
}
