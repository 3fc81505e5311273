//! The adapter that makes a [`Backend`] of a record store. It makes the calls; the protocol is the core's.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use incumbent_core::record::{
    Challenger, Holder, Move, Record, RecordKey, RecordStore, Seen, TokenRule, still_held,
};
use incumbent_core::{
    Acquired, Backend, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, Error, ErrorKind,
    FencingToken, Grant, Guarantees, Nonce, Note, Observation, Renewed, Result, Stored, Swapped,
};

use tokio::sync::watch;
use tracing::warn;

use crate::backend::shown::Shown;
use crate::clock;

/// Moves of one attempt that follow each other without waiting: create, read, take, and two lost races.
const MOVES: usize = 6;

/// A record store as a backend.
pub(crate) struct RecordBackend<S> {
    store: S,
    campaigns: Mutex<BTreeMap<(ElectionName, Nonce), Campaign>>,
    shown: Shown,
}

/// What one campaign remembers between its calls.
struct Campaign {
    challenger: Challenger,
    /// The version of the record for which the log says why it is waited for.
    explained: Option<u64>,
    /// The version of the hand-over note to its term that this campaign saw last.
    asked: Option<u64>,
    tries: watch::Sender<Tries>,
    /// The record as this campaign wrote it, while it leads.
    mine: Option<Stored>,
    /// The store's lineage in which it was granted.
    lineage: Option<String>,
}

/// The attempts of one campaign to win: how many have begun, and whether the last one is under way.
#[derive(Default)]
struct Tries {
    begun: u64,
    under_way: bool,
}

/// An attempt to win; over when it is dropped.
struct Try(watch::Sender<Tries>);

impl Try {
    fn begin(tries: watch::Sender<Tries>) -> Try {
        tries.send_modify(|tries| *tries = Tries { begun: tries.begun + 1, under_way: true });
        Try(tries)
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        self.0.send_modify(|tries| tries.under_way = false);
    }
}

impl<S: RecordStore> RecordBackend<S> {
    pub(crate) fn new(store: S) -> RecordBackend<S> {
        RecordBackend { store, campaigns: Mutex::default(), shown: Shown::default() }
    }

