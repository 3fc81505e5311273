//! One candidate's way through the queue of its election: create a key, wait, be first, prove it, leave.

use std::collections::BTreeSet;
use std::time::Duration;

use incumbent_core::session::{LeaseId, Place, Proof};
use incumbent_core::{
    Acquired, Authority, BootInstant, CandidateId, Claim, ElectionName, Error, ErrorKind, FencingToken,
    Grant, HandoverRequest, Leader, Nonce, Note, Observation, Renewed, Result,
};
use tokio::sync::watch;
use tracing::warn;

use super::batch::Answer;
use super::keys;
use super::proto::compare::{CompareResult, TargetUnion};
use super::proto::range_request::{SortOrder, SortTarget};
use super::proto::{Compare, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::session::{self, Shared, delete, get, own_place, place, read, still};
use super::watch::Quiet;
use crate::backend::values;
use crate::clock;

/// A campaign among those of this process.
pub(super) type Name = (ElectionName, Nonce);

/// Moves of one attempt that follow each other without waiting.
const MOVES: usize = 6;
/// Even if nothing has been heard, the store is asked again after this long.
const LOOK_AT_LEAST: Duration = Duration::from_secs(600);

/// What is remembered of a campaign between its calls.
pub(super) struct Campaign {
    /// The key that stands for it now.
    key: Option<String>,
    /// All keys that were ever sent for it and may exist.
    pub(super) names: BTreeSet<String>,
    /// Creations that were sent and not answered.
    unanswered: usize,
    /// The leases they were sent with.
    pub(super) loose: BTreeSet<LeaseId>,
    /// When the last call for it came.
    pub(super) asked_at: BootInstant,
    /// Since when it is to be removed.
    pub(super) leaving: Option<BootInstant>,
    /// What was seen last while it waited, and when.
    seen: Option<(Observation, BootInstant)>,
    /// An attempt has ended in waiting, and none has begun since. One that was cut short, or found that more was to be done,
    /// leaves it false: then hints that it has followed up are no reason to rest.
    resting: bool,
    /// What its hints come from.
    pub(super) targets: watch::Sender<Targets>,
    /// Whether its watches have been silent; empty without watches.
    pub(super) quiet: Vec<Quiet>,
    /// Something has happened that no call has followed up yet.
    pub(super) stale: bool,
    /// The hand-over note (its mod revision) that it has obeyed or found to be none of its business.
    obeyed: i64,
}

/// What a campaign's hints come from: its own key, the key before it, and the first one if that is another: who leads may
/// change while everyone before this one stays. Each with the revision from which on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Targets {
    pub(super) own: Option<(String, i64)>,
    pub(super) ahead: Option<Target>,
    pub(super) first: Option<Target>,
}

/// A key, and the revision from which on it is watched.
pub(super) type Target = (Vec<u8>, i64);

/// Changes `slot` unless it is on that key already; true if it did.
fn aim(slot: &mut Option<Target>, target: Option<Target>) -> bool {
    let key = |target: &Option<Target>| target.as_ref().map(|(key, _)| key.clone());
    let changes = key(slot) != key(&target);
    if changes {
        *slot = target;
    }
    changes
}

impl Campaign {
    fn new(now: BootInstant) -> Campaign {
        Campaign {
            key: None,
            names: BTreeSet::new(),
            unanswered: 0,
            loose: BTreeSet::new(),
            asked_at: now,
            leaving: None,
            seen: None,
            resting: false,
            targets: watch::Sender::default(),
            quiet: Vec::new(),
            stale: false,
            obeyed: 0,
        }
    }

    /// An attempt begins.
    fn begin(&mut self) {
        self.stale = false;
        self.resting = false;
    }

    /// It is over; what it left is to be removed.
    pub(super) fn leave(&mut self, now: BootInstant) {
        self.leaving.get_or_insert(now);
    }

    /// A creation is about to be sent.
    fn sending(&mut self, key: &str, lease: LeaseId) {
        self.names.insert(key.to_owned());
        self.loose.insert(lease);
        self.unanswered += 1;
    }

    /// A creation was answered. If its key was there already, it was one of the unanswered ones that has created it.
    fn answered(&mut self, was_there: bool) {
        self.unanswered = self.unanswered.saturating_sub(1 + usize::from(was_there));
        if self.unanswered == 0 {
            self.loose.clear();
        }
    }
}

