//! The thread that writes a peer's state: an fsync never keeps the peer from anything else.
//!
//! What is to be written while it writes goes into the next write, all of it together.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use incumbent_core::peers::members::Membership;
use incumbent_core::peers::register::{Ask, Reply};
use incumbent_core::peers::{Durable, Proof, Save};
use incumbent_core::{CandidateId, ElectionName, Error, ErrorKind, Nonce, Result};
use tokio::sync::oneshot;
use tracing::warn;

use super::state::{Folder, State};
use super::wire::Register;

/// How soon a write that failed is tried again, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

enum Job {
    Save(ElectionName, Durable, Save),
    Know(CandidateId, Nonce, oneshot::Sender<Result<Nonce>>),
    Note(Register, Ask, oneshot::Sender<Result<Reply>>),
    Notes(oneshot::Sender<Result<Vec<Register>>>),
    List(Box<Membership>, Save<Membership>),
}

/// What the thread tells of the votes that it was given.
#[derive(Debug)]
pub(super) enum Written {
    /// It is durable.
    Vote(ElectionName, Proof),
    /// So is this, of the list of peers.
    List(Proof),
    /// It cannot be written for now; `None`: it works again.
    Trouble(Option<Error>),
}

/// A way to the thread, which ends when the last one is dropped and all is written.
#[derive(Clone)]
pub(super) struct Disk(Sender<Job>);

impl Disk {
    /// Starts the thread on a folder with this state, to which it adds what it is given.
    pub(super) fn start(
        folder: Folder,
        state: Arc<Mutex<State>>,
        tell: impl Fn(Written) + Send + 'static,
    ) -> Result<(Disk, std::thread::JoinHandle<()>)> {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("incumbent-state".to_owned())
            .spawn(move || run(&folder, &state, &inbox, &tell))
            .map_err(|error| {
                Error::new(ErrorKind::Internal, "the thread that writes the state cannot be started")
                    .with_source(error)
            })?;
        Ok((Disk(jobs), thread))
    }

    /// Makes a vote durable; the proof comes by `tell`. Until then it is tried again and again.
    pub(super) fn save(&self, election: ElectionName, save: Save) {
        // Looks at the state without having done anything with it.
        if let Err((save, durable)) = save.with(|durable| Err(durable.clone())) {
            let _ = self.0.send(Job::Save(election, durable, save));
        }
    }

    /// Makes the list of peers durable, as a vote.
    pub(super) fn save_list(&self, save: Save<Membership>) {
        if let Err((save, membership)) = save.with(|membership| Err(Box::new(membership.clone()))) {
            let _ = self.0.send(Job::List(membership, save));
        }
    }

    /// Which notes stand here, once all is written that was asked before.
    pub(super) async fn notes(&self) -> Result<Vec<Register>> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Job::Notes(answer));
        answered.await.map_err(|_| ended())?
    }

    /// Remembers a member, unless one of that name is remembered. Which one it is then.
    pub(super) async fn know(&self, name: CandidateId, nonce: Nonce) -> Result<Nonce> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Job::Know(name, nonce, answer));
        answered.await.map_err(|_| ended())?
    }

    /// Asks this peer's own part of a note.
    pub(super) async fn note(&self, register: Register, ask: Ask) -> Result<Reply> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Job::Note(register, ask, answer));
        answered.await.map_err(|_| ended())?
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "this peer is being stopped")
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(folder: &Folder, state: &Mutex<State>, inbox: &Receiver<Job>, tell: &(impl Fn(Written) + Send)) {
    while let Ok(first) = inbox.recv() {
        let (mut saves, mut meetings, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(inbox.try_iter()) {
            match job {
                Job::Save(election, durable, save) => {
                    lock(state).set(election.clone(), &durable);
                    saves.push((election, save));
                }
                Job::List(membership, save) => {
                    lock(state).membership = Some(*membership);
                    lists.push(save);
                }
                Job::Notes(answer) => {
                    let _ = answer.send(folder.notes());
                }
                Job::Know(name, nonce, answer) => meetings.push((name, nonce, answer)),
                Job::Note(register, ask, answer) => {
                    let _ = answer.send(note(folder, &register, ask));
                }
            }
        }
        if saves.is_empty() && meetings.is_empty() && lists.is_empty() {
            continue;
        }
        for (name, nonce, _) in &meetings {
            lock(state).known.entry(name.clone()).or_insert(*nonce);
        }
        let written = write(folder, state, saves.is_empty() && lists.is_empty(), tell);
        for (name, nonce, answer) in meetings {
            let known = lock(state).known.get(&name).copied().unwrap_or(nonce);
            if written.is_err() && known == nonce {
                // It is not remembered, so it was not met.
                lock(state).known.remove(&name);
            }
            let _ = answer.send(written.clone().map(|()| known));
        }
        for save in lists {
            match save.with(|_| written.clone()) {
                Ok(proof) => tell(Written::List(proof)),
                Err((_, error)) => tell(Written::Trouble(Some(error))),
            }
        }
        for (election, save) in saves {
            match save.with(|_| written.clone()) {
                Ok(proof) => tell(Written::Vote(election, proof)),
                Err((_, error)) => tell(Written::Trouble(Some(error))),
            }
        }
    }
}

/// Votes are written until it works: who has said that it votes can only wait.
fn write(folder: &Folder, state: &Mutex<State>, once: bool, tell: &(impl Fn(Written) + Send)) -> Result<()> {
    let mut pause = RETRY.0;
    let mut failed = false;
    loop {
        let bytes = lock(state).encode();
        match bytes.and_then(|bytes| folder.write_state(&bytes)) {
            Err(error) if !once => {
                if !failed {
                    warn!(%error, "this peer takes no part until its state can be written");
                }
                failed = true;
                tell(Written::Trouble(Some(error)));
                std::thread::sleep(pause);
                pause = (pause * 2).min(RETRY.1);
            }
            outcome => {
                if failed {
                    tell(Written::Trouble(None));
                }
                return outcome;
            }
        }
    }
}

fn note(folder: &Folder, register: &Register, ask: Ask) -> Result<Reply> {
    let mut acceptor = folder.read_note(register)?;
    let (reply, changed) = acceptor.handle(ask);
    if changed {
        folder.write_note(register, &acceptor)?;
    }
    Ok(reply)
}
