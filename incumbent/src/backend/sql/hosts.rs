//! The search for the host that may write: all are tried, each a little after the one before.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::{Error, ErrorKind, Result};
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

/// What is wrong with the hosts, as [`first_that_works`] gave it: of the only one, or of all.
pub(crate) fn summary(
    failures: Vec<(usize, Error)>,
    hosts: usize,
    silent: impl Fn(usize) -> String,
    scheme: &'static str,
) -> Error {
    let mut texts: Vec<String> = failures.iter().map(|(_, error)| error.to_string()).collect();
    // A host that may recover is the more hopeful answer; then one that only reads.
    let hopeful = |error: &Error| (error.is_retryable(), error.kind() == ErrorKind::ReadOnly);
    let kind = failures.iter().map(|(_, error)| error).max_by_key(|error| hopeful(error)).map(Error::kind);
    let quiet = (0..hosts).find(|index| failures.iter().all(|(failed, _)| failed != index));
    let kind = match (quiet, kind) {
        (None, Some(kind)) => kind,
        _ => ErrorKind::Unavailable,
    };
    texts.extend(quiet.map(|index| format!("{}: no answer within {SEARCH:?}", silent(index))));
    let error = Error::new(kind, texts.join("; ")).with_backend(scheme).ambiguous(false);
    match failures.into_iter().next() {
        Some((_, first)) => error.with_source(first),
        None => error,
    }
}
