//! One candidate's way to the lock of its election: see it free, take it, keep it, leave.

use std::collections::BTreeSet;
use std::time::Duration;

use incumbent_core::session::{LeaseId, Proof};
use incumbent_core::{
    Acquired, Authority, BootInstant, CandidateId, Claim, ElectionName, Error, ErrorKind, FencingToken,
    Grant, Nonce, Observation, Renewed, Result,
};

use super::api::{Entry, LOCK_FLAG, Op, Refusal};
use super::batch::Outcome;
use super::keys::{self, Value};
use super::session::Shared;
use crate::clock;

/// A campaign among those of this process.
pub(super) type Name = (ElectionName, Nonce);

/// Moves of one attempt that follow each other without waiting: create, take, and some lost races.
const MOVES: usize = 6;

/// What is remembered of a campaign between its calls.
pub(super) struct Campaign {
    /// It may have the lock: a request to take it was sent.
    pub(super) tried: bool,
    /// Requests to take the lock that were sent and not answered.
    unanswered: usize,
    /// The sessions they were sent with.
    pub(super) loose: BTreeSet<LeaseId>,
    /// The index of the lock as this campaign wrote it last; `None` if it has to be looked up.
    pub(super) index: Option<u64>,
    /// What it wrote; empty before it held the lock.
    pub(super) value: Vec<u8>,
    /// When the last call for it came.
    pub(super) asked_at: BootInstant,
    /// Since when it is to be removed.
    pub(super) leaving: Option<BootInstant>,
    /// Who shall be preferred when it is removed.
    pub(super) next: Option<CandidateId>,
    /// Something has happened to its lock that no call has followed up yet.
    pub(super) stale: bool,
    /// Since when it sees the lock free for another candidate, at which index.
    reserved: Option<(u64, BootInstant)>,
}

impl Campaign {
    pub(super) fn new(now: BootInstant) -> Campaign {
        Campaign {
            tried: false,
            unanswered: 0,
            loose: BTreeSet::new(),
            index: None,
            value: Vec::new(),
            asked_at: now,
            leaving: None,
            next: None,
            stale: false,
            reserved: None,
        }
    }

    /// It is over; what it left is to be removed.
    pub(super) fn leave(&mut self, now: BootInstant) {
        self.leaving.get_or_insert(now);
    }

    /// A request to take the lock is about to be sent.
    fn sending(&mut self, lease: LeaseId) {
        self.tried = true;
        self.loose.insert(lease);
        self.unanswered += 1;
    }

    /// It was answered.
    fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.unanswered == 0 {
            self.loose.clear();
        }
    }

    /// Until when a lock that is free is left to the candidate that its last holder named.
    fn reserved_until(
        &mut self,
        claim: &Claim,
        index: u64,
        value: Option<&Value>,
        now: BootInstant,
    ) -> Option<BootInstant> {
        let value = value?;
        value.next.as_ref().filter(|next| **next != claim.id)?;
        let since = match self.reserved {
            Some((seen, since)) if seen == index => since,
            _ => now,
        };
        self.reserved = Some((index, since));
        Some(since + Duration::from_millis(value.ttl_ms).min(claim.ttl)).filter(|until| now < *until)
    }
}

fn held(claim: &Claim, observation: Observation) -> Acquired {
    // A hint comes earlier; without one it shows that the campaign goes on.
    Acquired::Held { observation, try_again: clock::now() + claim.ttl / 2 }
}

