//! A lane: one connection, one statement at a time, and in it all that was asked meanwhile.
//!
//! Whoever asks waits for the statement that carries his request, and may stop waiting at any time. When all who wait for a statement
//! have gone, or it has taken too long, its connection is closed: an answer that comes after that is nobody's.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{BootInstant, BoxFuture, Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::{Ask, Told};
use crate::clock;

/// How long after [`Lane::prepare`] the connection is made: right after a win the command starts, and goes first.
const PREPARE_AFTER: Duration = Duration::from_millis(100);

/// The most requests that one statement carries.
const MOST: usize = 500;

/// Who makes connections and statements for a lane.
pub(crate) trait Runner: Send + Sync + 'static {
    /// A connection that has answered. Dropping it closes it.
    type Link: Send + 'static;

    /// The store, for errors.
    fn scheme(&self) -> &'static str;

    /// Connects; runs on even if nobody waits for it any more, so it must bound itself.
    fn connect(self: Arc<Self>) -> BoxFuture<'static, Result<Self::Link>>;

    /// Has the server load what the first requests of a lane's connection need, before somebody waits for them; must bound itself.
    fn warm_up<'a>(&'a self, _link: &'a mut Self::Link) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// True if the connection must not be used any more.
    fn is_stale(&self, link: &Self::Link) -> bool;

    /// Does all that is asked, with one answer for each; no two ask for the same record. After an error the connection is closed.
    fn run<'a>(
        &'a self,
        link: &'a mut Self::Link,
        asks: &'a [Ask],
        sent_at: BootInstant,
    ) -> BoxFuture<'a, Result<Vec<Told>>>;
}

/// A way to a lane. Dropping it ends the lane.
#[derive(Debug)]
pub(crate) struct Lane {
    /// `None`: something is about to be asked.
    queue: mpsc::UnboundedSender<Option<Waiting>>,
    task: AbortHandle,
    scheme: &'static str,
}

struct Waiting {
    ask: Ask,
    answer: oneshot::Sender<Result<Told>>,
}

impl Lane {
    /// Must be called within the runtime that the lane is to live on. A statement may take as long as `limit`.
    pub(crate) fn start<R: Runner>(runner: Arc<R>, limit: Duration) -> Lane {
        let (queue, inbox) = mpsc::unbounded_channel();
        let scheme = runner.scheme();
        let driver = Driver { runner, limit, link: None, dialing: JoinSet::new(), left: Vec::new() };
        Lane { queue, task: tokio::spawn(driver.run(inbox)).abort_handle(), scheme }
    }

    /// Says that something will be asked soon, so that the connection is there by then. Must be called within the runtime.
    pub(crate) fn prepare(&self) {
        let queue = self.queue.clone();
        tokio::spawn(async move {
            sleep(PREPARE_AFTER).await;
            // The lane may have gone.
            let _ = queue.send(None);
        });
    }

    /// Asks, and waits for the answer. What is not sent yet when the future is dropped is never sent.
    ///
    /// # Errors
    /// Those of the statement that carried it.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Told> {
        let (answer, answered) = oneshot::channel();
        let gone =
            || Error::new(ErrorKind::Internal, "the connection's task has ended").with_backend(self.scheme);
        self.queue.send(Some(Waiting { ask, answer })).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Driver<R: Runner> {
    runner: Arc<R>,
    limit: Duration,
    link: Option<R::Link>,
    /// The connection that is being made: it goes on when those who waited for it have gone.
    dialing: JoinSet<Result<R::Link>>,
    /// What did not fit into the last statement.
    left: Vec<Waiting>,
}

impl<R: Runner> Driver<R> {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Option<Waiting>>) {
        loop {
            let mut batch = std::mem::take(&mut self.left);
            if batch.is_empty() {
                match inbox.recv().await {
                    Some(Some(first)) => batch.push(first),
                    Some(None) => self.dial(),
                    None => return,
                }
            }
            while let Ok(more) = inbox.try_recv() {
                batch.extend(more);
            }
            self.serve(batch).await;
        }
    }

    fn dial(&mut self) {
        if self.link.is_none() && self.dialing.is_empty() {
            let runner = Arc::clone(&self.runner);
            self.dialing.spawn(async move {
                let mut link = Arc::clone(&runner).connect().await?;
                runner.warm_up(&mut link).await;
                Ok(link)
            });
        }
    }

    async fn serve(&mut self, batch: Vec<Waiting>) {
        let mut keys = std::collections::BTreeSet::new();
        let (mut asks, mut answers) = (Vec::new(), Vec::new());
        for waiting in batch {
            if waiting.answer.is_closed() {
                continue;
            }
            if asks.len() < MOST && keys.insert(waiting.ask.key().clone()) {
                asks.push(waiting.ask);
                answers.push(waiting.answer);
            } else {
                self.left.push(waiting);
            }
        }
        if asks.is_empty() {
            return;
        }
        // Before anything is sent, a new connection's first bytes included.
        let sent_at = clock::now();
        let told = tokio::select! {
            biased;
            () = all_gone(&mut answers) => return,
            told = self.attempt(&asks, sent_at) => told,
        };
        match told {
            Ok(all) => answers.into_iter().zip(all).for_each(|(answer, told)| drop(answer.send(Ok(told)))),
            Err(error) => answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone())))),
        }
    }

    /// Dropped in the middle, it leaves no connection on which an answer is still to come.
    async fn attempt(&mut self, asks: &[Ask], sent_at: BootInstant) -> Result<Vec<Told>> {
        let mut link = self.obtain().await?;
        let Ok(told) = timeout(self.limit, self.runner.run(&mut link, asks, sent_at)).await else {
            let text = format!("no answer within {:?}", self.limit);
            let ambiguous = asks.iter().any(Ask::writes);
            return Err(Error::new(ErrorKind::TimedOut, text)
                .with_backend(self.runner.scheme())
                .ambiguous(ambiguous));
        };
        let told = told?;
        self.link = Some(link);
        Ok(told)
    }

    async fn obtain(&mut self) -> Result<R::Link> {
        if let Some(link) = self.link.take().filter(|link| !self.runner.is_stale(link)) {
            return Ok(link);
        }
        self.dial();
        match self.dialing.join_next().await {
            Some(Ok(made)) => made,
            _ => Err(Error::new(ErrorKind::Internal, "the search for a host has failed")
                .with_backend(self.runner.scheme())),
        }
    }
}

/// Resolves when nobody waits any more.
async fn all_gone(answers: &mut [oneshot::Sender<Result<Told>>]) {
    for answer in answers {
        answer.closed().await;
    }
}