impl Campaign {
    /// Notes what it saw while it waits.
    fn wait(&mut self, claim: &Claim, look: Look) -> Acquired {
        let leader = look.first.as_ref().map(keys::leader);
        let token = |leader: Option<&Leader>| leader.and_then(|leader| leader.token);
        let before = self.seen.as_ref().and_then(|(observation, _)| observation.leader.as_ref());
        if let (Some(first), Some(own)) = (&look.first, &self.key)
            && keys::is_deeper(&first.key, own)
            && token(before) != token(leader.as_ref())
        {
            let key = String::from_utf8_lossy(&first.key);
            warn!(
                "{} waits for the etcd key {key}, of an election whose prefix is its name: to etcd they are one queue; name one of them otherwise",
                claim.election
            );
        }
        let observation = Observation { leader, candidates: None };
        self.seen = Some((observation.clone(), clock::now()));
        self.resting = true;
        let target = |kv: KeyValue| (kv.key, look.revision + 1);
        let ahead = look.ahead.map(target);
        let first =
            look.first.map(target).filter(|(key, _)| ahead.as_ref().is_some_and(|(other, _)| other != key));
        self.targets.send_if_modified(|targets| {
            let moved = aim(&mut targets.ahead, ahead);
            aim(&mut targets.first, first) || moved
        });
        held(claim, observation)
    }

    /// Whom the leader is or was asked to hand over to, if that is another candidate and this one has not yet considered
    /// it.
    fn must_make_way(&mut self, claim: &Claim, look: &Look) -> Option<CandidateId> {
        let note = look.note.as_ref()?;
        if self.obeyed == note.mod_revision {
            return None;
        }
        self.obeyed = note.mod_revision;
        let request = HandoverRequest::decode(&keys::note(note).ok()?).ok()??;
        // The leader that it names may have gone already.
        let before = self.seen.as_ref().and_then(|(observation, _)| observation.leader.as_ref()?.token);
        let now = look.first.as_ref().map(|kv| FencingToken(kv.create_revision as u64));
        let addressed = [before, now].contains(&Some(request.token));
        request.to.filter(|to| addressed && *to != claim.id)
    }
}

fn held(claim: &Claim, observation: Observation) -> Acquired {
    // It costs nothing as long as the watches are silent, and shows that the campaign goes on.
    Acquired::Held { observation, try_again: clock::now() + claim.ttl / 2 }
}

/// What an attempt of a waiting candidate saw.
struct Look {
    first: Option<KeyValue>,
    ahead: Option<KeyValue>,
    note: Option<KeyValue>,
    revision: i64,
}

impl Look {
    /// From an answer whose operations from the `from`-th on are those of [`Shared::looking`].
    fn new(answer: &Answer, from: usize, own: &str) -> Look {
        let one = |index: usize| read(&answer.body, index).first().cloned();
        let ahead = read(&answer.body, from + 1).iter().find(|kv| kv.key != own.as_bytes());
        Look { first: one(from), ahead: ahead.cloned(), note: one(from + 2), revision: answer.revision }
    }
}

/// What a call for a campaign begins with.
enum Step {
    /// Nothing has happened since the last look.
    Quiet(Observation),
    /// It has no key.
    Create,
    /// Its key is gone, by what its process knows.
    Requeue(String),
    /// Its key may change its lease at any moment.
    Settle,
    /// Its key is here.
    Prove(String, Place),
}

impl Shared {
    /// Tries once to win.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let name = (claim.election.clone(), claim.nonce);
        if self.state().campaigns.get(&name).is_some_and(|campaign| campaign.leaving.is_some()) {
            self.remove(&name).await?;
        }
        self.asked(&name);
        for _ in 0..MOVES {
            let acquired = match self.step(&name) {
                Step::Quiet(observation) => Some(held(claim, observation)),
                Step::Create => self.create(claim, &name).await?,
                Step::Requeue(key) => {
                    self.requeue(&name, &key).await?;
                    None
                }
                Step::Settle => {
                    self.round().await?;
                    None
                }
                Step::Prove(key, place) => self.prove(claim, &name, key, place).await?,
            };
            if let Some(acquired) = acquired {
                // Whoever is told of a proof may count on it for a ttl.
                self.asked(&name);
                return Ok(acquired);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the election's queue changes faster than it can be followed")
            .with_backend("etcd"))
    }

