//! The way to one other peer: a connection that is made anew whenever it breaks, with a bounded queue in front.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use incumbent_core::{BootInstant, CandidateId, Error, ErrorKind, Result};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::bytes::Bytes;
use tracing::{debug, warn};

use super::handshake::{self, Connection, Own, Unspoken};
use super::wire::{self, Answer, Back, Forth, Question};
use crate::backend::signals::Signals;
use crate::clock;

/// Frames that wait for a connection. More are not kept: the oldest goes, since the protocols bear losses and a later message says
/// more.
const QUEUE_MAX: usize = 256;
/// The first pause before a connection is tried again, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How it stands with a connection.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The first attempt is under way.
    New,
    Up,
    Down(Error),
}

impl State {
    pub(super) fn is_up(&self) -> bool {
        matches!(self, State::Up)
    }
}

/// The way to one peer. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    to: CandidateId,
    queue: Mutex<Queue>,
    wake: Notify,
    state: watch::Sender<State>,
    /// Told when the other side says that an election has changed.
    changes: Signals,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Waiting>,
    asked: BTreeMap<u64, oneshot::Sender<Result<Answer>>>,
    numbers: u64,
}

#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    /// Not sent any more after this.
    until: BootInstant,
    /// Dropped when it was sent or thrown away.
    _sent: Option<oneshot::Sender<()>>,
}

impl Link {
    /// Starts to connect, on the runtime that this is called in.
    pub(super) fn start(own: Own, to: CandidateId) -> Link {
        let shared = Arc::new(Shared {
            to,
            queue: Mutex::default(),
            wake: Notify::new(),
            state: watch::Sender::new(State::New),
            changes: Signals::default(),
        });
        let task = tokio::spawn(run(own, Arc::clone(&shared))).abort_handle();
        Link { shared, task }
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.shared.state.subscribe()
    }

    /// How it stands, once there was an attempt.
    pub(super) async fn tried(&self) -> State {
        let mut state = self.state();
        let tried = state.wait_for(|state| !matches!(state, State::New)).await;
        tried.map_or(State::New, |state| state.clone())
    }

    pub(super) fn is_up(&self) -> bool {
        self.shared.state.borrow().is_up()
    }

    /// Puts a frame into the queue, for as long as it is of use. The answer comes when it has left or is thrown away.
    pub(super) fn send(&self, frame: Bytes, until: BootInstant) -> oneshot::Receiver<()> {
        let (sent, is_sent) = oneshot::channel();
        self.shared.push(Waiting { frame, until, _sent: Some(sent) });
        is_sent
    }

    /// Asks once. Waits for the first connection, not for a later one.
    ///
    /// # Errors
    /// Why there is no connection; [ambiguous](Error::is_ambiguous) if the question may have arrived.
    pub(super) async fn ask(&self, question: Question, patience: Duration) -> Result<Answer> {
        let asked = async {
            if let State::Down(error) = self.tried().await {
                return Err(error);
            }
            let (answer, answered) = oneshot::channel();
            let number = {
                let mut queue = self.shared.lock();
                queue.numbers += 1;
                let number = queue.numbers;
                queue.asked.insert(number, answer);
                number
            };
            let _forget = Forget(&self.shared, number);
            // The messages of a protocol are not asked for, so any type does for them.
            let frame = wire::encode(&Forth::<()>::Ask { number, question })?;
            self.shared.push(Waiting { frame, until: clock::now() + patience, _sent: None });
            answered.await.unwrap_or_else(|_| Err(broken(&self.shared.to)))
        };
        tokio::time::timeout(patience, asked).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::TimedOut, format!("{} did not answer in time", self.shared.to)))
        })
    }

    /// Told of changes that the other side was asked to [watch](Question::Watch).
    pub(super) fn changes(&self) -> &Signals {
        &self.shared.changes
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Nobody waits for this answer any more.
struct Forget<'a>(&'a Shared, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.lock().asked.remove(&self.1);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, waiting: Waiting) {
        let mut queue = self.lock();
        if queue.frames.len() >= QUEUE_MAX {
            queue.frames.pop_front();
        }
        queue.frames.push_back(waiting);
        drop(queue);
        self.wake.notify_one();
    }

    /// The next frame that is still of use.
    fn pop(&self) -> Option<Waiting> {
        let now = clock::now();
        let mut queue = self.lock();
        std::iter::from_fn(|| queue.frames.pop_front()).find(|waiting| now <= waiting.until)
    }
}

