//! Those who have connected to this peer: other members, and those who ask.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{SplitSink, StreamExt};
use futures_util::{FutureExt, SinkExt};
use incumbent_core::peers::register::{Change, Outcome};
use incumbent_core::{BootInstant, CandidateId, ElectionName, Error, ErrorKind, Nonce, Result};
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::bytes::Bytes;
use tracing::{debug, warn};

use super::handshake::{self, Badge, Caller, Connection, Own, Refused};
use super::membership;
use super::node::Input;
use super::notes::Notes;
use super::wire::{self, Answer, Back, Failure, Forth, Question};
use crate::clock;

/// Handshakes at a time; more connections are closed at once.
const STRANGERS_MAX: usize = 64;
/// Connections at a time.
const GUESTS_MAX: usize = 1024;
/// Questions of one connection that are under way; who asks more is no peer.
const QUESTIONS_MAX: usize = 1024;
/// At most one line about bad connections in this time, and one that says the same as one before.
const LINE_EVERY: Duration = Duration::from_secs(1);
const SAME_EVERY: Duration = Duration::from_secs(60);
/// So many lines are remembered.
const LINES_KEPT: usize = 16;
/// How long somebody may take to hear why the connection is cut.
const FAREWELL: Duration = Duration::from_secs(1);

/// What all connections share.
pub(super) struct Desk<M> {
    pub(super) own: Own,
    pub(super) notes: Arc<Notes>,
    pub(super) inputs: mpsc::Sender<Input<M>>,
    pub(super) guests: Mutex<BTreeMap<CandidateId, Guest>>,
    pub(super) lines: Lines,
}

/// The process that is connected as a member.
pub(super) struct Guest {
    run: Nonce,
    from: IpAddr,
    /// Shared by its connections.
    heard: Arc<Heard>,
}

/// When a process was heard last.
pub(super) struct Heard {
    at_nanos: AtomicU64,
    /// Another process has taken its place since.
    replaced: AtomicBool,
}

impl Heard {
    fn touch(&self) {
        self.at_nanos.store(clock::now().as_nanos(), Ordering::Relaxed);
    }

    fn at(&self) -> BootInstant {
        BootInstant::from_nanos(self.at_nanos.load(Ordering::Relaxed))
    }
}

/// Lines for the log, which somebody who connects again and again must not fill.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// What was told last, and when.
    latest: VecDeque<(String, BootInstant)>,
    left_out: u32,
}

impl Lines {
    /// Tells why somebody is not spoken with, after `who` it is.
    pub(super) fn warn(&self, who: &str, why: &str) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        let same = told.latest.iter().any(|(last, at)| last == why && now < *at + SAME_EVERY);
        if same || told.latest.back().is_some_and(|(_, at)| now < *at + LINE_EVERY) {
            told.left_out += 1;
            return;
        }
        told.latest.retain(|(last, _)| last != why);
        if told.latest.len() == LINES_KEPT {
            told.latest.pop_front();
        }
        told.latest.push_back((why.to_owned(), now));
        match std::mem::take(&mut told.left_out) {
            0 => warn!("{who}{why}"),
            others => warn!("{who}{why}; {others} other lines were left out"),
        }
    }
}

