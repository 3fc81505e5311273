//! The elector's own thread: one per connection, with its own runtime and the backend's own connections, so that nothing
//! the user does can starve a renewal.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{Backend, Error, ErrorKind, Guarantees, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// How long a thread that may block waits for its next job. For ever, since the pool panics when it has none and no other can be
/// made: a command that has taken every process it may have is no reason to lose its term.
const KEEP_THREADS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

type BoxFuture = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
type Job = Box<dyn FnOnce(Arc<dyn Backend>) -> BoxFuture + Send>;

/// Makes a backend, on the thread and inside the current-thread runtime that it shall live on.
pub type Factory = Box<dyn FnOnce() -> Result<Arc<dyn Backend>> + Send>;

/// A way to the elector's thread. The thread ends when the last one is dropped and its campaigns are cleaned up.
#[derive(Clone)]
pub(crate) struct Handle {
    jobs: mpsc::UnboundedSender<Job>,
    guarantees: Arc<Guarantees>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Starts the thread and waits until the backend exists; that needs no answer from a server.
    pub(crate) async fn start(scheme: &str, factory: Factory) -> Result<Handle> {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let (ready, made) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("incumbent-{scheme}"))
            .spawn(move || run(factory, inbox, ready))
            .map_err(|error| internal("the elector's thread cannot be started").with_source(error))?;
        let guarantees = made.await.map_err(|_| internal("the elector's thread died at its start"))??;
        Ok(Handle { jobs, guarantees: Arc::new(guarantees) })
    }

    pub(crate) fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    /// Runs a task on the thread until it ends by itself.
    pub(crate) fn spawn<F>(&self, task: impl FnOnce(Arc<dyn Backend>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // A send can only fail when the thread has panicked; whoever waits for the task sees its channel closed.
        let _ = self.jobs.send(Box::new(move |backend| Box::pin(task(backend))));
    }

    /// Runs `call` on the thread and waits for its result. Dropping the future drops the call.
    pub(crate) async fn call<T, F>(
        &self,
        call: impl FnOnce(Arc<dyn Backend>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut answer, answered) = oneshot::channel();
        self.spawn(move |backend| async move {
            let call = call(backend);
            tokio::select! {
                biased;
                result = call => { let _ = answer.send(result); }
                () = answer.closed() => {}
            }
        });
        answered.await.map_err(|_| internal("the elector's thread has died"))?
    }
}

fn run(
    factory: Factory,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    ready: oneshot::Sender<Result<Guarantees>>,
) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().thread_keep_alive(KEEP_THREADS).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(internal("the elector's runtime cannot be started").with_source(error)));
            return;
        }
    };
    runtime.block_on(async move {
        let backend = match factory() {
            Ok(backend) => backend,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(backend.guarantees().clone()));
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                job = inbox.recv() => match job {
                    Some(job) => { tasks.spawn(job(backend.clone())); }
                    None => break,
                },
                Some(_) = tasks.join_next() => {}
            }
        }
        while tasks.join_next().await.is_some() {}
    });
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message)
}