    fn step(&self, name: &Name) -> Step {
        let mut state = self.state();
        let state = &mut *state;
        let Some(campaign) = state.campaigns.get_mut(name) else { return Step::Create };
        let Some(key) = campaign.key.clone() else { return Step::Create };
        let Some(place) = state.session.place(&key) else {
            if state.session.is_gone(&key) {
                return Step::Requeue(key);
            }
            return Step::Create;
        };
        if state.session.is_doubtful(&key) {
            return Step::Settle;
        }
        match &campaign.seen {
            Some((observation, at))
                if campaign.resting
                    && !campaign.stale
                    && !campaign.quiet.is_empty()
                    && campaign.quiet.iter().all(Quiet::holds)
                    && clock::now() < *at + LOOK_AT_LEAST =>
            {
                Step::Quiet(observation.clone())
            }
            _ => Step::Prove(key, place),
        }
    }

    /// Gives up a key that was deleted or overwritten by hand, or whose lease ran out: the campaign queues anew, with a name that
    /// was never used. What was written over it has no lease that would end it, and would keep its place in the queue for ever.
    async fn requeue(&self, name: &Name, key: &String) -> Result<()> {
        let request = TxnRequest { success: vec![delete(key.clone())], ..Default::default() };
        self.batcher.submit(&name.0, request).await?;
        let mut state = self.state();
        let state = &mut *state;
        state.session.forget(key);
        if let Some(campaign) = state.campaigns.get_mut(name) {
            campaign.names.remove(key);
            campaign.key = None;
            // What a lost request may still create would stand in the queue for nobody.
            campaign.loose.iter().for_each(|lease| state.session.condemn(*lease));
        }
        Ok(())
    }