    fn campaigns(&self) -> MutexGuard<'_, BTreeMap<(ElectionName, Nonce), Campaign>> {
        self.campaigns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, claim: &Claim, change: impl FnOnce(&mut Campaign) -> T) -> T {
        let new = || Campaign {
            challenger: Challenger::new(self.guarantees().expiry_slack),
            explained: None,
            asked: None,
            tries: watch::Sender::default(),
            mine: None,
            lineage: None,
        };
        change(self.campaigns().entry((claim.election.clone(), claim.nonce)).or_insert_with(new))
    }

    async fn see(&self, key: &RecordKey) -> Result<Seen> {
        Seen::new(self.store.read(key).await?)
    }

    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let key = election_key(&claim.election);
        let _trying = Try::begin(self.with(claim, |campaign| campaign.tries.clone()));
        let liveness = self.store.hold(claim).await?;
        for _ in 0..MOVES {
            let seen = self.see(&key).await?;
            let read_at = clock::now();
            let lineage = self.store.lineage();
            let mut ttl = claim.ttl;
            let gone = match seen.holder() {
                Some(holder) if holder.nonce != claim.nonce => {
                    self.store.is_gone(&claim.election, holder).await
                }
                None if seen.was_never_held() => match self.store.led_without_record(claim).await {
                    Some(led) => {
                        ttl = ttl.max(led);
                        false
                    }
                    None => true,
                },
                _ => false,
            };
            let judge = |campaign: &mut Campaign| {
                campaign.challenger.judge(claim, &seen, lineage.as_deref(), read_at, gone)
            };
            let next = self.with(claim, judge);
            let (token, record) = match next {
                Move::Wait(try_again) => {
                    self.explain(claim, &seen, lineage.as_deref());
                    return Ok(Acquired::Held { observation: seen.observation(), try_again });
                }
                // Whoever comes waits for so long.
                Move::Create => (TokenRule::Keep, Record::unheld(ttl, None)),
                Move::Take => (TokenRule::Raise, Record::held(holder(claim, liveness.clone()), claim.ttl)),
                Move::Confirm => match &seen {
                    Seen::Record(_, record) => (TokenRule::Keep, record.clone()),
                    Seen::Absent | Seen::Unreadable(_) => continue,
                },
            };
            let record = record.within(lineage.clone());
            let body = record.encode();
            let swapped = self.store.swap(&key, seen.stored(), token, body.clone()).await?;
            let Swapped::Done { version, token, sent_at } = swapped else { continue };
            let stored = Stored { version, token, body };
            if next == Move::Create || self.store.lineage() != lineage {
                continue;
            }
            self.with(claim, |campaign| {
                campaign.mine = Some(stored);
                campaign.lineage = lineage;
            });
            let token = Some(FencingToken(token));
            return Ok(Acquired::Granted(Grant {
                token,
                authority: self.store.authority(),
                sent_at,
                ttl: record.ttl(),
            }));
        }
        let observation = self.see(&key).await?.observation();
        Ok(Acquired::Held { observation, try_again: clock::now() })
    }

    async fn extend(&self, claim: &Claim, grant: &Grant) -> Result<Renewed> {
        let key = election_key(&claim.election);
        let token = grant.token.unwrap_or(FencingToken(0));
        for _ in 0..2 {
            if let Some(mine) = self.with(claim, |campaign| campaign.mine.clone()) {
                let swapped = self.store.swap(&key, Some(&mine), TokenRule::Keep, mine.body.clone()).await?;
                if let Swapped::Done { version, token, sent_at } = swapped {
                    let stored = Stored { version, token, body: mine.body };
                    if self.with(claim, |campaign| campaign.lineage != self.store.lineage()) {
                        warn!(election = %claim.election, "the store has failed over; the term is given up");
                        let seen = Seen::new(Some(stored))?;
                        return Ok(Renewed::Lost(seen.observation()));
                    }
                    self.with(claim, |campaign| campaign.mine = Some(stored));
                    return Ok(Renewed::Extended { sent_at, ttl: grant.ttl });
                }
            }
            let seen = self.see(&key).await?;
            let still = still_held(claim, token, &seen);
            self.with(claim, |campaign| campaign.mine = seen.stored().filter(|_| still).cloned());
            if !still {
                return Ok(Renewed::Lost(seen.observation()));
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the record is being written by others; trying again"))
    }

    async fn give_back(&self, claim: &Claim, next: Option<&CandidateId>) -> Result<()> {
        // Whatever comes of it: the record may be tried again, but nothing more is done for this campaign.
        let forget = Forget(self, claim);
        self.write_unheld(claim, next).await?;
        // Waited for: after this answer the process may end, and nothing of the campaign shall be left behind.
        forget.now().await;
        Ok(())
    }

    async fn write_unheld(&self, claim: &Claim, next: Option<&CandidateId>) -> Result<()> {
        let key = election_key(&claim.election);
        // As it was written last, which costs no look: where somebody else has written since, nothing is written.
        let mut known = self.with(claim, |campaign| campaign.mine.take());
        for _ in 0..MOVES {
            let seen = match known.take() {
                Some(mine) => Seen::new(Some(mine))?,
                None => self.see(&key).await?,
            };
            if !is_own(claim, &seen) {
                return Ok(());
            }
            // In its old lineage: who challenges it after a failover still waits.
            let lineage = match &seen {
                Seen::Record(_, record) => record.lineage.clone(),
                Seen::Absent | Seen::Unreadable(_) => None,
            };
            let record = Record::unheld(claim.ttl, next.cloned()).within(lineage);
            let swapped = self.store.swap(&key, seen.stored(), TokenRule::Keep, record.encode()).await?;
            if swapped != Swapped::Conflict {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the record is being written by others; trying again"))
    }

    /// Says once why a record that nobody is known to hold is waited for.
    fn explain(&self, claim: &Claim, seen: &Seen, lineage: Option<&str>) {
        let why = match seen {
            Seen::Unreadable(_) => "it cannot be understood",
            Seen::Record(_, record) if !record.is_of(lineage) => {
                "the store has failed over since, and may have lost a later one"
            }
            seen if seen.was_never_held() => "it is new, and an older one may have been removed",
            _ => return,
        };
        let version = seen.stored().map(|stored| stored.version);
        if self.with(claim, |campaign| std::mem::replace(&mut campaign.explained, version)) != version {
            warn!(election = %claim.election, "the record counts as held for one ttl, because {why}");
        }
    }
}

/// Forgets a campaign when it is dropped, also in the middle of a call that hangs.
struct Forget<'a, S: RecordStore>(&'a RecordBackend<S>, &'a Claim);

impl<S: RecordStore> Forget<'_, S> {
    fn now(&self) -> BoxFuture<'static, ()> {
        let Forget(backend, claim) = self;
        backend.campaigns().remove(&(claim.election.clone(), claim.nonce));
        backend.store.let_go(claim)
    }
}

impl<S: RecordStore> Drop for Forget<'_, S> {
    fn drop(&mut self) {
        drop(self.now());
    }
}