fn broken(to: &CandidateId) -> Error {
    Error::new(ErrorKind::TimedOut, format!("the connection to {to} broke before the answer"))
}

async fn run(own: Own, shared: Arc<Shared>) {
    let mut pause = PAUSE.0;
    let longest = PAUSE.1.min(own.config.timing.ttl / 4).max(PAUSE.0);
    let (mut told, mut last) = (None, None);
    loop {
        let Unspoken { error, refused } = match handshake::dial(&own, &shared.to).await {
            Ok(connection) => {
                shared.state.send_replace(State::Up);
                let end = serve(connection, &shared).await;
                let (why, refused) = match end {
                    End::Lost(why) => (format!("the connection to {} is lost: {why}", shared.to), false),
                    End::Cut(why) => (format!("{} cut the connection: {why}", shared.to), true),
                };
                debug!("{why}");
                if !refused {
                    (pause, told) = (PAUSE.0, None);
                }
                Unspoken { error: own.config.error(ErrorKind::Unavailable, why), refused }
            }
            Err(unspoken) => unspoken,
        };
        // What may pass by itself, as while a process that was here before is still being buried, is told if it does not.
        let lasts = !error.is_retryable() || last.as_ref() == Some(&error);
        if refused && lasts && told.as_ref() != Some(&error) {
            warn!(%error, "a peer cannot be spoken with");
            told = Some(error.clone());
        }
        last = Some(error.clone());
        shared.state.send_replace(State::Down(error));
        // Whoever waits for an answer learns that there will be none.
        shared.lock().asked.clear();
        shared.changes.send_all();
        tokio::time::sleep(pause / 2 + jitter(pause)).await;
        pause = (pause * 2).min(longest);
    }
}

/// A random part of `span`.
pub(super) fn jitter(span: Duration) -> Duration {
    let mut bits = [0; 4];
    // Without random numbers all wait for equally long, which only makes them meet more often.
    let _ = getrandom::fill(&mut bits);
    span.mul_f64(f64::from(u32::from_ne_bytes(bits)) / f64::from(u32::MAX))
}

/// How a connection ended.
enum End {
    Lost(String),
    /// The other side said why.
    Cut(String),
}

/// Speaks until the connection breaks.
async fn serve(mut connection: Connection, shared: &Shared) -> End {
    loop {
        tokio::select! {
            biased;
            frame = connection.next() => {
                let frame = match frame {
                    Some(Ok(frame)) => frame,
                    Some(Err(error)) => return End::Lost(error.to_string()),
                    None => return End::Lost("it was closed".to_owned()),
                };
                match wire::decode::<Back>(&frame) {
                    Ok(Back::Answer { number, answer }) => {
                        if let Some(asked) = shared.lock().asked.remove(&number) {
                            let _ = asked.send(answer.map_err(Error::from));
                        }
                    }
                    Ok(Back::Changed(election)) => shared.changes.send(election.as_str()),
                    Ok(Back::Cut(why)) => return End::Cut(why),
                    Err(error) => return End::Lost(error.to_string()),
                }
            }
            () = shared.wake.notified() => {
                let mut sent = Vec::new();
                while let Some(waiting) = shared.pop() {
                    if let Err(error) = connection.feed(waiting.frame.clone()).await {
                        return End::Lost(error.to_string());
                    }
                    sent.push(waiting);
                }
                if let Err(error) = SinkExt::<Bytes>::flush(&mut connection).await {
                    return End::Lost(error.to_string());
                }
            }
        }
    }
}