    /// Creates the key, or finds that a lost request has done so.
    async fn create(&self, claim: &Claim, name: &Name) -> Result<Option<Acquired>> {
        let lease = self.lease().await?;
        let key = {
            let mut state = self.state();
            let old = state.campaigns.get(name).and_then(|campaign| campaign.key.clone());
            let key = old.unwrap_or_else(|| state.new_name(&self.keys, &name.0, lease));
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            campaign.begin();
            campaign.key = Some(key.clone());
            campaign.sending(&key, lease);
            key
        };
        // Who finds the queue empty leads from now on; who does not says since when once he does.
        let (first, end) = self.keys.election(&name.0);
        let nobody = Compare::equal(first, TargetUnion::CreateRevision(0)).for_all_until(end);
        let write = TxnRequest {
            compare: vec![nobody],
            success: vec![self.write(claim, &key, lease, clock::unix_ms())],
            failure: vec![self.write(claim, &key, lease, None)],
        };
        let request = TxnRequest {
            compare: vec![Compare::equal(key.as_str(), TargetUnion::CreateRevision(0))],
            success: [write.into()].into_iter().chain(self.looking(claim, None)).collect(),
            failure: vec![get(&key)],
        };
        let outcome = self.batcher.submit(&name.0, request).await;
        let mut state = self.state();
        let state = &mut *state;
        let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(failure) => {
                if !failure.is_ambiguous() {
                    campaign.answered(false);
                }
                if failure.kind() == ErrorKind::NotFound {
                    state.session.not_kept(lease);
                    return Ok(None);
                }
                return Err(failure);
            }
        };
        campaign.answered(!answer.body.succeeded);
        if !answer.body.succeeded {
            let found = read(&answer.body, 0).first();
            let own = found.filter(|kv| keys::contender(kv).nonce == Some(name.1)).map(place);
            match own.filter(|place| state.session.life(place.lease).is_some()) {
                Some(place) => {
                    state.session.attach(key, place);
                    self.attached();
                }
                None => campaign.key = None, // someone else's; take another name
            }
            return Ok(None);
        }
        let place = Place { revision: answer.revision as u64, lease };
        state.session.attach(key.clone(), place);
        self.attached();
        let look = Look::new(&answer, 1, &key);
        campaign.targets.send_replace(Targets {
            own: Some((key.clone(), answer.revision + 1)),
            ahead: look.ahead.as_ref().map(|kv| (kv.key.clone(), answer.revision + 1)),
            first: None,
        });
        // Whoever a request names was there before this key.
        campaign.obeyed = look.note.as_ref().map_or(0, |note| note.mod_revision);
        if look.ahead.is_some() {
            return Ok(Some(campaign.wait(claim, look)));
        }
        state.session.lead(&key);
        let proof = state.session.proven(&key, lease, answer.answered);
        Ok(self.elected(claim, place, proof))
    }

    /// Shows by a write that the key is where it was and the first in its queue.
    async fn prove(&self, claim: &Claim, name: &Name, key: String, place: Place) -> Result<Option<Acquired>> {
        let note_known = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            campaign.begin();
            campaign.obeyed
        };
        let (first, end) = self.keys.election(&name.0);
        let nobody_before = Compare::equal(first, TargetUnion::CreateRevision(place.revision as i64 - 1))
            .but(CompareResult::Greater)
            .for_all_until(end);
        // A request to make way must be seen before it is too late to obey it.
        let note = self.keys.note(&name.0, Note::Handover);
        let no_news = Compare::equal(note, TargetUnion::ModRevision(note_known));
        let mut compare = still(&key, place);
        compare.extend([nobody_before, no_news]);
        let request = TxnRequest {
            compare,
            success: vec![self.write(claim, &key, place.lease, clock::unix_ms())],
            failure: [get(&key)].into_iter().chain(self.looking(claim, Some(place))).collect(),
        };
        let answer = self.batcher.submit(&name.0, request).await?;
        if answer.body.succeeded {
            let proof = {
                let mut state = self.state();
                state.session.lead(&key);
                if let Some(campaign) = state.campaigns.get_mut(name) {
                    campaign.seen = None;
                    campaign.targets.send_if_modified(|targets| {
                        let moved = aim(&mut targets.ahead, None);
                        aim(&mut targets.first, None) || moved
                    });
                }
                state.session.proven(&key, place.lease, answer.answered)
            };
            if let Some(acquired) = self.elected(claim, place, proof) {
                return Ok(Some(acquired));
            }
            // The lease is too old to build a term on.
            self.round().await?;
            let proof = self.state().session.proof(&key);
            return Ok(self.elected(claim, place, proof));
        }
        let look = Look::new(&answer, 1, &key);
        let make_way = {
            let mut state = self.state();
            let state = &mut *state;
            state.session.found(&key, own_place(&answer.body, 0));
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            if state.session.place(&key).is_none() {
                return Ok(None);
            }
            campaign.must_make_way(claim, &look)
        };
        if let Some(to) = make_way
            && self.make_way(claim, name, &key, &to).await?
        {
            return Ok(None);
        }
        if look.ahead.is_none() {
            return Ok(None); // only its lease has changed, or the note
        }
        Ok(self.state().campaigns.get_mut(name).map(|campaign| campaign.wait(claim, look)))
    }

    /// `Some` if `proof` leaves enough time for a term.
    fn elected(&self, claim: &Claim, place: Place, proof: Option<Proof>) -> Option<Acquired> {
        let proof = proof.filter(|proof| clock::now() < proof.sent_at + self.ttl / 2)?;
        Some(Acquired::Granted(Grant {
            token: Some(FencingToken(place.revision)),
            authority: self.authority(),
            sent_at: proof.sent_at,
            ttl: proof.ttl.min(claim.ttl),
        }))
    }

    // ---- hand-over ----

    /// Queues anew behind everyone if the candidate `to` stands behind this one; true if something has changed.
    async fn make_way(&self, claim: &Claim, name: &Name, key: &str, to: &CandidateId) -> Result<bool> {
        let queue = self.queue(&name.0).await?;
        let mut behind = queue.iter().skip_while(|kv| kv.key != key.as_bytes());
        if !behind.any(|kv| keys::contender(kv).id == to.as_str()) {
            return Ok(false);
        }
        let (new_key, old) = {
            let mut state = self.state();
            let Some(old) = state.session.place(&key.to_owned()) else { return Ok(true) };
            let new_key = state.new_name(&self.keys, &name.0, old.lease);
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(true) };
            campaign.sending(&new_key, old.lease);
            // Until it is answered, it may delete the old key at any moment.
            state.session.doubt(&key.to_owned());
            (new_key, old)
        };
        let request = TxnRequest {
            compare: still(key, old),
            success: vec![delete(key.to_owned()), self.write(claim, &new_key, old.lease, None)],
            failure: vec![get(key)],
        };
        let outcome = self.batcher.submit(&name.0, request).await;
        let mut state = self.state();
        let state = &mut *state;
        let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(true) };
        if !outcome.as_ref().is_err_and(Error::is_ambiguous) {
            campaign.answered(false);
        }
        let answer = outcome?;
        if answer.body.succeeded {
            state.session.forget(&key.to_owned());
            campaign.names.remove(key);
            campaign.key = Some(new_key.clone());
            let place = Place { revision: answer.revision as u64, lease: old.lease };
            state.session.attach(new_key.clone(), place);
            let own = Some((new_key, answer.revision + 1));
            campaign.targets.send_replace(Targets { own, ..Targets::default() });
        } else {
            state.session.found(&key.to_owned(), own_place(&answer.body, 0));
        }
        Ok(true)
    }

    // ---- the other calls ----

    /// Proves the grant current, from a round that it shares with all led keys of this process.
    pub(super) async fn extend(&self, claim: &Claim, grant: &Grant) -> Result<Renewed> {
        let name = (claim.election.clone(), claim.nonce);
        let token = grant.token.map(|token| token.0);
        self.asked(&name);
        let (mut known, mut outcome) = (None, Ok(()));
        for attempt in 0..4 {
            let Some((proof, stale)) = self.proof_of(&name, token) else {
                let observation = self.look_at(&claim.election).await.unwrap_or_default();
                return Ok(Renewed::Lost(observation));
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
        Err(Error::new(ErrorKind::Unavailable, "the grant was not proven in this round").with_backend("etcd"))
    }

    /// The latest proof of the grant `token`, and whether something has happened to it that only a further round can judge.
    /// `None` if the grant is gone.
    fn proof_of(&self, name: &Name, token: Option<u64>) -> Option<(Proof, bool)> {
        let mut state = self.state();
        let running = state.is_running();
        let state = &mut *state;
        let campaign = state.campaigns.get_mut(name).filter(|campaign| campaign.leaving.is_none())?;
        let key = campaign.key.as_ref()?;
        state.session.place(key).filter(|place| Some(place.revision) == token)?;
        let stale = campaign.stale;
        // The round under way may have looked before it happened.
        campaign.stale &= running;
        Some((state.session.proof(key)?, stale))
    }

    /// Ends the campaign.
    pub(super) async fn release(&self, claim: &Claim) -> Result<()> {
        self.remove(&(claim.election.clone(), claim.nonce)).await
    }

    /// The whole queue of an election, in its order.
    pub(super) async fn queue(&self, election: &ElectionName) -> Result<Vec<KeyValue>> {
        let (key, range_end) = self.keys.election(election);
        let request = RangeRequest {
            key,
            range_end,
            sort_target: SortTarget::Create.into(),
            sort_order: SortOrder::Ascend.into(),
            ..Default::default()
        };
        Ok(self.client.range(request, self.limit).await?.body.kvs)
    }

    /// What the store shows of an election.
    pub(super) async fn look_at(&self, election: &ElectionName) -> Result<Observation> {
        Ok(keys::observation(&self.queue(election).await?))
    }

    /// Notes that someone wants this campaign; makes it if need be.
    fn asked(&self, name: &Name) {
        let now = clock::now();
        self.state().campaigns.entry(name.clone()).or_insert_with(|| Campaign::new(now)).asked_at = now;
    }

    /// What the hints of a campaign come from; changes as the queue does.
    pub(super) fn targets(&self, name: &Name) -> watch::Receiver<Targets> {
        let now = clock::now();
        let mut state = self.state();
        let campaign = state.campaigns.entry(name.clone()).or_insert_with(|| Campaign::new(now));
        campaign.targets.subscribe()
    }

    fn authority(&self) -> Authority {
        let cluster = self.client.cluster_id().unwrap_or_default();
        Authority::new(format!("etcd:{cluster:x}:{}", self.keys.prefix()))
    }

    fn write(&self, claim: &Claim, key: &str, lease: LeaseId, since_unix_ms: Option<u64>) -> RequestOp {
        let value = values::candidate(claim, since_unix_ms);
        PutRequest { key: key.into(), value, lease, ..Default::default() }.into()
    }

    /// Reads the first in the queue, who stands before `own` (or, as the last two, before a key just created), and the
    /// hand-over note.
    fn looking(&self, claim: &Claim, own: Option<Place>) -> [RequestOp; 3] {
        let (key, range_end) = self.keys.election(&claim.election);
        let by_creation = |order: SortOrder, limit| RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit,
            sort_target: SortTarget::Create.into(),
            sort_order: order.into(),
            ..Default::default()
        };
        let before = match own {
            Some(place) => RangeRequest {
                max_create_revision: place.revision as i64 - 1,
                ..by_creation(SortOrder::Descend, 1)
            },
            None => by_creation(SortOrder::Descend, 2),
        };
        [
            by_creation(SortOrder::Ascend, 1).into(),
            before.into(),
            session::get(&self.keys.note(&claim.election, Note::Handover)),
        ]
    }
}
