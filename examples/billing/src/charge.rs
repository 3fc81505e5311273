//! The work of a leader: charge every subscription that was not charged yet.

use std::path::Path;
use std::thread;
use std::time::Duration;

use incumbent::fence::sql::{Dialect, SqlFence};
use incumbent::{Checkpoint, ErrorKind, Leadership, blocking};

use crate::gate::Gate;
use crate::ledger::{Booking, Ledger};

/// Subscriptions in one transaction.
pub const BATCH: usize = 25;

/// Any error of the work.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// How the work of a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All are charged.
    Done,
    /// It was told to stop and has finished what was under way.
    Stopped,
}

/// Charges until all are charged, the term is told to stop, or is over.
///
/// # Errors
/// The term is over, the fence refused, or the ledger or the store failed.
pub fn charge(leadership: &Leadership, path: &Path, fenced: bool, gate: Gate) -> Result<End, Error> {
    let ledger = Ledger::open(path)?;
    let mark = leadership.mark()?;
    let fence = fenced.then(|| SqlFence::new(Dialect::Sqlite, leadership.election().as_str()));
    if let Some(fence) = &fence {
        // Raised before anything is read: from here on no earlier leader adds a charge that we have not seen.
        let mut booking = begin(&ledger, leadership, gate)?;
        fence.admit(&mut booking, &mark)?;
        booking.commit()?;
    }

    let checkpoint = leadership.checkpoint();
    let mut last: i64 = match read(&checkpoint, leadership, gate)? {
        Some(left) => std::str::from_utf8(&left)
            .ok()
            .and_then(|last| last.parse().ok())
            .ok_or("the checkpoint of this election is not the number of a subscription")?,
        None => 0,
    };
    gate.say(format_args!("from {last}"));
    loop {
        let batch = ledger.uncharged(last, BATCH)?;
        let (Some(first), Some(end)) = (batch.first(), batch.last()) else { return Ok(End::Done) };
        if leadership.is_stopping().is_some() {
            return Ok(End::Stopped);
        }
        leadership.check()?;
        // A process that freezes here believes, when it wakes up, that it may write. Only the fence knows better.
        gate.pass(format_args!("before {} {}", first.id, end.id));
        let mut booking = begin(&ledger, leadership, gate)?;
        if let Some(fence) = &fence {
            fence.admit(&mut booking, &mark)?;
        }
        for subscription in &batch {
            booking.charge(*subscription, mark.token.0, leadership.id().as_str())?;
        }
        // One that freezes here keeps the ledger locked: its successor waits, and then sees these charges.
        gate.pass(format_args!("inside {} {}", first.id, end.id));
        booking.commit()?;
        gate.say(format_args!("charged {} {}", first.id, end.id));
        last = end.id;
        match blocking::wait(checkpoint.put(last.to_string().as_bytes())) {
            Err(error) if matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Fenced) => {
                return Err(error.into());
            }
            // The ledger knows what is charged; a checkpoint that lags behind costs its reader some time only.
            Err(_) | Ok(()) => {}
        }
    }
}

/// Reads the checkpoint, and goes on trying as long as the term lasts.
fn read(checkpoint: &Checkpoint, leadership: &Leadership, gate: Gate) -> Result<Option<Vec<u8>>, Error> {
    loop {
        match blocking::wait(checkpoint.get()) {
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable) => {
                leadership.check()?;
                gate.say(format_args!("waiting for the checkpoint: {error}"));
                thread::sleep(Duration::from_millis(100));
            }
            answered => return Ok(answered?),
        }
    }
}

/// Waits for the ledger as long as the term lasts.
fn begin<'a>(ledger: &'a Ledger, leadership: &Leadership, gate: Gate) -> Result<Booking<'a>, Error> {
    let mut said = false;
    loop {
        if let Some(booking) = ledger.begin()? {
            return Ok(booking);
        }
        leadership.check()?;
        if !said {
            gate.say(format_args!("waiting for the ledger"));
            said = true;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
