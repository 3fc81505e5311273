//! This peer's list of peers, and how it is changed: what was decided is put in force here, in all elections and connections at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::peers::members::{Change, Members, News};
use incumbent_core::peers::{List, Output, Protocol, Term};
use incumbent_core::{BootInstant, CandidateId, Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

use super::disk;
use super::listen::unexpected;
use super::node::{Desktop, Input};
use super::notes::Notes;
use super::roster;
use super::wire::{self, Answer, Forth, Question, Register};
use crate::clock;

/// A change that somebody asked this peer for, and who waits for it.
pub(super) struct Changing {
    change: Change,
    answer: oneshot::Sender<Result<Option<List>>>,
}

/// How long a change may take: peers must have had the list before it for a ttl, and be reached.
pub(super) fn patience(ttl: Duration) -> Duration {
    ttl * 4 + Duration::from_secs(10)
}

/// Makes a change: `None` if another one was made instead.
///
/// # Errors
/// [ambiguous](Error::is_ambiguous) where it may be made all the same.
pub(super) async fn change<M>(
    notes: &Notes,
    inputs: &mpsc::Sender<Input<M>>,
    change: Change,
) -> Result<Option<List>> {
    let base = notes.config.roster.get().list.version;
    // What a majority of the list before this one wrote must be written to a majority of this one before the next.
    for register in survey(notes, base).await? {
        notes.propose(&register, incumbent_core::peers::register::Change::Read).await?;
    }
    let (answer, answered) = oneshot::channel();
    let _ = inputs.send(Input::Propose(base, change, answer)).await;
    match tokio::time::timeout(patience(notes.config.timing.ttl), answered).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "this peer is being stopped").ambiguous(true)),
        Err(_) => {
            let text = "too few peers have taken the change in time; it may be made later: ask for it again, which tells";
            Err(Error::new(ErrorKind::TimedOut, text).ambiguous(true))
        }
    }
}

/// All notes that a majority has at which the list `base` is in force.
async fn survey(notes: &Notes, base: u64) -> Result<Vec<Register>> {
    let limit = patience(notes.config.timing.ttl);
    let listed = notes.config.roster.get();
    let mut found = notes.disk.notes().await?;
    let mut heard = usize::from(listed.members.contains_key(&notes.me));
    let links = notes.links();
    let members = links.iter().filter(|(name, _)| listed.members.contains_key(name));
    let mut answers: FuturesUnordered<_> =
        members.map(|(_, link)| link.ask(Question::Survey(base), limit)).collect();
    let end = Instant::now() + limit;
    while heard < listed.list.quorum() {
        match tokio::time::timeout_at(end, answers.next()).await {
            Ok(Some(Ok(Answer::Survey(more)))) => {
                heard += 1;
                found.extend(more);
            }
            Ok(Some(Ok(_))) => return Err(unexpected()),
            Ok(Some(Err(error))) => tracing::debug!(%error, "a peer does not tell its notes"),
            Ok(None) | Err(_) => {
                let text = format!("no majority of the peers has list {base} and answers; try again");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

impl<P: Protocol> Desktop<P> {
    /// Does something about the list, and all that follows from it.
    pub(super) fn lists(&mut self, act: impl FnOnce(BootInstant, &mut Members)) {
        let now = clock::now();
        let kept = disk::lock(&self.state).highest_term();
        let seen = self.seats.values().map(|seat| seat.protocol.term()).max().unwrap_or(Term(0));
        self.members.saw(kept.max(seen));
        if self.changing.as_ref().is_some_and(|changing| changing.answer.is_closed()) {
            self.members.withdraw();
            self.changing = None;
        }
        act(now, &mut self.members);
        while let Some(output) = self.members.poll_output() {
            match output {
                Output::Save(save) => self.notes.disk.save_list(save),
                Output::Send(envelope) => {
                    let Some(link) = self.notes.link(&envelope.to) else { continue };
                    if let Ok(frame) = wire::encode(&Forth::<P::Message>::List(envelope)) {
                        drop(link.send(frame, now + self.config.timing.ttl / 4));
                    }
                }
                Output::Event(News::Adopted(list)) => self.adopt(&list),
                Output::Event(News::Settled(_)) => {
                    if let Some(Changing { answer, .. }) = self.changing.take() {
                        let _ = answer.send(Ok(Some(self.members.list().clone())));
                    }
                }
                Output::Invalidate(_) => {}
            }
        }
    }

    pub(super) fn propose(
        &mut self,
        base: u64,
        change: Change,
        answer: oneshot::Sender<Result<Option<List>>>,
    ) {
        let mut outcome = Ok(());
        self.lists(|now, members| outcome = members.propose(now, base, &change));
        match outcome {
            Ok(()) => self.changing = Some(Changing { change, answer }),
            Err(error) => drop(answer.send(Err(error))),
        }
        // One peer alone has decided by now.
        self.lists(|_, _| {});
    }

    /// Whoever is met is asked for its list: nobody else may know of a later one.
    pub(super) fn meet(&mut self) {
        for (name, link) in self.notes.links() {
            let is_new = match link.is_up() {
                true => self.met.insert(name.clone()),
                false => {
                    self.met.remove(&name);
                    false
                }
            };
            if is_new {
                self.lists(|_, members| members.reconcile(&name, u64::MAX));
            }
        }
    }

    /// Puts a list in force.
    fn adopt(&mut self, list: &List) {
        if let Err(error) = self.config.roster.set(list) {
            return warn!(%error, "list {} of the peers cannot be put in force", list.version);
        }
        info!("list {} of the peers is in force: {}", list.version, roster::text(list));
        if let Some(behind) = self.config.behind() {
            warn!("{behind}");
        }
        let elections: Vec<_> = self.seats.keys().cloned().collect();
        for election in elections {
            let list = list.clone();
            self.touch(&election, |now, seat| seat.protocol.set_list(now, list));
        }
        self.connect();
        let made = |change: &Change| match change {
            Change::Add(name, place) => list.members.get(name) == Some(place),
            Change::Remove(name) => !list.members.contains_key(name),
        };
        if let Some(Changing { answer, .. }) = self.changing.take_if(|changing| !made(&changing.change)) {
            let _ = answer.send(Ok(None));
        }
    }

    /// Speaks with those that the list names, and until the next one with those that it does not name any more.
    pub(super) fn connect(&mut self) {
        let others: Vec<CandidateId> = self.config.roster.get().others(&self.name);
        let mut links = self.notes.links.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        links.retain(|name, _| others.contains(name));
        for name in others {
            let link = || Arc::new(super::node::link(&self.own, &name, &self.changed));
            links.entry(name.clone()).or_insert_with(link);
        }
    }
}
