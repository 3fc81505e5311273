//! Asking the peers without being one of them, or beside being one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::peers::List;
use incumbent_core::peers::members::{Awaited, Change};
use incumbent_core::peers::register::{Change as NoteChange, Outcome};
use incumbent_core::{BoxStream, CandidateId, ElectionName, Error, ErrorKind, Observation, Result};
use tokio::time::Instant;

use super::config::Config;
use super::handshake::Own;
use super::link::{Link, State};
use super::listen::unexpected;
use super::membership;
use super::node::no_majority;
use super::wire::{Answer, Notice, Question, Register};

/// A way to each of the peers. Belongs to the runtime that it was made in.
#[derive(Debug)]
pub(super) struct Asker {
    config: Arc<Config>,
    links: Mutex<BTreeMap<CandidateId, Arc<Link>>>,
}

impl Asker {
    pub(super) fn new(config: Arc<Config>) -> Asker {
        let asker = Asker { config, links: Mutex::default() };
        asker.connect();
        asker
    }

    /// Has a way to each peer of the list.
    fn connect(&self) {
        let listed = self.config.roster.get();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|name, _| listed.members.contains_key(name));
        for name in listed.members.keys() {
            let own = || Own { config: Arc::clone(&self.config), member: None, trial: false };
            let link = || Arc::new(Link::start(own(), name.clone()));
            links.entry(name.clone()).or_insert_with(link);
        }
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Asks the peers for their list, which may be later than the URL's.
    pub(super) async fn refresh(&self) -> Result<()> {
        let patience = self.config.patience().max(Duration::from_millis(500));
        let links = self.links();
        let mut answers: FuturesUnordered<_> =
            links.iter().map(|link| link.ask(Question::List, patience)).collect();
        let mut end = Instant::now() + patience;
        let mut latest: Option<List> = None;
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, answers.next()).await {
            if let Ok(Answer::List(list, _)) = answer {
                end = end.min(Instant::now() + patience / 8);
                if latest.as_ref().is_none_or(|latest| list.version > latest.version) {
                    latest = Some(list);
                }
            }
        }
        if let Some(list) = latest.filter(|list| list.version > self.config.roster.get().list.version) {
            self.config.roster.set(&list)?;
        }
        self.connect();
        Ok(())
    }

    /// Has a member change the list, and tells what that waits for. `None`: another change was made instead.
    pub(super) async fn change(
        &self,
        change: Change,
        mut waits: impl FnMut(&Awaited),
    ) -> Result<Option<List>> {
        self.refresh().await?;
        let limit = membership::patience(self.config.timing.ttl) * 3;
        let mut failures = Vec::new();
        for link in self.links() {
            let asked = link.ask(Question::Change(change.clone()), limit);
            let tell = async {
                let mut last = None;
                loop {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    if let Ok(Answer::List(_, Some(awaited))) =
                        link.ask(Question::List, self.config.patience()).await
                        && last.as_ref() != Some(&awaited)
                    {
                        waits(&awaited);
                        last = Some(awaited);
                    }
                }
            };
            let answer = tokio::select! {
                answer = asked => answer,
                () = tell => return Err(unexpected()),
            };
            match answer {
                Ok(Answer::Changed(changed)) => return Ok(changed),
                Ok(_) => return Err(unexpected()),
                // It may be made, or is refused by a member that knows.
                Err(error) if error.is_ambiguous() => return Err(error),
                Err(error) if matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::NotFound) => {
                    return Err(error);
                }
                Err(error) => failures.push(error),
            }
        }
        let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(self.config.error(ErrorKind::Unavailable, text))
    }

    /// Who leads and who stands, as a majority tells.
    pub(super) async fn look(&self, election: &ElectionName) -> Result<Observation> {
        self.refresh().await?;
        let patience = self.config.patience().max(Duration::from_millis(500));
        let links = self.links();
        let mut answers: FuturesUnordered<_> =
            links.iter().map(|link| link.ask(Question::Look(election.clone()), patience)).collect();
        let (mut notices, mut heard, mut failures) = (Vec::new(), 0, Vec::new());
        let mut end = Instant::now() + patience;
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, answers.next()).await {
            match answer {
                Ok(Answer::Look(notice)) => {
                    heard += 1;
                    notices.extend(notice);
                }
                Ok(_) => failures.push(unexpected()),
                Err(error) => failures.push(error),
            }
            if heard >= self.config.quorum() && notices.iter().any(|notice| notice.leads.is_some()) {
                // The others are only waited for because candidates may stand there.
                end = end.min(Instant::now() + patience / 8);
            }
        }
        if heard < self.config.quorum() {
            return Err(no_majority(&self.config, heard, &failures));
        }
        Ok(observation(notices))
    }

    /// Has one of the peers read or change a note.
    pub(super) async fn note(&self, register: &Register, change: NoteChange) -> Result<Outcome> {
        self.refresh().await?;
        // A peer gives up by itself before this.
        let patience = self.config.timing.ttl.clamp(Duration::from_secs(2), Duration::from_secs(6));
        let mut failures = Vec::new();
        for link in self.links() {
            let question = match &change {
                NoteChange::Read => Question::Read(register.clone()),
                NoteChange::Swap { expected, token, body } => Question::Swap {
                    register: register.clone(),
                    expected: *expected,
                    token: *token,
                    body: body.clone(),
                },
            };
            match link.ask(question, patience).await {
                Ok(Answer::Read(found)) if matches!(change, NoteChange::Read) => {
                    return Ok(Outcome::Read(found.map(|(version, token, body)| {
                        incumbent_core::peers::register::Entry {
                            version,
                            token,
                            body,
                            writer: incumbent_core::Nonce(0),
                        }
                    })));
                }
                Ok(Answer::Swapped(Some(version))) => return Ok(Outcome::Swapped(version)),
                Ok(Answer::Swapped(None)) => return Ok(Outcome::Conflict),
                Ok(_) => failures.push(unexpected()),
                // A read that was lost can be repeated, a write may have been done.
                Err(error) if error.is_ambiguous() && !matches!(change, NoteChange::Read) => {
                    return Err(error);
                }
                Err(error) => failures.push(error),
            }
        }
        let text = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let kind =
            failures.iter().find(|error| !error.is_retryable()).map_or(ErrorKind::Unavailable, Error::kind);
        Err(self.config.error(kind, text))
    }

    /// The changes of which the first peer tells that can be reached. Ends with that connection.
    pub(super) fn watch<'a>(&'a self, election: &'a ElectionName) -> BoxStream<'a, Result<()>> {
        let first = async move {
            for link in self.links() {
                let changes = link.changes().subscribe(election.as_str());
                let mut state = link.state();
                let question = Question::Watch(election.clone());
                if let Ok(Answer::Watching) = link.ask(question, self.config.patience()).await {
                    let lost = async move {
                        let _ = state.wait_for(|state| !matches!(state, State::Up)).await;
                    };
                    return changes.take_until(Box::pin(lost)).left_stream();
                }
            }
            futures_util::stream::empty().right_stream()
        };
        Box::pin(futures_util::stream::once(first).flatten())
    }

    /// What is wrong with the peers that cannot be reached, once each was tried.
    pub(super) async fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        for link in self.links() {
            let tried = tokio::time::timeout(Duration::from_secs(2), link.tried());
            if let Ok(State::Down(error)) = tried.await {
                advice.push(error.to_string());
            }
        }
        advice
    }
}

/// Of all that the peers said: the leader of the latest term, then the others by name.
fn observation(mut notices: Vec<Notice>) -> Observation {
    notices.sort_by(|one, other| {
        let rank = |notice: &Notice| (notice.leads.map(|(token, _)| token), notice.leads.is_some());
        rank(other).cmp(&rank(one)).then_with(|| one.contender.id.cmp(&other.contender.id))
    });
    Observation {
        leader: notices.first().and_then(Notice::leader),
        candidates: Some(notices.into_iter().map(|notice| notice.contender).collect()),
    }
}