fn is_own(claim: &Claim, seen: &Seen) -> bool {
    seen.holder().is_some_and(|holder| holder.id == claim.id && holder.nonce == claim.nonce)
}

fn holder(claim: &Claim, liveness: Option<String>) -> Holder {
    Holder {
        id: claim.id.clone(),
        nonce: claim.nonce,
        address: claim.address.clone(),
        since_unix_ms: clock::unix_ms(),
        liveness,
    }
}

fn election_key(election: &ElectionName) -> RecordKey {
    RecordKey { election: election.clone(), note: None }
}

fn note_key(election: &ElectionName, note: Note) -> RecordKey {
    RecordKey { election: election.clone(), note: Some(note) }
}

impl<S: RecordStore> Backend for RecordBackend<S> {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(self.acquire(claim))
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(self.extend(claim, grant))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        _grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.give_back(claim, next))
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async move {
            let seen = self.see(&election_key(election)).await?;
            if let Seen::Record(stored, _) = &seen {
                self.shown.pass(election, FencingToken(stored.token))?;
            }
            let mut observation = seen.observation();
            observation.candidates = self.store.candidates(election).await?;
            if let Some(holder) = seen.holder()
                && self.store.is_gone(election, holder).await
            {
                observation.leader = None;
            }
            Ok(observation)
        })
    }

    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        let changes = self.store.changes(election)?;
        let Some(claim) = campaign else { return Some(changes) };
        // A campaign's own grant and renewals are no news to it.
        let own = move |change: Result<()>| async move {
            let news = match &change {
                Err(_) => true,
                Ok(()) => self.is_news(claim).await,
            };
            news.then_some(change)
        };
        Some(Box::pin(changes.filter_map(own)))
    }

    fn advice(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        self.store.advice()
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move { self.store.read(&note_key(election, note)).await })
    }

    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            self.store.swap(&note_key(election, note), expected, TokenRule::Set(token), body).await
        })
    }
}

impl<S: RecordStore> RecordBackend<S> {
    /// False if the record is this campaign's own, which nobody else writes, and nobody has asked its term for anything.
    ///
    /// What happens during an attempt is judged after it: most of it is the attempt's own work, which is not to be seen as
    /// its own before it is done.
    async fn is_news(&self, claim: &Claim) -> bool {
        let name = (claim.election.clone(), claim.nonce);
        let Some(tries) = self.campaigns().get(&name).map(|campaign| campaign.tries.clone()) else {
            return true;
        };
        let mut tries = tries.subscribe();
        loop {
            let Ok(begun) = tries.wait_for(|tries| !tries.under_way).await.map(|tries| tries.begun) else {
                return true;
            };
            let news = self.is_news_now(claim).await;
            if !news || tries.borrow().begun == begun {
                return news;
            }
        }
    }

    async fn is_news_now(&self, claim: &Claim) -> bool {
        // Who does not lead has to look anyway.
        let name = (claim.election.clone(), claim.nonce);
        if self.campaigns().get(&name).is_none_or(|campaign| campaign.mine.is_none()) {
            return true;
        }
        let seen = match self.see(&election_key(&claim.election)).await {
            Ok(seen) if is_own(claim, &seen) => seen,
            _ => return true,
        };
        let note = match self.store.read(&note_key(&claim.election, Note::Handover)).await {
            Ok(note) => note,
            // It stays as it is until somebody writes another.
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            Err(_) => return true,
        };
        let token = seen.stored().map(|stored| stored.token);
        let asked = note.filter(|note| Some(note.token) == token).map(|note| note.version);
        let mut campaigns = self.campaigns();
        let campaign = campaigns.get_mut(&name);
        campaign.is_none_or(|campaign| std::mem::replace(&mut campaign.asked, asked) != asked)
    }
}

impl<S: RecordStore> fmt::Debug for RecordBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBackend").field("store", &self.store).finish_non_exhaustive()
    }
}
