//! Which of several hosts to speak to: one at a time, and the first that works when there is none.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::clock;

/// A host that failed is tried last for this long.
const PENALTY: Duration = Duration::from_secs(5);
/// How long a search goes on, whoever still waits for it.
pub(super) const SEARCH: Duration = Duration::from_secs(5);
/// The pause before a host that failed is tried again in the same search.
const AGAIN: Duration = Duration::from_millis(100);

/// What is known about the hosts of a URL, each by its place there.
#[derive(Debug)]
pub(super) struct Hosts {
    /// One that has not answered for this long gets company by the next one.
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The host to try first.
    first: usize,
    /// Per host: until when it is tried last.
    penalty: Vec<BootInstant>,
}

impl Hosts {
    pub(super) fn new(count: usize, patience: Duration) -> Hosts {
        let state = State { first: 0, penalty: vec![BootInstant::ZERO; count] };
        Hosts { patience, state: Mutex::new(state) }
    }

    /// It is tried last for a while.
    pub(super) fn punish(&self, index: usize) {
        self.lock().penalty[index] = clock::now() + PENALTY;
    }

    /// It was in use and failed: the next one is tried first.
    pub(super) fn give_up(&self, index: usize) {
        self.punish(index);
        let mut state = self.lock();
        state.first = (index + 1) % state.penalty.len();
    }

    /// Tries the hosts at the same time, each a little after the one before; the first that works is taken. Ends without one when each
    /// has failed, or after [`SEARCH`].
    ///
    /// # Errors
    /// Those of all hosts as one; for a host that did not answer, `silent`. Not [retryable](Error::is_retryable) only if no host is
    /// merely unreachable.
    pub(super) async fn search<T, F: Future<Output = Result<T>>>(
        &self,
        connect: impl Fn(usize) -> F,
        silent: impl Fn(usize) -> Error,
    ) -> Result<T> {
        let connect = &connect;
        let attempt = |index: usize, pause: Duration| async move {
            tokio::time::sleep(pause).await;
            (index, connect(index).await)
        };
        let until = Instant::now() + SEARCH;
        let order = self.order();
        let count = order.len();
        let mut waiting = order.into_iter();
        let mut failures = BTreeMap::new();
        let mut attempts: FuturesUnordered<_> =
            waiting.next().into_iter().map(|index| attempt(index, Duration::ZERO)).collect();
        while failures.len() < count {
            tokio::select! {
                Some((index, outcome)) = attempts.next() => {
                    let failure = match outcome {
                        Ok(found) => {
                            self.lock().first = index;
                            return Ok(found);
                        }
                        Err(failure) => failure,
                    };
                    tracing::debug!(%failure, "host does not work");
                    self.punish(index);
                    failures.insert(index, failure);
                    // While others do not answer at all, this one may recover.
                    attempts.push(attempt(index, AGAIN));
                    attempts.extend(waiting.next().map(|index| attempt(index, Duration::ZERO)));
                }
                () = tokio::time::sleep(self.patience), if waiting.len() > 0 => {
                    attempts.extend(waiting.next().map(|index| attempt(index, Duration::ZERO)));
                }
                () = tokio::time::sleep_until(until) => break,
            }
        }
        Err(one((0..count).map(|index| failures.remove(&index).unwrap_or_else(|| silent(index))).collect()))
    }

    /// All hosts: from the first one on, those under a penalty last.
    fn order(&self) -> Vec<usize> {
        let state = self.lock();
        let (now, count) = (clock::now(), state.penalty.len());
        let mut order: Vec<usize> = (0..count).map(|step| (state.first + step) % count).collect();
        order.sort_by_key(|index| Some(state.penalty[*index]).filter(|until| *until > now));
        order
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One error for the failures of all hosts.
fn one(mut failures: Vec<Error>) -> Error {
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let kind = match failures.iter().find(|failure| failure.is_retryable()) {
        Some(_) => ErrorKind::Unavailable,
        None => failures.first().map_or(ErrorKind::Internal, Error::kind),
    };
    let error = Error::new(kind, text);
    match failures.first().and_then(Error::backend) {
        Some(backend) => error.with_backend(backend),
        None => error,
    }
}
