//! Small transactions of many elections, sent together: what is asked while others are under way goes with the next. Consul does
//! all of a transaction or nothing, so what is refused is taken out and the rest is sent again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::{BootInstant, ErrorKind, Result};
use tokio::sync::oneshot;

use super::api::{Client, Entry, OPS_MAX, Op, Refusal, Txn};
use super::failure;

/// Sent at the same time: enough that one slow answer does not hold up everyone.
const SENDERS: usize = 4;

/// What came of one small transaction.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    /// It was done.
    Done {
        /// What it left, an entry for each of its operations that gives one.
        entries: Vec<Entry>,
        /// Boot-clock moment before the bytes left.
        sent_at: BootInstant,
        /// Boot-clock moment after the answer came.
        answered_at: BootInstant,
    },
    /// It was not done, and why.
    Refused(Vec<Refusal>),
}

/// Collects transactions and sends them.
#[derive(Clone)]
pub(super) struct Batcher(Arc<Inner>);

struct Inner {
    client: Client,
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    senders: usize,
}

struct Job {
    ops: Vec<Op>,
    answer: oneshot::Sender<Result<Outcome>>,
}

impl Batcher {
    /// `limit` is how long one answer may take.
    pub(super) fn new(client: Client, limit: Duration) -> Batcher {
        Batcher(Arc::new(Inner { client, limit, state: Mutex::default() }))
    }

    /// Does `ops`, each of which leaves one entry, or none of them; with others.
    ///
    /// # Errors
    /// Those of [`Client::txn`]. Dropping the future leaves it unknown whether the request was sent.
    pub(super) async fn submit(&self, ops: Vec<Op>) -> Result<Outcome> {
        let (sender, answer) = oneshot::channel();
        let start = {
            let mut state = self.0.lock();
            state.jobs.push_back(Job { ops, answer: sender });
            let start = state.senders < SENDERS;
            state.senders += usize::from(start);
            start
        };
        if start {
            let inner = Arc::clone(&self.0);
            tokio::spawn(async move { inner.send_all().await });
        }
        answer.await.unwrap_or_else(|_| {
            Err(failure::error(ErrorKind::Internal, "the URL", "a sender died").ambiguous(true))
        })
    }
}

impl Inner {
    async fn send_all(&self) {
        loop {
            // Whoever is ready to ask now may come along.
            tokio::task::yield_now().await;
            let batch = {
                let mut state = self.lock();
                let batch = state.take();
                if batch.is_empty() {
                    state.senders -= 1;
                    return;
                }
                batch
            };
            self.send(batch).await;
        }
    }

    async fn send(&self, mut batch: Vec<Job>) {
        while !batch.is_empty() {
            let ops: Vec<Op> = batch.iter().flat_map(|job| job.ops.iter().cloned()).collect();
            let reply = match self.client.txn(&ops, self.limit).await {
                Ok(reply) => reply,
                Err(failure) => {
                    for job in batch {
                        let _ = job.answer.send(Err(failure.clone()));
                    }
                    return;
                }
            };
            let (sent_at, answered_at) = (reply.sent_at, reply.answered_at);
            match reply.body {
                Txn::Done(entries) if entries.len() == ops.len() => {
                    let mut entries = entries.into_iter();
                    for job in batch {
                        let entries = entries.by_ref().take(job.ops.len()).collect();
                        let _ = job.answer.send(Ok(Outcome::Done { entries, sent_at, answered_at }));
                    }
                    return;
                }
                Txn::Refused(refusals) if refusals.iter().any(|refusal| refusal.op < ops.len()) => {
                    batch = refuse(batch, &refusals);
                }
                Txn::Done(_) | Txn::Refused(_) => {
                    let failure = failure::error(
                        ErrorKind::Internal,
                        &reply.host,
                        "a transaction was answered in part",
                    );
                    for job in batch {
                        let _ = job.answer.send(Err(failure.clone().ambiguous(true)));
                    }
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers those that were refused; the others are left.
fn refuse(batch: Vec<Job>, refusals: &[Refusal]) -> Vec<Job> {
    let mut first = 0;
    let mut left = Vec::new();
    for job in batch {
        let own = first..first + job.ops.len();
        first = own.end;
        let of_own = |refusal: &&Refusal| own.contains(&refusal.op);
        let refused: Vec<Refusal> = refusals
            .iter()
            .filter(of_own)
            .map(|refusal| Refusal { op: refusal.op - own.start, what: refusal.what.clone() })
            .collect();
        if refused.is_empty() {
            left.push(job);
        } else {
            let _ = job.answer.send(Ok(Outcome::Refused(refused)));
        }
    }
    left
}

impl State {
    /// The next batch, in order, without those that nobody waits for any more.
    fn take(&mut self) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut ops = 0;
        while let Some(job) = self.jobs.pop_front() {
            if job.answer.is_closed() {
                continue;
            }
            if ops + job.ops.len() > OPS_MAX && ops > 0 {
                self.jobs.push_front(job);
                break;
            }
            ops += job.ops.len();
            batch.push(job);
        }
        batch
    }
}