impl<M: DeserializeOwned + Send + 'static> Desk<M> {
    /// Takes connections until it is dropped.
    pub(super) async fn listen(self: Arc<Self>, listener: TcpListener) {
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        let guests = Arc::new(Semaphore::new(GUESTS_MAX));
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let (tcp, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.lines.warn("no connection can be taken: ", &error.to_string());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (Ok(stranger), Ok(guest)) =
                (Arc::clone(&strangers).try_acquire_owned(), Arc::clone(&guests).try_acquire_owned())
            else {
                self.lines.warn("a connection is closed: ", "there are too many");
                continue;
            };
            let desk = Arc::clone(&self);
            tasks.spawn(async move {
                let _guest = guest;
                let outcome = desk.welcome(tcp, from).await;
                drop(stranger);
                match outcome {
                    Ok(caller) => desk.serve(caller).await,
                    Err(why) => desk.lines.warn(&format!("a connection from {from} is cut: "), &why),
                }
            });
        }
    }

    async fn welcome(&self, tcp: TcpStream, from: SocketAddr) -> core::result::Result<Caller, String> {
        handshake::accept(&self.own, tcp, |badge, trial| self.admit(badge, from.ip(), trial)).await
    }

    /// One process at a time is a member: two that use copies of one state would vote twice.
    fn admit(&self, badge: &Badge, from: IpAddr, trial: bool) -> core::result::Result<(), Refused> {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        let other = guests.get(&badge.name).filter(|guest| guest.run != badge.run);
        if let Some(Guest { from, heard, .. }) = other
            && Arc::strong_count(heard) > 1
            && clock::now() < heard.at() + self.own.config.timing.ttl
        {
            return Err(Refused::for_now(format!(
                "another process at {from} is {name} as well: both use one state or copies of it, and would vote twice; stop one of them, and if both machines are needed, make a state of its own for one, under another name, with incumbent peer init --join",
                name = badge.name
            )));
        }
        if trial {
            return Ok(());
        }
        if let Some(other) = other {
            other.heard.replaced.store(true, Ordering::Relaxed);
            guests.remove(&badge.name);
        }
        guests.entry(badge.name.clone()).or_insert_with(|| {
            let heard = Heard { at_nanos: AtomicU64::new(0), replaced: AtomicBool::new(false) };
            heard.touch();
            Guest { run: badge.run, from, heard: Arc::new(heard) }
        });
        Ok(())
    }

    async fn serve(self: Arc<Self>, Caller { connection, badge }: Caller) {
        let heard = badge.as_ref().and_then(|badge| {
            let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
            guests.get(&badge.name).map(|guest| Arc::clone(&guest.heard))
        });
        let (sink, mut stream) = connection.split();
        let (out, outbox) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        // Of its own, so that an answer that nobody takes keeps nobody from being heard.
        let mut writer = JoinSet::new();
        writer.spawn(write(sink, outbox));
        let (cut, mut cuts) = mpsc::channel(1);
        loop {
            let frame = tokio::select! {
                biased;
                Some(why) = cuts.recv() => Some(Err(std::io::Error::other(why))),
                frame = stream.next() => frame,
            };
            let Some(frame) = frame else { break };
            while tasks.try_join_next().is_some() {}
            let understood = match (frame, &heard) {
                (_, Some(heard)) if heard.replaced.load(Ordering::Relaxed) => {
                    Err("another process is this peer now".to_owned())
                }
                (Ok(frame), _) => wire::decode::<Forth<M>>(&frame).map_err(|error| error.to_string()),
                (Err(error), _) => Err(error.to_string()),
            };
            if let Some(heard) = &heard {
                heard.touch();
            }
            let outcome = match understood {
                Ok(Forth::Say(say)) => match &badge {
                    Some(badge) if say.envelope.from == badge.name => self
                        .inputs
                        .send(Input::Said(say, cut.clone()))
                        .await
                        .map_err(|_| "it is over".to_owned()),
                    _ => Err("it speaks for another peer".to_owned()),
                },
                Ok(Forth::List(envelope)) => match &badge {
                    Some(badge) if envelope.from == badge.name => {
                        self.inputs.send(Input::List(envelope)).await.map_err(|_| "it is over".to_owned())
                    }
                    _ => Err("it speaks for another peer".to_owned()),
                },
                Ok(Forth::Ask { .. }) if tasks.len() > QUESTIONS_MAX => Err("it asks too much".to_owned()),
                Ok(Forth::Ask { question: Question::Register(..) | Question::Survey(_), .. })
                    if badge.is_none() =>
                {
                    Err("it asks what only a member may".to_owned())
                }
                Ok(Forth::Ask { number, question: Question::Watch(election) }) => {
                    tasks.spawn(Arc::clone(&self).watch(number, election, out.clone()));
                    Ok(())
                }
                Ok(Forth::Ask { number, question }) => {
                    let (desk, out) = (Arc::clone(&self), out.clone());
                    tasks.spawn(async move {
                        let answer = desk.answer(question).await.map_err(|error| Failure::from(&error));
                        if let Ok(frame) = wire::encode(&Back::Answer { number, answer }) {
                            let _ = out.send(frame).await;
                        }
                    });
                    Ok(())
                }
                Err(why) => Err(why),
            };
            if let Err(why) = outcome {
                let who = badge.as_ref().map_or("somebody who asks", |badge| badge.name.as_str());
                self.lines.warn(&format!("the connection from {who} is cut: "), &why);
                tasks.shutdown().await;
                let farewell = async move {
                    if let Ok(frame) = wire::encode(&Back::Cut(why)) {
                        let _ = out.send(frame).await;
                    }
                    drop(out);
                    writer.join_next().await;
                };
                let _ = tokio::time::timeout(FAREWELL, farewell).await;
                return;
            }
        }
        debug!(peer = ?badge.map(|badge| badge.name), "a connection was closed");
    }

    async fn answer(&self, question: Question) -> Result<Answer> {
        match question {
            Question::Look(election) => {
                let (answer, answered) = oneshot::channel();
                let _ = self.inputs.send(Input::Look(election, answer)).await;
                answered
                    .await
                    .map(Answer::Look)
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "this peer is being stopped"))
            }
            Question::Watch(_) => Ok(Answer::Watching),
            Question::Register(list, register, ask) => {
                self.notes.answer(list, register, ask).await.map(Answer::Register)
            }
            Question::Survey(list) => self.notes.survey(list).await.map(Answer::Survey),
            Question::List => {
                let (answer, answered) = oneshot::channel();
                let _ = self.inputs.send(Input::TellList(answer)).await;
                answered
                    .await
                    .map(|(list, awaited)| Answer::List(list, awaited))
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "this peer is being stopped"))
            }
            Question::Change(change) => {
                membership::change(&self.notes, &self.inputs, change).await.map(Answer::Changed)
            }
            Question::Read(register) => match self.notes.propose(&register, Change::Read).await? {
                Outcome::Read(found) => {
                    Ok(Answer::Read(found.map(|entry| (entry.version, entry.token, entry.body))))
                }
                _ => Err(unexpected()),
            },
            Question::Swap { register, expected, token, body } => {
                match self.notes.propose(&register, Change::Swap { expected, token, body }).await? {
                    Outcome::Swapped(version) => Ok(Answer::Swapped(Some(version))),
                    Outcome::Conflict => Ok(Answer::Swapped(None)),
                    Outcome::Unknown => Err(unknown()),
                    Outcome::Read(_) => Err(unexpected()),
                }
            }
        }
    }

    /// Tells of every change until the connection ends.
    async fn watch(self: Arc<Self>, number: u64, election: ElectionName, out: mpsc::Sender<Bytes>) {
        let mut changes = self.notes.signals.subscribe(election.as_str());
        let Ok(frame) = wire::encode(&Back::Answer { number, answer: Ok(Answer::Watching) }) else { return };
        let Ok(changed) = wire::encode(&Back::Changed(election)) else { return };
        let mut next = Some(frame);
        while let Some(frame) = next {
            if out.send(frame).await.is_err() {
                return;
            }
            next = changes.next().map(|change| change.map(|_| changed.clone())).await;
        }
    }
}

/// Others have written since, so nobody can tell any more.
pub(super) fn unknown() -> Error {
    Error::new(
        ErrorKind::TimedOut,
        "others have written the note meanwhile; this write may have been done before them",
    )
}

pub(super) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "a note was answered by something else")
}

async fn write(mut sink: SplitSink<Connection, Bytes>, mut outbox: mpsc::Receiver<Bytes>) {
    while let Some(frame) = outbox.recv().await {
        if sink.feed(frame).await.is_err() {
            return;
        }
        while let Ok(frame) = outbox.try_recv() {
            if sink.feed(frame).await.is_err() {
                return;
            }
        }
        if sink.flush().await.is_err() {
            return;
        }
    }
}