impl Shared {
    /// Tries once to win.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let name = (claim.election.clone(), claim.nonce);
        if self.state().campaigns.get(&name).is_some_and(|campaign| campaign.leaving.is_some()) {
            self.remove(&name).await?;
        }
        self.asked(&name);
        let mut seen = None;
        for _ in 0..MOVES {
            let acquired = if self.state().session.place(&name).is_some() {
                self.prove(claim, &name).await?
            } else {
                self.take(claim, &name, &mut seen).await?
            };
            if let Some(acquired) = acquired {
                // Whoever is told of a proof may count on it for a ttl.
                self.asked(&name);
                return Ok(acquired);
            }
        }
        let observation = keys::observation(seen.as_ref());
        Ok(Acquired::Held { observation, try_again: clock::now() + self.ttl / 30 })
    }

    /// The campaign has the lock by what its process knows: proves it by a move.
    async fn prove(&self, claim: &Claim, name: &Name) -> Result<Option<Acquired>> {
        let began = clock::now();
        if let Some(campaign) = self.state().campaigns.get_mut(name) {
            campaign.stale = false;
        }
        // The round under way may have made its session before this call.
        for _ in 0..2 {
            self.round().await?;
            let mut state = self.state();
            let Some(place) = state.session.place(name) else {
                state.session.forget(name);
                return Ok(None);
            };
            if let Some(proof) = state.session.proof(name).filter(|proof| proof.sent_at >= began) {
                drop(state);
                return Ok(self.elected(claim, place.revision, Some(proof)));
            }
        }
        Ok(None)
    }

    /// Looks, and takes the lock if it is free.
    async fn take(&self, claim: &Claim, name: &Name, seen: &mut Option<Entry>) -> Result<Option<Acquired>> {
        self.state().session.forget(name);
        let key = self.keys.lock(&name.0);
        // What a query has just shown as free is worth a try at once: the transaction compares its index.
        let free = self.watches.seen(&key).filter(|entry| seen.is_none() && entry.session.is_none());
        *seen = match free {
            Some(entry) => Some(entry),
            None => self.client.get(&key, false, self.limit).await?.body,
        };
        let Some(entry) = seen else {
            // Never taken as it is created: its index is what the token is made of.
            let value = Value::free(0, claim.ttl, None).encode();
            let outcome = self.batcher.submit(vec![Op::cas(&key, &value, LOCK_FLAG, 0)]).await?;
            self.check_refusals(&key, &outcome)?;
            return Ok(None);
        };
        let value = keys::value(entry);
        if let Some(session) = &entry.session {
            if self.adopt(name, entry, session, value.as_ref()) {
                return Ok(None);
            }
            // One thing less to do once it is free.
            self.learn_authority().await?;
            return Ok(Some(held(claim, keys::observation(Some(entry)))));
        }
        keys::check_free(entry)?;
        let index = entry.index;
        let reserved = self
            .state()
            .campaigns
            .get_mut(name)
            .and_then(|campaign| campaign.reserved_until(claim, index, value.as_ref(), clock::now()));
        if let Some(try_again) = reserved {
            return Ok(Some(Acquired::Held { observation: Observation::default(), try_again }));
        }
        self.lock(claim, name, &key, index).await
    }

    /// True if the lock is this campaign's: the answer to the request that took it was lost.
    fn adopt(&self, name: &Name, entry: &Entry, session: &str, value: Option<&Value>) -> bool {
        let mut state = self.state();
        let Some(value) = value.filter(|value| value.is_of(name.1)) else { return false };
        let Some(lease) = state.lease_of(session).filter(|lease| state.session.life(*lease).is_some()) else {
            return false;
        };
        state.attach(name, value.token, lease, entry.index, entry.value.clone());
        drop(state);
        self.attached();
        true
    }

    /// Locks the key that was seen free at `index`, which becomes the token.
    async fn lock(&self, claim: &Claim, name: &Name, key: &str, index: u64) -> Result<Option<Acquired>> {
        self.learn_authority().await?;
        let (lease, session) = self.lease().await?;
        let value = Value::held(claim, index, clock::unix_ms()).encode();
        {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            campaign.stale = false;
            campaign.sending(lease);
        }
        let ops = vec![Op::check_index(key, index), Op::lock(key, &value, &session)];
        let outcome = self.batcher.submit(ops).await;
        let mut state = self.state();
        let state = &mut *state;
        let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
        if !outcome.as_ref().is_err_and(Error::is_ambiguous) {
            campaign.answered();
        }
        match outcome? {
            Outcome::Done { entries, sent_at, answered_at } => {
                let locked = entries.last().map_or(0, |entry| entry.index);
                state.attach(name, index, lease, locked, value);
                let write = incumbent_core::session::Answered { sent_at, at: answered_at, term: 0 };
                let proof = state.session.proven(name, lease, write);
                self.attached();
                Ok(self.elected_in(state.authority.as_ref(), claim, index, proof))
            }
            Outcome::Refused(refusals) => {
                if let Some(denied) = refusals.iter().find(|refusal| refusal.is_denied()) {
                    return Err(self.denied(key, &denied.what));
                }
                if refusals.iter().any(Refusal::is_session) {
                    state.ended(lease);
                }
                if refusals.iter().any(Refusal::is_lock_delay) {
                    // Nobody tells when it is over.
                    let try_again = clock::now() + claim.ttl / 15;
                    return Ok(Some(Acquired::Held { observation: Observation::default(), try_again }));
                }
                Ok(None)
            }
        }
    }

    fn check_refusals(&self, key: &str, outcome: &Outcome) -> Result<()> {
        let Outcome::Refused(refusals) = outcome else { return Ok(()) };
        match refusals.iter().find(|refusal| refusal.is_denied()) {
            Some(denied) => Err(self.denied(key, &denied.what)),
            None => Ok(()),
        }
    }

    /// `Some` if `proof` leaves enough time for a term.
    fn elected(&self, claim: &Claim, token: u64, proof: Option<Proof>) -> Option<Acquired> {
        self.elected_in(self.state().authority.as_ref(), claim, token, proof)
    }

    fn elected_in(
        &self,
        authority: Option<&Authority>,
        claim: &Claim,
        token: u64,
        proof: Option<Proof>,
    ) -> Option<Acquired> {
        let proof = proof.filter(|proof| clock::now() < proof.sent_at + self.ttl / 2)?;
        Some(Acquired::Granted(Grant {
            token: Some(FencingToken(token)),
            authority: authority?.clone(),
            sent_at: proof.sent_at,
            ttl: proof.ttl.min(claim.ttl),
        }))
    }

    /// Proves the grant current, from a round that it shares with all locks of this process.
    pub(super) async fn extend(&self, claim: &Claim, grant: &Grant) -> Result<Renewed> {
        let name = (claim.election.clone(), claim.nonce);
        let token = grant.token.map(|token| token.0);
        self.asked(&name);
        let (mut known, mut outcome) = (None, Ok(()));
        for attempt in 0..4 {
            let Some((proof, stale)) = self.proof_of(&name, token) else {
                let seen = self.observe(&claim.election).await;
                return Ok(Renewed::Lost(seen.map(|(observation, _)| observation).unwrap_or_default()));
            };
            let fresh = attempt == 0 && clock::now() < proof.sent_at + self.ttl / 6;
            if !stale && (fresh || known.is_some_and(|old| old < proof.sent_at)) {
                self.asked(&name);
                return Ok(Renewed::Extended { sent_at: proof.sent_at, ttl: proof.ttl.min(claim.ttl) });
            }
            known = Some(proof.sent_at);
            outcome?;
            outcome = self.round().await;
        }
        outcome?;
        Err(Error::new(ErrorKind::Unavailable, "the grant was not proven in this round")
            .with_backend("consul"))
    }

    /// The latest proof of the grant `token`, and whether something has happened to it that only a further round can judge.
    /// `None` if the grant is gone.
    fn proof_of(&self, name: &Name, token: Option<u64>) -> Option<(Proof, bool)> {
        let mut state = self.state();
        let running = state.is_running();
        let state = &mut *state;
        let campaign = state.campaigns.get_mut(name).filter(|campaign| campaign.leaving.is_none())?;
        state.session.place(name).filter(|place| Some(place.revision) == token)?;
        let stale = campaign.stale;
        // The round under way may have looked before it happened.
        campaign.stale &= running;
        Some((state.session.proof(name)?, stale))
    }

    /// Ends the campaign.
    pub(super) async fn release(&self, claim: &Claim, next: Option<&CandidateId>) -> Result<()> {
        let name = (claim.election.clone(), claim.nonce);
        if let Some(campaign) = self.state().campaigns.get_mut(&name) {
            campaign.next = next.cloned();
        }
        self.remove(&name).await
    }

    /// What the store shows of an election, and the token of its latest grant.
    pub(super) async fn observe(
        &self,
        election: &ElectionName,
    ) -> Result<(Observation, Option<FencingToken>)> {
        let entry = self.client.get(&self.keys.lock(election), true, self.limit).await?.body;
        let value = entry.as_ref().and_then(keys::value);
        let token = value.map(|value| FencingToken(value.token)).filter(|token| token.0 > 0);
        Ok((keys::observation(entry.as_ref()), token))
    }

    /// Notes that someone wants this campaign; makes it if need be.
    fn asked(&self, name: &Name) {
        let now = clock::now();
        self.state().campaigns.entry(name.clone()).or_insert_with(|| Campaign::new(now)).asked_at = now;
    }

    /// Consul has no name that tells one cluster from another: the first to come leaves one in the store.
    async fn learn_authority(&self) -> Result<()> {
        if self.state().authority.is_some() {
            return Ok(());
        }
        let key = self.keys.authority();
        for _ in 0..2 {
            if let Some(entry) = self.client.get(&key, true, self.limit).await?.body {
                let name = String::from_utf8_lossy(&entry.value).into_owned();
                let authority = Authority::new(format!("consul:{name}:{}", self.keys.prefix()));
                self.state().authority = Some(authority);
                return Ok(());
            }
            let name = format!(
                "{:016x}",
                getrandom::u64().map_err(|error| {
                    Error::new(ErrorKind::Internal, "no random number can be had").with_source(error)
                })?
            );
            let outcome = self.batcher.submit(vec![Op::cas(&key, name.as_bytes(), 0, 0)]).await?;
            self.check_refusals(&key, &outcome)?;
        }
        Err(Error::new(ErrorKind::Unavailable, "the store's own name cannot be read").with_backend("consul"))
    }
}
