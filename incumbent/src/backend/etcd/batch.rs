//! Small transactions of many elections, sent together: what is asked while others are under way goes with the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::session::Answered;
use incumbent_core::{ElectionName, ErrorKind, Result};
use tokio::sync::oneshot;

use super::client::Client;
use super::failure;
use super::proto::response_op::Response;
use super::proto::{TxnRequest, TxnResponse};

/// Transactions in one; etcd allows 128 operations, each level counted on top of the one above.
pub(super) const MAX: usize = 120;
/// In one that mixes larger transactions, each of up to 8 operations and far below etcd's limit of 1.5 MiB.
const MAX_MIXED: usize = 64;
/// Sent at the same time: enough that one slow answer does not hold up everyone.
const SENDERS: usize = 4;

/// The answer to one transaction of a batch.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) body: TxnResponse,
    pub(super) answered: Answered,
    /// The store's revision at the answer, which is the create revision of a key that the transaction created.
    pub(super) revision: i64,
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
    election: ElectionName,
    request: TxnRequest,
    answer: oneshot::Sender<Result<Answer>>,
}

impl Batcher {
    /// `limit` is how long one answer may take.
    pub(super) fn new(client: Client, limit: Duration) -> Batcher {
        Batcher(Arc::new(Inner { client, limit, state: Mutex::default() }))
    }

    /// Sends `request`, which has no more than 4 operations on any branch, with others. Two of one election never go
    /// together: keys made by one transaction have one create revision, and nobody could tell which came first.
    ///
    /// # Errors
    /// Those of [`Client::txn`]. Dropping the future leaves it unknown whether the request was sent.
    pub(super) async fn submit(&self, election: &ElectionName, request: TxnRequest) -> Result<Answer> {
        let (sender, answer) = oneshot::channel();
        let start = {
            let mut state = self.0.lock();
            state.jobs.push_back(Job { election: election.clone(), request, answer: sender });
            let start = state.senders < SENDERS;
            state.senders += usize::from(start);
            start
        };
        if start {
            let inner = Arc::clone(&self.0);
            tokio::spawn(async move { inner.send_all().await });
        }
        answer.await.unwrap_or_else(|_| {
            Err(failure::error(ErrorKind::Internal, "cluster", "a sender died").ambiguous(true))
        })
    }

    /// Sends these transactions as one, at once. Each has at most 2 operations on any branch.
    ///
    /// # Errors
    /// Those of [`Client::txn`], for all of them.
    pub(super) async fn together(&self, requests: Vec<TxnRequest>) -> Result<Vec<Answer>> {
        self.0.send(requests).await
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
            let requests = batch.iter().map(|job| job.request.clone()).collect();
            match self.send(requests).await {
                Ok(answers) => {
                    for (job, answer) in batch.into_iter().zip(answers) {
                        let _ = job.answer.send(Ok(answer));
                    }
                }
                // One of them is at fault (a missing permission, say); the others must not suffer for it.
                Err(failure) if batch.len() > 1 && !failure.is_ambiguous() && !failure.is_retryable() => {
                    for job in batch {
                        let outcome = self.send(vec![job.request]).await;
                        let _ = job.answer.send(outcome.map(|mut answers| answers.remove(0)));
                    }
                }
                Err(failure) => {
                    for job in batch {
                        let _ = job.answer.send(Err(failure.clone()));
                    }
                }
            }
        }
    }

    async fn send(&self, requests: Vec<TxnRequest>) -> Result<Vec<Answer>> {
        let count = requests.len();
        let success = requests.into_iter().map(Into::into).collect();
        let reply = self.client.txn(TxnRequest { success, ..Default::default() }, self.limit).await?;
        let answered = Answered { sent_at: reply.sent_at, at: reply.answered_at, term: reply.raft_term };
        let answers: Vec<Answer> = reply
            .body
            .responses
            .into_iter()
            .filter_map(|op| match op.response {
                Some(Response::ResponseTxn(body)) => {
                    Some(Answer { body, answered, revision: reply.revision })
                }
                _ => None,
            })
            .collect();
        if answers.len() != count {
            let text = "a transaction was answered in part";
            return Err(failure::error(ErrorKind::Internal, "cluster", text).ambiguous(true));
        }
        Ok(answers)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next batch: in order, one of each election, without those that nobody waits for any more.
    fn take(&mut self) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut later = VecDeque::new();
        for job in self.jobs.drain(..) {
            if job.answer.is_closed() {
                continue;
            }
            let full = batch.len() >= MAX_MIXED;
            if full || batch.iter().any(|other| other.election == job.election) {
                later.push_back(job);
            } else {
                batch.push(job);
            }
        }
        self.jobs = later;
        batch
    }
}
