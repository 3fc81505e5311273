//! What all elections of one process share: one session at a time, the rounds that move its locks to a fresh one, and the
//! clearing away of what nobody wants any more. What an answer proves is decided in [`incumbent_core::session`]: here a lease is a
//! Consul session, none is ever renewed, and only the move of a lock to a fresh one proves anything.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use incumbent_core::session::LeaseId;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use super::api::{Client, Entry, LOCK_FLAG, NewSession, Op};
use super::batch::{Batcher, Outcome};
use super::campaign::Name;
use super::failure;
use super::keys::{self, Keys, Value};
use super::state::State;
use super::watch::Watches;
use crate::clock;

/// The session of one process with one Consul.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) batcher: Batcher,
    pub(super) keys: Keys,
    pub(super) watches: Watches,
    node: String,
    pub(super) ttl: Duration,
    /// How long one answer may take.
    pub(super) limit: Duration,
    state: Mutex<State>,
    /// When the next round is due may have changed.
    wanted: Notify,
    /// There is something to clear away.
    untidy: Notify,
    done: watch::Sender<Done>,
}

/// How the rounds went.
#[derive(Default)]
struct Done {
    rounds: u64,
    failure: Option<Error>,
}

impl Shared {
    pub(super) fn new(client: Client, keys: Keys, node: String, ttl: Duration) -> Arc<Shared> {
        let limit = ttl / 9;
        Arc::new(Shared {
            batcher: Batcher::new(client.clone(), limit),
            watches: Watches::new(client.clone(), ttl),
            client,
            keys,
            node,
            ttl,
            limit,
            state: Mutex::new(State::new(ttl)),
            wanted: Notify::new(),
            untidy: Notify::new(),
            done: watch::Sender::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- rounds ----

    /// Runs rounds as they are due, until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let due = self.state().due(clock::now(), self.ttl);
            tokio::select! {
                () = self.wanted.notified() => {}
                () = sleep_until(due) => {}
            }
            if !self.state().begin(clock::now(), self.ttl) {
                continue;
            }
            let outcome = self.move_all().await;
            self.state().finish(clock::now() + self.ttl / 30, outcome.is_err());
            if let Err(failure) = &outcome {
                tracing::debug!(%failure, "the locks could not be moved to a fresh session");
            }
            self.done.send_modify(|done| {
                done.rounds += 1;
                done.failure = outcome.err();
            });
            self.untidy.notify_one();
        }
    }

    /// A lock was taken, so that there is something to keep.
    pub(super) fn attached(&self) {
        self.wanted.notify_one();
    }

    /// Waits for the round under way, or for a new one if there is none.
    ///
    /// # Errors
    /// The round's. Some locks may be proven nevertheless.
    pub(super) async fn round(&self) -> Result<()> {
        let mut done = self.done.subscribe();
        {
            let mut state = self.state();
            if !state.running {
                state.wanted = true;
                self.wanted.notify_one();
            }
        }
        if done.changed().await.is_err() {
            return Err(Error::new(ErrorKind::Internal, "the session has ended").with_backend("consul"));
        }
        done.borrow().failure.clone().map_or(Ok(()), Err)
    }

    /// A session to take locks with.
    ///
    /// # Errors
    /// Those of a round.
    pub(super) async fn lease(&self) -> Result<(LeaseId, String)> {
        let mut outcome = Ok(());
        for _ in 0..3 {
            if let Some(usable) = self.state().usable(clock::now()) {
                return Ok(usable);
            }
            outcome?;
            outcome = self.round().await;
        }
        let usable = self.state().usable(clock::now());
        usable.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "consul makes no session that lasts").with_backend("consul")
        })
    }

    /// Makes a fresh session and moves every lock to it.
    async fn move_all(&self) -> Result<()> {
        let lease = self.new_session().await?;
        let names = self.state().kept();
        let moves = join_all(names.iter().map(|name| self.shift(name, lease))).await;
        moves.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    async fn new_session(&self) -> Result<LeaseId> {
        let new = || NewSession { node: &self.node, ttl: self.ttl };
        let reply = match self.client.create_session(new(), self.limit).await {
            Err(failure) if failure.kind() == ErrorKind::NotFound => {
                self.client.register(&self.node, self.limit).await?;
                self.client.create_session(new(), self.limit).await?
            }
            outcome => outcome?,
        };
        Ok(self.state().made(reply.body, reply.sent_at, self.ttl))
    }

    /// Moves one lock to the session `lease`, or finds that it is gone.
    async fn shift(&self, name: &Name, lease: LeaseId) -> Result<()> {
        let key = self.keys.lock(&name.0);
        for _ in 0..3 {
            let Some(held) = self.state().held(name) else { return Ok(()) };
            if held.lease == lease {
                return Ok(()); // it was taken, or found, there
            }
            let Some(index) = held.index else {
                self.look(name).await?;
                continue;
            };
            let Some(new) = self.state().id(lease) else { return Ok(()) };
            let ops = vec![
                Op::check_index(&key, index),
                Op::unlock(&key, &held.value, LOCK_FLAG, &held.session),
                Op::lock(&key, &held.value, &new),
            ];
            match self.batcher.submit(ops).await {
                Ok(Outcome::Done { entries, .. }) => {
                    let index = entries.last().map(|entry| entry.index);
                    self.state().moved(name, lease, index);
                    return Ok(());
                }
                Ok(Outcome::Refused(refusals)) => {
                    if let Some(denied) = refusals.iter().find(|refusal| refusal.is_denied()) {
                        return Err(self.denied(&key, &denied.what));
                    }
                    self.look(name).await?;
                }
                Err(failure) => {
                    if failure.is_ambiguous() {
                        self.state().doubt(name);
                    }
                    return Err(failure);
                }
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock is being written by others; trying again")
            .with_backend("consul"))
    }

    /// Looks where a lock is.
    async fn look(&self, name: &Name) -> Result<Option<Entry>> {
        let entry = self.client.get(&self.keys.lock(&name.0), true, self.limit).await?.body;
        self.state().found(name, entry.as_ref());
        Ok(entry)
    }

    pub(super) fn denied(&self, key: &str, what: &str) -> Error {
        if what.contains("ACL not found") {
            let text = "it does not know the ACL token; it may have expired: give another in token_file=";
            return failure::error(ErrorKind::Denied, "the URL", text);
        }
        failure::denied("the URL", &format!("key:write on {key:?}"))
    }

    // ---- clearing away ----

    /// Has [`Shared::tidy`] look soon.
    pub(super) fn untidy(&self) {
        self.untidy.notify_one();
    }

    /// Clears away what nobody wants any more, until it is dropped.
    pub(super) async fn tidy(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.untidy.notified() => {}
                () = tokio::time::sleep(self.ttl / 10) => {}
            }
            let now = clock::now();
            let leaving = self.state().leaving(now, self.ttl);
            join_all(leaving.iter().map(|name| self.clear(name))).await;
            let revocable = self.state().revocable(clock::now(), self.ttl);
            join_all(revocable.into_iter().map(|(lease, id)| self.revoke(lease, id))).await;
        }
    }

    async fn clear(&self, name: &Name) {
        if let Err(failure) = self.remove(name).await {
            tracing::debug!(election = %name.0, %failure, "an abandoned lock is still there");
            self.state().give_up_on(name, clock::now(), self.ttl);
        }
    }

    /// Frees whatever a campaign may hold, and forgets the campaign.
    ///
    /// # Errors
    /// It is not certain that nothing is left; the campaign is leaving and will be tried again.
    pub(super) async fn remove(&self, name: &Name) -> Result<()> {
        let tried = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(()) };
            campaign.leave(clock::now());
            campaign.tried
        };
        if tried {
            self.free(name).await?;
        }
        let mut state = self.state();
        let state = &mut *state;
        if let Some(campaign) = state.campaigns.remove(name) {
            // What a lost request may still lock is freed with its session.
            campaign.loose.into_iter().for_each(|lease| state.session.condemn(lease));
            state.session.forget(name);
        }
        self.untidy();
        Ok(())
    }

    async fn free(&self, name: &Name) -> Result<()> {
        let key = self.keys.lock(&name.0);
        for _ in 0..4 {
            let known =
                self.state().held(name).and_then(|held| Some((held.index?, held.session, held.token)));
            let next = self.state().campaigns.get(name).and_then(|campaign| campaign.next.clone());
            let (index, session, value, flags) = match known {
                Some((index, session, token)) => {
                    (index, session, Value::free(token, self.ttl, next).encode(), LOCK_FLAG)
                }
                None => {
                    let entry = self.client.get(&key, true, self.limit).await?.body;
                    let Some(entry) = entry.filter(|entry| self.state().is_own(name, entry)) else {
                        return Ok(());
                    };
                    let Some(session) = entry.session.clone() else { return Ok(()) };
                    match keys::value(&entry) {
                        Some(value) => {
                            let value = Value::free(value.token, self.ttl, next).encode();
                            (entry.index, session, value, LOCK_FLAG)
                        }
                        // Somebody has written over it: that is not to be lost.
                        None => (entry.index, session, entry.value, entry.flags),
                    }
                }
            };
            let ops = vec![Op::check_index(&key, index), Op::unlock(&key, &value, flags, &session)];
            match self.batcher.submit(ops).await? {
                Outcome::Done { .. } => return Ok(()),
                Outcome::Refused(refusals) => {
                    if let Some(denied) = refusals.iter().find(|refusal| refusal.is_denied()) {
                        return Err(self.denied(&key, &denied.what));
                    }
                    self.state().forget_index(name);
                }
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lock is being written by others; trying again")
            .with_backend("consul"))
    }

    async fn revoke(&self, lease: LeaseId, id: String) {
        if self.client.destroy_session(&self.node, &id, self.limit).await.is_ok() {
            self.state().ended(lease);
        }
    }
}

async fn sleep_until(due: Option<BootInstant>) {
    match due {
        Some(due) => tokio::time::sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
