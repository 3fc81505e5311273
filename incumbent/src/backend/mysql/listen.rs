//! Hints, on connections of their own: one looks at the records of all elections that somebody waits for, at intervals and when a bell
//! rings; one holds our bell once this process has led; and one waits at each bell that the records name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{Error, ErrorKind, Result};
use mysql_async::prelude::FromValue;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::link::{Answer, Link};
use super::session::Session;
use super::statements;
use crate::backend::sql::hints::Hints;

/// The pause before a connection that failed is made again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long after a win our bell is hung up.
const AFTER_WIN: Duration = Duration::from_millis(100);
/// How long the server may take for an answer that it could give at once.
const ALIVE: Duration = Duration::from_secs(10);
/// How long a lock is waited for before it is asked for anew.
const WAIT: Duration = Duration::from_secs(10);
/// The longest pause before a bell that nobody holds is tried again.
const SILENT: Duration = Duration::from_secs(1);
/// The most bells that are waited for; of other elections one hears when they are looked at.
const BELLS: usize = 4;
/// The most elections that are looked at with one statement.
const AT_ONCE: usize = 500;
/// After a bell has rung, who takes over does so soon: the pauses between looks, the first one last.
const SOON: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(100), Duration::from_millis(20)];

/// Listens for ever.
pub(super) async fn run(session: Arc<Session>, hints: Arc<Hints>) {
    tokio::join!(look(&session, &hints), hang(&session), hear(&session, &hints));
}

async fn look(session: &Session, hints: &Hints) {
    loop {
        if let Err(failure) = look_on(session, hints).await {
            tracing::debug!(%failure, "MySQL tells nothing now");
        }
        hints.set_pushed(false);
        sleep(AGAIN).await;
    }
}

/// Compares what each record is like with what it was like before.
async fn look_on(session: &Session, hints: &Hints) -> Result<()> {
    let mut link = session.dial().await?;
    hints.set_pushed(true);
    // Whatever changed before this one looked.
    hints.signals.send_all();
    let (mut known, mut pauses) = (BTreeMap::new(), Vec::new());
    loop {
        let elections = hints.signals.elections();
        let mut now = BTreeMap::new();
        for some in elections.chunks(AT_ONCE) {
            let answers = ask(&mut link, &statements::digest(some), ALIVE).await?;
            now.extend(some.iter().map(|election| (election.clone(), BTreeMap::new())));
            for row in answers.iter().flat_map(|answer| &answer.rows) {
                let election: Option<String> = row.get_opt(0).and_then(|value| value.ok());
                let note: Option<String> = row.get_opt(1).and_then(|value| value.ok());
                let sum: Option<u64> = row.get_opt(2).and_then(|value| value.ok());
                if let Some(notes) = election.and_then(|election| now.get_mut(&election)) {
                    notes.insert(note.unwrap_or_default(), sum);
                }
            }
        }
        for (election, like) in &now {
            if known.get(election) != Some(like) {
                hints.signals.send(election);
            }
        }
        known = now;
        let pause = pauses.pop().unwrap_or(hints.poll).min(hints.poll);
        tokio::select! {
            () = sleep(pause) => {}
            () = session.bells.look.notified() => pauses = SOON.to_vec(),
        }
    }
}

async fn hang(session: &Session) {
    let mut rings = session.bells.rings();
    while rings.wait_for(Option::is_some).await.is_ok() {
        // Right after a win the command starts, and goes first.
        sleep(AFTER_WIN).await;
        if let Err(failure) = hang_on(session).await {
            tracing::debug!(%failure, "nobody who waits is told by a lock");
        }
        sleep(AGAIN).await;
    }
}

/// Holds our bell, and rings it.
async fn hang_on(session: &Session) -> Result<()> {
    let (bell, seconds) = (&session.bells.own, WAIT.as_secs());
    let mut rings = session.bells.rings();
    let mut link = session.dial().await?;
    let mut held = false;
    loop {
        let sql = match held {
            true => statements::ring(bell, seconds),
            false => statements::hang(bell, seconds),
        };
        rings.mark_unchanged();
        let answers = ask(&mut link, &sql, WAIT + ALIVE).await?;
        match number(answers.last(), 0) {
            Some(1) => held = true,
            Some(0) => continue,
            // As on a Galera cluster.
            _ => return Err(Error::new(ErrorKind::Unsupported, "there are no locks here")),
        }
        while timeout(ALIVE, rings.changed()).await.is_err() {
            ask(&mut link, "DO 1", ALIVE).await?;
        }
    }
}

async fn hear(session: &Arc<Session>, hints: &Arc<Hints>) {
    let mut tasks = JoinSet::new();
    let mut ears: BTreeMap<String, AbortHandle> = BTreeMap::new();
    loop {
        let bells = session.bells.of(&hints.signals.elections(), BELLS);
        ears.retain(|bell, ear| {
            let wanted = bells.contains_key(bell);
            if !wanted {
                ear.abort();
            }
            wanted
        });
        for bell in bells.into_keys() {
            ears.entry(bell.clone()).or_insert_with(|| {
                let (session, hints) = (Arc::clone(session), Arc::clone(hints));
                tasks.spawn(async move {
                    loop {
                        if let Err(failure) = hear_one(&session, &hints, &bell).await {
                            tracing::debug!(%failure, "a lock cannot be waited for");
                        }
                        sleep(AGAIN).await;
                    }
                })
            });
        }
        while tasks.try_join_next().is_some() {}
        // Nobody tells when the last one who waits for an election has gone.
        let pause = if ears.is_empty() { ALIVE } else { hints.poll };
        let _ = timeout(pause, session.bells.changed.notified()).await;
    }
}

/// Waits for one bell, again and again.
async fn hear_one(session: &Session, hints: &Hints, bell: &str) -> Result<()> {
    let mut link = session.dial().await?;
    let sql = statements::hear(bell, WAIT.as_secs());
    let mut pause = Duration::ZERO;
    loop {
        let answers = ask(&mut link, &sql, WAIT + ALIVE).await?;
        let answer = answers.first();
        match number(answer, 1) {
            Some(1) => {}
            Some(0) => {
                pause = Duration::ZERO;
                continue;
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "there are no locks here")),
        }
        // By the server's word: how long the answer took says nothing on a slow network.
        let free = number(answer, 0) == Some(1);
        if !free || pause.is_zero() {
            session.bells.elections(bell).iter().for_each(|election| hints.signals.send(election));
            session.bells.look.notify_one();
        }
        // Its process is gone, or has not hung it up yet.
        pause = if free { (pause * 2).clamp(Duration::from_millis(20), SILENT) } else { Duration::ZERO };
        sleep(pause).await;
    }
}

async fn ask(link: &mut Link, sql: &str, limit: Duration) -> Result<Vec<Answer>> {
    match timeout(limit, link.query(sql, false)).await {
        Ok(answers) => Ok(answers?),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("no answer within {limit:?}"))),
    }
}

/// The number in a column of an answer's one row.
fn number(answer: Option<&Answer>, column: usize) -> Option<i64> {
    let value = answer?.rows.first()?.as_ref(column)?.clone();
    Option::<i64>::from_value_opt(value).ok().flatten()
}
