//! What all elections of one process share: one lease at a time, the rounds that prove its keys, and the clearing away of
//! what nobody wants any more. What an answer proves is decided in [`incumbent_core::session`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use incumbent_core::session::{Answered, LeaseId, Place, Round, Session};
use incumbent_core::{BootInstant, ElectionName, Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use super::batch::{Answer, Batcher, MAX};
use super::campaign::{Campaign, Name};
use super::client::Client;
use super::keys::Keys;
use super::proto::compare::TargetUnion;
use super::proto::response_op::Response;
use super::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use crate::clock;

/// The session of one process with one etcd.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) batcher: Batcher,
    pub(super) keys: Keys,
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

pub(super) struct State {
    pub(super) session: Session<String>,
    pub(super) campaigns: BTreeMap<Name, Campaign>,
    /// How many keys were named by a lease in an election.
    turns: BTreeMap<(LeaseId, ElectionName), u32>,
    wanted: bool,
    running: bool,
    /// After a failed round that nobody asked for: not before this.
    pause_until: BootInstant,
    /// Leases to be revoked, and when to try next.
    revoking: BTreeMap<LeaseId, BootInstant>,
    idle_since: Option<BootInstant>,
}

impl Shared {
    pub(super) fn new(client: Client, keys: Keys, ttl: Duration) -> Arc<Shared> {
        let limit = ttl / 9;
        let asked = Duration::from_secs(seconds(ttl) as u64);
        let state = State {
            session: Session::new(asked),
            campaigns: BTreeMap::new(),
            turns: BTreeMap::new(),
            wanted: false,
            running: false,
            pause_until: BootInstant::ZERO,
            revoking: BTreeMap::new(),
            idle_since: None,
        };
        Arc::new(Shared {
            batcher: Batcher::new(client.clone(), limit),
            client,
            keys,
            ttl,
            limit,
            state: Mutex::new(state),
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
            let outcome = self.prove_all().await;
            self.state().finish(clock::now() + self.ttl / 30, outcome.is_err());
            if let Err(failure) = &outcome {
                tracing::debug!(%failure, "the keys could not be proven");
            }
            self.done.send_modify(|done| {
                done.rounds += 1;
                done.failure = outcome.err();
            });
            self.untidy.notify_one();
        }
    }

    /// A key was created, so that there is something to keep alive.
    pub(super) fn attached(&self) {
        self.wanted.notify_one();
    }

    /// Waits for the round under way, or for a new one if there is none.
    ///
    /// # Errors
    /// The round's. Some keys may be proven nevertheless.
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
            return Err(Error::new(ErrorKind::Internal, "the session has ended").with_backend("etcd"));
        }
        done.borrow().failure.clone().map_or(Ok(()), Err)
    }

    /// A lease to create keys with.
    ///
    /// # Errors
    /// Those of a round.
    pub(super) async fn lease(&self) -> Result<LeaseId> {
        let mut outcome = Ok(());
        for _ in 0..3 {
            if let Some(lease) = self.state().session.usable(clock::now()) {
                return Ok(lease);
            }
            outcome?;
            outcome = self.round().await;
        }
        let usable = self.state().session.usable(clock::now());
        usable.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "etcd grants no lease that lasts").with_backend("etcd")
        })
    }

    async fn prove_all(&self) -> Result<()> {
        let round = self.state().session.round(clock::now());
        if let Round::Keep(lease) = round
            && self.keep(lease).await
        {
            return Ok(());
        }
        self.move_all().await
    }

    /// Keeps the lease alive and guards the led keys; false if that did not prove each of them.
    async fn keep(&self, lease: LeaseId) -> bool {
        let (sent_at, counts) = match self.client.lease_keep_alive_once(lease, self.limit).await {
            Ok(reply) => {
                let answered =
                    Answered { sent_at: reply.sent_at, at: reply.answered_at, term: reply.raft_term };
                let ttl = Duration::from_secs(reply.body.ttl.unsigned_abs());
                (reply.sent_at, self.state().session.kept(lease, ttl, answered))
            }
            Err(failure) => {
                tracing::debug!(%failure, "the lease was not kept alive");
                (BootInstant::ZERO, false)
            }
        };
        if !counts {
            self.state().session.not_kept(lease);
            return false;
        }
        let led = self.state().session.led();
        let guard = |key: &str, place: Place| TxnRequest {
            compare: still(key, place),
            success: vec![delete(self.keys.nil())],
            failure: vec![get(key)],
        };
        let mut proven = true;
        for (chunk, outcome) in self.in_chunks(&led, guard).await {
            let mut state = self.state();
            match outcome {
                Ok(answers) => {
                    for ((key, place), answer) in chunk.iter().zip(answers) {
                        if answer.body.succeeded {
                            state.session.proven(key, place.lease, answer.answered);
                        } else {
                            state.session.found(key, own_place(&answer.body, 0));
                        }
                        let session = &state.session;
                        let sent = session.proof(key).map(|proof| proof.sent_at);
                        proven &= session.is_gone(key) || !session.is_led(key) || sent >= Some(sent_at);
                    }
                }
                Err(failure) => {
                    tracing::debug!(%failure, "the keys were not guarded");
                    proven = false;
                }
            }
        }
        if !proven {
            self.state().session.not_kept(lease);
        }
        proven
    }

    /// Has a new lease granted and moves every key to it.
    async fn move_all(&self) -> Result<()> {
        if self.client.term() == 0 {
            self.client
                .range(RangeRequest { key: self.keys.nil().into(), ..Default::default() }, self.limit)
                .await?;
        }
        let term = self.client.term();
        let reply = self.client.lease_grant(seconds(self.ttl), self.limit).await?;
        let lease = reply.body.id;
        let keys = {
            let mut state = self.state();
            let ttl = Duration::from_secs(reply.body.ttl.unsigned_abs());
            state.session.granted(lease, reply.sent_at, ttl, term);
            state.session.keys()
        };
        let shift = |key: &str, place: Place| TxnRequest {
            compare: still(key, place),
            success: vec![
                PutRequest { key: key.into(), lease, ignore_value: true, ..Default::default() }.into(),
            ],
            failure: vec![get(key)],
        };
        let mut failure = None;
        for (chunk, outcome) in self.in_chunks(&keys, shift).await {
            let mut state = self.state();
            match outcome {
                Ok(answers) => {
                    for ((key, _), answer) in chunk.iter().zip(answers) {
                        if answer.body.succeeded {
                            state.session.moved(key, lease);
                        } else {
                            state.session.found(key, own_place(&answer.body, 0));
                        }
                    }
                }
                Err(error) => {
                    if error.is_ambiguous() {
                        chunk.iter().for_each(|(key, _)| state.session.doubt(key));
                    }
                    failure = Some(error);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn in_chunks<'a>(
        &self,
        keys: &'a [(String, Place)],
        request: impl Fn(&str, Place) -> TxnRequest,
    ) -> Vec<(&'a [(String, Place)], Result<Vec<Answer>>)> {
        let sends = keys.chunks(MAX).map(|chunk| {
            let requests = chunk.iter().map(|(key, place)| request(key, *place)).collect();
            async move { (chunk, self.batcher.together(requests).await) }
        });
        join_all(sends).await
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
            join_all(revocable.into_iter().map(|lease| self.revoke(lease))).await;
        }
    }

    async fn clear(&self, name: &Name) {
        if let Err(failure) = self.remove(name).await {
            tracing::debug!(election = %name.0, %failure, "an abandoned key is still there");
            self.state().give_up_on(name, clock::now(), self.ttl);
        }
    }

    /// Deletes whatever a campaign may have left, and forgets the campaign.
    ///
    /// # Errors
    /// It is not certain that everything is gone; the campaign is leaving and will be tried again.
    pub(super) async fn remove(&self, name: &Name) -> Result<()> {
        let keys = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(()) };
            campaign.leave(clock::now());
            campaign.names.clone()
        };
        if !keys.is_empty() {
            let success = keys.iter().map(|key| delete(key.clone())).collect();
            self.batcher.submit(&name.0, TxnRequest { success, ..Default::default() }).await?;
        }
        let mut state = self.state();
        if let Some(campaign) = state.campaigns.get(name)
            && campaign.names.is_subset(&keys)
        {
            // What a lost request may still create is ended with its lease.
            let loose: Vec<LeaseId> = campaign.loose.iter().copied().collect();
            loose.into_iter().for_each(|lease| state.session.condemn(lease));
            keys.iter().for_each(|key| state.session.forget(key));
            state.campaigns.remove(name);
        }
        drop(state);
        self.untidy();
        Ok(())
    }

    async fn revoke(&self, lease: LeaseId) {
        let outcome = self.client.lease_revoke(lease, self.limit).await;
        let gone = match &outcome {
            Ok(_) => true,
            Err(failure) => failure.kind() == ErrorKind::NotFound,
        };
        if gone {
            self.state().ended(lease);
        }
    }
}

