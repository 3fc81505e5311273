//! The search for the host that may write: all are tried, each a little after the one before.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::{Error, Result};
use tokio::time::Instant;

/// How long a search may take.
pub(crate) const SEARCH: Duration = Duration::from_secs(5);

/// Tries the hosts in this order at the same time, each `patience` after the one before or as soon as one has failed; the first that
/// works is taken.
///
/// # Errors
/// What was wrong with each host, in the order of their numbers; a host that did not answer within [`SEARCH`] is left out.
pub(crate) async fn first_that_works<T, F: Future<Output = Result<T>>>(
    order: Vec<usize>,
    patience: Duration,
    attempt: impl Fn(usize) -> F,
) -> Result<T, Vec<(usize, Error)>> {
    let until = Instant::now() + SEARCH;
    let start = |index: usize| {
        let attempt = attempt(index);
        async move { (index, attempt.await) }
    };
    let mut waiting = order.into_iter();
    let mut failures = BTreeMap::new();
    let mut attempts: FuturesUnordered<_> = waiting.next().into_iter().map(start).collect();
    while !attempts.is_empty() {
        tokio::select! {
            biased;
            Some((index, outcome)) = attempts.next() => {
                match outcome {
                    Ok(found) => return Ok(found),
                    Err(failure) => drop(failures.insert(index, failure)),
                }
                attempts.extend(waiting.next().map(start));
            }
            () = tokio::time::sleep(patience), if waiting.len() > 0 => attempts.extend(waiting.next().map(start)),
            () = tokio::time::sleep_until(until) => break,
        }
    }
    Err(failures.into_iter().collect())
}
