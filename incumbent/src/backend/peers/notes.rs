//! Notes: small values that a majority of the peers keeps, each as a register with compare-and-swap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use incumbent_core::peers::register::{Ask, Change, Outcome, Proposal, Reply, Step};
use incumbent_core::{BoxFuture, CandidateId, Error, ErrorKind, Nonce, Result};
use tokio::time::Instant;

use super::config::Config;
use super::disk::Disk;
use super::link::{Link, jitter};
use super::roster::Listed;
use super::wire::{Answer, Kind, Question, Register};
use crate::backend::signals::Signals;

/// The pause of a proposal that another one has crossed, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(200));

/// This peer's part of all notes, and the way to the other peers' parts.
pub(super) struct Notes {
    pub(super) config: Arc<Config>,
    pub(super) me: CandidateId,
    pub(super) disk: Disk,
    pub(super) links: RwLock<BTreeMap<CandidateId, Arc<Link>>>,
    pub(super) signals: Arc<Signals>,
    /// One proposal at a time for each note: what this process asks is done in the order in which it asks.
    pub(super) turns: Mutex<BTreeMap<Register, Arc<tokio::sync::Mutex<()>>>>,
}

impl Notes {
    /// The ways to the other peers.
    pub(super) fn links(&self) -> Vec<(CandidateId, Arc<Link>)> {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        links.iter().map(|(name, link)| (name.clone(), Arc::clone(link))).collect()
    }

    pub(super) fn link(&self, name: &CandidateId) -> Option<Arc<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Refuses what is asked under another list than the one in force. What is given to the disk right after this is written
    /// before anything that is asked under a later list.
    fn under(&self, list: u64) -> Result<()> {
        let own = self.config.roster.get().list.version;
        if list == own {
            return Ok(());
        }
        let text = format!("{} has list {own} of the peers, not {list}; try again", self.me);
        Err(self.config.error(ErrorKind::Unavailable, text))
    }

    /// The notes of this peer.
    pub(super) async fn survey(&self, list: u64) -> Result<Vec<Register>> {
        self.under(list)?;
        self.disk.notes().await
    }

    /// This peer's own answer.
    pub(super) async fn answer(&self, list: u64, register: Register, ask: Ask) -> Result<Reply> {
        self.under(list)?;
        let (election, kind) = (register.election.clone(), register.kind);
        let writes = matches!(ask, Ask::Accept(..));
        let reply = self.disk.note(register, ask).await?;
        if writes && kind == Kind::Handover && reply == Reply::Accepted {
            self.signals.send(election.as_str());
        }
        Ok(reply)
    }

    /// Reads or changes a note.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] without a majority, [`ErrorKind::TimedOut`] if the change may have been done.
    pub(super) async fn propose(&self, register: &Register, change: Change) -> Result<Outcome> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(register.clone()).or_default())
        };
        let outcome = {
            let _mine = turn.lock().await;
            self.decide(register, change).await
        };
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // This one's and the table's: nobody waits for a turn.
        if Arc::strong_count(&turn) == 2 {
            turns.remove(register);
        }
        outcome
    }

    async fn decide(&self, register: &Register, change: Change) -> Result<Outcome> {
        let limit = self.config.timing.ttl.clamp(Duration::from_secs(1), Duration::from_secs(5));
        let end = Instant::now() + limit;
        let listed = self.config.roster.get();
        let (mut proposal, mut ask) = Proposal::new(change, listed.members.len(), nonce()?);
        let mut pause = PAUSE.0;
        loop {
            let mut answers = self.ask_all(&listed, register, &ask, limit);
            let step = loop {
                match tokio::time::timeout_at(end, answers.next()).await {
                    Ok(Some((from, Ok(reply)))) => {
                        if let Some(step) = proposal.answered(from, reply) {
                            break step;
                        }
                    }
                    Ok(Some((from, Err(error)))) => {
                        if error.kind() == ErrorKind::Corrupt && from == self.me {
                            return Err(error);
                        }
                        tracing::debug!(peer = %from, %error, "a peer does not answer for a note");
                    }
                    Ok(None) | Err(_) => return Err(self.unanswered(proposal.may_be_done())),
                }
            };
            match step {
                Step::Ask(next) => ask = next,
                Step::Pause => {
                    tokio::time::sleep(pause / 4 + jitter(pause)).await;
                    pause = (pause * 2).min(PAUSE.1);
                    ask = proposal.again(nonce()?);
                }
                Step::Done(outcome) => return Ok(outcome),
            }
        }
    }

    fn ask_all<'a>(
        &'a self,
        listed: &Listed,
        register: &Register,
        ask: &Ask,
        limit: Duration,
    ) -> FuturesUnordered<BoxFuture<'a, (CandidateId, Result<Reply>)>> {
        let answers = FuturesUnordered::new();
        let list = listed.list.version;
        for (name, link) in self.links() {
            if !listed.members.contains_key(&name) {
                continue;
            }
            let question = Question::Register(list, register.clone(), ask.clone());
            let asked: BoxFuture<'a, _> = Box::pin(async move {
                let reply = match link.ask(question, limit).await {
                    Ok(Answer::Register(reply)) => Ok(reply),
                    Ok(_) => Err(Error::new(ErrorKind::Corrupt, format!("{name} answered something else"))),
                    Err(error) => Err(error),
                };
                (name, reply)
            });
            answers.push(asked);
        }
        if listed.members.contains_key(&self.me) {
            let (own, ask) = (register.clone(), ask.clone());
            answers.push(Box::pin(async move { (self.me.clone(), self.answer(list, own, ask).await) }));
        }
        answers
    }

    fn unanswered(&self, ambiguous: bool) -> Error {
        let (kind, text) = if ambiguous {
            (ErrorKind::TimedOut, "no majority of the peers has confirmed the note; it may be written")
        } else {
            (ErrorKind::Unavailable, "no majority of the peers answers")
        };
        self.config.error(kind, text).ambiguous(ambiguous)
    }
}

pub(super) fn nonce() -> Result<Nonce> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(ErrorKind::Internal, "the operating system gives no random numbers").with_source(error)
    })?;
    Ok(Nonce(u128::from_ne_bytes(bits)))
}
