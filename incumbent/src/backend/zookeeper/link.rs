//! One connection that holds the session: requests in their order, their answers, and the events that come in between.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use incumbent_core::ephemeral::Attachment;
use incumbent_core::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::dial::Io;
use super::failure;
use super::jute::{FRAME_MAX, Reader, Writer, code, op, xid};
use super::watches::{Arm, Watches};

/// What all connections of one client share.
#[derive(Default)]
pub(super) struct Seen {
    /// The latest transaction that an answer has shown.
    zxid: AtomicI64,
    pub(super) watches: Watches,
    /// A connection has ended by itself.
    pub(super) ended: Notify,
}

impl Seen {
    pub(super) fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Relaxed)
    }

    /// The store has gone back, and what was seen of it is void.
    pub(super) fn forget(&self) {
        self.zxid.store(0, Ordering::Relaxed);
    }
}

/// The answer to a request: its code and body.
pub(super) struct Answer {
    pub(super) code: i32,
    pub(super) body: Vec<u8>,
}

/// A connection that holds the session. Dropping it closes the connection and leaves the session alone.
pub(super) struct Link {
    pub(super) host: Arc<str>,
    pub(super) attachment: Attachment,
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

struct Shared {
    host: Arc<str>,
    queue: Mutex<Queue>,
    alive: AtomicBool,
    /// Fires when nothing is under way any more.
    answered: Notify,
    seen: Arc<Seen>,
}

struct Queue {
    /// The answers that are still to come, in their order.
    pending: VecDeque<Pending>,
    xid: i32,
    /// Empty once the connection has ended.
    frames: Option<UnboundedSender<Vec<u8>>>,
}

struct Pending {
    xid: i32,
    writes: bool,
    watch: Option<Arm>,
    answer: oneshot::Sender<Result<Answer>>,
}

impl Link {
    pub(super) fn new(host: Arc<str>, io: Box<dyn Io>, attachment: Attachment, seen: Arc<Seen>) -> Link {
        let (frames, outgoing) = unbounded_channel();
        let queue = Queue { pending: VecDeque::new(), xid: 0, frames: Some(frames) };
        let shared = Arc::new(Shared {
            host: Arc::clone(&host),
            queue: Mutex::new(queue),
            alive: AtomicBool::new(true),
            answered: Notify::new(),
            seen,
        });
        let (reading, writing) = tokio::io::split(io);
        let tasks = [
            tokio::spawn(read(Arc::clone(&shared), reading)).abort_handle(),
            tokio::spawn(write(Arc::clone(&shared), writing, outgoing)).abort_handle(),
        ];
        Link { host, attachment, shared, tasks }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Relaxed)
    }

    /// Sends a request now and gives its answer later. `writes` says whether it may change anything; `watch` is armed when the
    /// answer allows it.
    pub(super) fn send(
        &self,
        request: i32,
        writes: bool,
        watch: Option<Arm>,
        record: Writer,
    ) -> oneshot::Receiver<Result<Answer>> {
        let (sender, receiver) = oneshot::channel();
        let mut queue = self.shared.lock();
        // Ping and the other fixed numbers are negative.
        queue.xid = if queue.xid == i32::MAX { 1 } else { queue.xid + 1 };
        let number = match request {
            op::PING => xid::PING,
            op::SET_WATCHES => xid::SET_WATCHES,
            _ => queue.xid,
        };
        let frame = Writer::request(number, request).append(record).into_frame();
        match &queue.frames {
            Some(frames) if frames.send(frame).is_ok() => {
                queue.pending.push_back(Pending { xid: number, writes, watch, answer: sender });
            }
            _ => {
                let _ = sender.send(Err(failure::lost(&self.host, "the connection has ended", false)));
            }
        }
        receiver
    }

    /// Waits until every request was answered.
    pub(super) async fn answered(&self) {
        loop {
            let answered = self.shared.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if self.shared.lock().pending.is_empty() {
                return;
            }
            answered.await;
        }
    }

    /// The connection is of no use any more; whoever waits for an answer on it is told.
    pub(super) fn give_up(&self) {
        self.shared.end("the connection was given up");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.give_up();
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, why: &str) {
        self.alive.store(false, Ordering::Relaxed);
        let pending = {
            let mut queue = self.lock();
            queue.frames = None;
            std::mem::take(&mut queue.pending)
        };
        for Pending { writes, answer, .. } in pending {
            let _ = answer.send(Err(failure::lost(&self.host, why, writes)));
        }
        self.answered.notify_waiters();
    }

    /// # Errors
    /// What came is no answer.
    fn take(&self, frame: &[u8]) -> Result<(), Error> {
        let garbage = || failure::garbage(&self.host);
        let mut reader = Reader(frame);
        let (number, zxid, answered) =
            (|| Some((reader.int()?, reader.long()?, reader.int()?)))().ok_or_else(garbage)?;
        if number == xid::EVENT {
            let (kind, _, path) =
                (|| Some((reader.int()?, reader.int()?, reader.text()?)))().ok_or_else(garbage)?;
            self.seen.watches.fire(kind, &path);
            return Ok(());
        }
        let (pending, all) = {
            let mut queue = self.lock();
            (queue.pending.pop_front(), queue.pending.is_empty())
        };
        let pending = pending.filter(|pending| pending.xid == number);
        let Some(Pending { watch, answer, .. }) = pending else { return Err(garbage()) };
        if zxid > 0 {
            self.seen.zxid.fetch_max(zxid, Ordering::Relaxed);
        }
        if let Some(watch) = watch {
            self.seen.watches.arm(watch, answered);
        }
        if answered == code::SESSION_EXPIRED || answered == code::SESSION_MOVED {
            // Nothing that follows on this connection can succeed.
            self.alive.store(false, Ordering::Relaxed);
        }
        let _ = answer.send(Ok(Answer { code: answered, body: reader.0.to_vec() }));
        if all {
            self.answered.notify_waiters();
        }
        Ok(())
    }
}

async fn read(shared: Arc<Shared>, reading: ReadHalf<Box<dyn Io>>) {
    let mut reading = BufReader::new(reading);
    while let Some(frame) = read_frame(&mut reading).await {
        if let Err(failure) = shared.take(&frame) {
            tracing::debug!(%failure, "a connection is given up");
            break;
        }
    }
    shared.end("it closed the connection");
    shared.seen.ended.notify_one();
}

/// `None` if the connection has ended, or what came is no frame.
async fn read_frame(reading: &mut BufReader<ReadHalf<Box<dyn Io>>>) -> Option<Vec<u8>> {
    let length = reading.read_u32().await.ok()? as usize;
    if length > FRAME_MAX {
        return None;
    }
    let mut body = vec![0; length];
    reading.read_exact(&mut body).await.ok()?;
    Some(body)
}

async fn write(
    shared: Arc<Shared>,
    mut writing: WriteHalf<Box<dyn Io>>,
    mut outgoing: UnboundedReceiver<Vec<u8>>,
) {
    let mut frames = Vec::new();
    while outgoing.recv_many(&mut frames, 256).await > 0 {
        let bytes = frames.concat();
        frames.clear();
        if writing.write_all(&bytes).await.is_err() || writing.flush().await.is_err() {
            shared.end("the connection broke");
            return;
        }
    }
}