impl State {
    /// The name of a further key for an election, created with `lease`.
    pub(super) fn new_name(&mut self, keys: &Keys, election: &ElectionName, lease: LeaseId) -> String {
        let turn = self.turns.entry((lease, election.clone())).or_default();
        *turn += 1;
        keys.candidate(election, lease, *turn - 1)
    }

    /// When a round is due that nobody asks for.
    fn due(&self, now: BootInstant, ttl: Duration) -> Option<BootInstant> {
        if self.wanted {
            return Some(now);
        }
        if self.session.keys().is_empty() {
            return None;
        }
        // Who leads asks for rounds himself, each third of the ttl.
        let patience = if self.session.led().is_empty() { ttl / 3 } else { ttl * 4 / 9 };
        let due = self.session.kept_at().map_or(now, |kept_at| kept_at + patience);
        Some(due.max(self.pause_until))
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    fn begin(&mut self, now: BootInstant, ttl: Duration) -> bool {
        self.running = self.due(now, ttl).is_some_and(|due| due <= now);
        self.wanted &= !self.running;
        self.running
    }

    fn finish(&mut self, pause_until: BootInstant, failed: bool) {
        self.running = false;
        if failed {
            self.pause_until = pause_until;
        }
    }

    /// The campaigns to be removed: those that have ended, and those that nobody has asked about for a ttl.
    fn leaving(&mut self, now: BootInstant, ttl: Duration) -> Vec<Name> {
        for campaign in self.campaigns.values_mut() {
            if now >= campaign.asked_at + ttl {
                campaign.leave(now);
            }
        }
        let leaving = self.campaigns.iter().filter(|(_, campaign)| campaign.leaving.is_some());
        leaving.map(|(name, _)| name.clone()).collect()
    }

    /// After one ttl of failed attempts, the leases go with which the campaign's keys were created.
    fn give_up_on(&mut self, name: &Name, now: BootInstant, ttl: Duration) {
        let Some(campaign) = self.campaigns.get(name) else { return };
        if campaign.leaving.is_none_or(|since| now < since + ttl) {
            return;
        }
        let placed = campaign.names.iter().filter_map(|key| self.session.place(key)).map(|place| place.lease);
        let leases: BTreeSet<LeaseId> = placed.chain(campaign.loose.iter().copied()).collect();
        leases.into_iter().for_each(|lease| self.session.condemn(lease));
        if let Some(campaign) = self.campaigns.remove(name) {
            campaign.names.iter().for_each(|key| self.session.forget(key));
        }
    }

    fn revocable(&mut self, now: BootInstant, ttl: Duration) -> Vec<LeaseId> {
        // A lease without keys is kept for the next campaign for a while, then let go.
        if self.campaigns.is_empty() {
            let since = *self.idle_since.get_or_insert(now);
            if now >= since + ttl / 3 {
                self.session.let_go();
            }
        } else {
            self.idle_since = None;
        }
        for lease in self.session.take_revocable() {
            self.revoking.entry(lease).or_insert(now);
        }
        // A lease that nobody keeps alive has run out after twice its time, whoever judges it.
        let over = |session: &Session<String>, lease: LeaseId| {
            session.life(lease).is_none_or(|life| now >= life.sent_at + life.ttl * 3)
        };
        let over: Vec<LeaseId> =
            self.revoking.keys().copied().filter(|lease| over(&self.session, *lease)).collect();
        over.into_iter().for_each(|lease| self.ended(lease));
        let due = self.revoking.iter_mut().filter(|(_, at)| now >= **at);
        due.map(|(lease, at)| {
            *at = now + ttl / 10;
            *lease
        })
        .collect()
    }

    fn ended(&mut self, lease: LeaseId) {
        self.session.ended(lease);
        self.revoking.remove(&lease);
        self.turns.retain(|(other, _), _| *other != lease);
    }
}

/// The comparisons that hold as long as a key is where it was.
pub(super) fn still(key: &str, place: Place) -> Vec<Compare> {
    vec![
        Compare::equal(key, TargetUnion::CreateRevision(place.revision as i64)),
        Compare::equal(key, TargetUnion::Lease(place.lease)),
    ]
}

pub(super) fn delete(key: String) -> RequestOp {
    DeleteRangeRequest { key: key.into(), ..Default::default() }.into()
}

pub(super) fn get(key: &str) -> RequestOp {
    RangeRequest { key: key.into(), ..Default::default() }.into()
}

/// The keys that the `index`-th operation of a branch has read.
pub(super) fn read(body: &TxnResponse, index: usize) -> &[KeyValue] {
    match body.responses.get(index).and_then(|op| op.response.as_ref()) {
        Some(Response::ResponseRange(range)) => &range.kvs,
        _ => &[],
    }
}

/// Where a key is, by the `index`-th operation, which read it.
pub(super) fn own_place(body: &TxnResponse, index: usize) -> Option<Place> {
    read(body, index).first().map(place)
}

pub(super) fn place(kv: &KeyValue) -> Place {
    Place { revision: kv.create_revision as u64, lease: kv.lease }
}

/// The ttl that etcd is asked for.
fn seconds(ttl: Duration) -> i64 {
    ttl.as_millis().div_ceil(1000) as i64
}

async fn sleep_until(due: Option<BootInstant>) {
    match due {
        Some(due) => tokio::time::sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
