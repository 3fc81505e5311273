//! Hints by LISTEN, on a connection of its own. Where none come through, as behind a transaction pooler, that is noticed, and whoever
//! waits for hints asks at intervals.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout};

use super::failure::Effect;
use super::link::Link;
use super::session::Session;
use super::statements::CHANNEL;
use crate::backend::sql::hints::Hints;

/// How long a notification of our own may take to come back.
const ECHO: Duration = Duration::from_secs(2);
/// The pause before a listener that failed is set up again.
const AGAIN: Duration = Duration::from_millis(500);
/// The pause before a pooler is tried once more.
const POOLER_AGAIN: Duration = Duration::from_secs(60);
/// How often a quiet listener makes sure that its connection is alive.
const ALIVE: Duration = Duration::from_secs(10);

/// Listens for ever.
pub(super) async fn run(session: Arc<Session>, hints: Arc<Hints>) {
    let mut warned = false;
    loop {
        let pause = match listen(&session, &hints).await {
            Err(failure) if failure.kind() == ErrorKind::Unsupported => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!("{failure}");
                }
                POOLER_AGAIN
            }
            Err(failure) => {
                tracing::debug!(%failure, "PostgreSQL tells nothing now");
                AGAIN
            }
            Ok(()) => AGAIN,
        };
        hints.set_pushed(false);
        tokio::time::sleep(pause).await;
    }
}

/// Passes hints on until the connection ends.
async fn listen(session: &Session, hints: &Hints) -> Result<()> {
    let mut link = session.dial().await?;
    let other = session.dial().await?;
    if backend(&link).await? == backend(&other).await? {
        return Err(pooled());
    }
    link.batch(&format!("LISTEN {CHANNEL}")).await?;
    // Sent by another session while this one is idle: a pooler has no way to pass that on.
    let number = getrandom::u64().map_err(|cause| {
        Error::new(ErrorKind::Unavailable, "the system has no random numbers").with_source(cause)
    })?;
    let echo = format!("{number:016x}/");
    other.batch(&format!("SELECT pg_notify('{CHANNEL}', '{echo}')")).await?;
    drop(other);
    let until = Instant::now() + ECHO;
    loop {
        match tokio::time::timeout_at(until, link.told.recv()).await {
            Ok(Some(payload)) if payload == echo => break,
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(_) => {
                let _ = link.batch(&format!("UNLISTEN {CHANNEL}")).await;
                return Err(pooled());
            }
        }
    }
    hints.set_pushed(true);
    // Whatever changed before this one listened.
    hints.signals.send_all();
    let prefix = format!("{}/", session.schema());
    loop {
        match timeout(ALIVE, link.told.recv()).await {
            Ok(Some(payload)) => match payload.strip_prefix(&prefix) {
                Some("") => hints.signals.send_all(),
                Some(election) => hints.signals.send(election),
                None => {}
            },
            Ok(None) => return Ok(()),
            // A host that went down without a word does not end the connection.
            Err(_) => match timeout(ALIVE, backend(&link)).await {
                Ok(alive) => drop(alive?),
                Err(_) => return Ok(()),
            },
        }
    }
}

/// The process that serves this connection now.
async fn backend(link: &Link) -> Result<i32> {
    let answer = link.query("SELECT pg_backend_pid()", &[], Effect::None).await?;
    let pid = answer.rows.first().and_then(|row| row.try_get(0).ok());
    pid.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "no answer from PostgreSQL").with_backend("postgres")
    })
}

fn pooled() -> Error {
    let text = "notifications do not come through (a transaction pooler?): standbys ask at intervals, and hand-over is slower; \
                name the server itself in the URL to be told";
    Error::new(ErrorKind::Unsupported, text).with_backend("postgres")
}
