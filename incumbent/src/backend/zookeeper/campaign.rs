//! One candidate's way through the queue of its election: create a node, wait, be first, prove it, leave.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use incumbent_core::session::Proof;
use incumbent_core::{
    Acquired, BootInstant, CandidateId, Claim, ElectionName, Error, ErrorKind, FencingToken, Grant,
    HandoverRequest, Leader, Nonce, Note, Observation, Renewed, Result, Stored,
};
use tokio::sync::watch;

use super::jute::{Mode, Stat, Write, code};
use super::nodes::{Child, Nodes, parent, queue};
use super::session::Shared;
use crate::backend::values;
use crate::clock;

/// A campaign among those of this process.
pub(super) type Name = (ElectionName, Nonce);

/// Moves of one attempt that follow each other without waiting.
const MOVES: usize = 6;

/// What is remembered of a campaign between its calls.
pub(super) struct Campaign {
    /// Held by who creates or deletes for it, one at a time.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// The node that stands for it.
    pub(super) node: Option<Node>,
    /// A creation was sent and not answered: there may be a node that is not known.
    pub(super) unanswered: bool,
    /// When the last call for it came.
    pub(super) asked_at: BootInstant,
    /// Since when it is to be removed.
    pub(super) leaving: Option<BootInstant>,
    /// The leader that it saw last while it waited, by the name of its node.
    leader: Option<(String, Leader)>,
    /// What its hints come from.
    pub(super) targets: watch::Sender<Targets>,
    /// Something has happened to its node that only a further round can judge.
    pub(super) stale: bool,
    /// The hand-over note (its version) that it has obeyed or found to be none of its business; empty until it has looked.
    obeyed: Option<u64>,
}

/// A node of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) path: String,
    /// The session that owns it.
    pub(super) session: i64,
    /// The transaction that created it, which is its token.
    pub(super) created: i64,
    /// The version of what it holds.
    pub(super) version: i32,
    pub(super) value: Vec<u8>,
    /// It was seen first in its queue: from now on it is proven with each round.
    pub(super) led: bool,
    /// The store showed that it is gone, or another's.
    pub(super) gone: bool,
    pub(super) proof: Option<Proof>,
}

impl Node {
    fn new(path: String, stat: Stat, value: Vec<u8>) -> Node {
        let Stat { created, version, owner, .. } = stat;
        Node { path, session: owner, created, version, value, led: false, gone: false, proof: None }
    }

    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// A write that proves it.
    pub(super) fn rewrite(&self) -> Write {
        Write::Set { path: self.path.clone(), data: self.value.clone(), version: Some(self.version) }
    }

    pub(super) fn improve(&mut self, proof: Option<Proof>) {
        if self.proof.map(|proof| proof.sent_at) < proof.map(|proof| proof.sent_at) {
            self.proof = proof;
        }
    }
}

/// The paths that a campaign's hints come from: its own node, the one before it, and the first one if that is another: who
/// leads may change while everyone before this one stays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Targets {
    pub(super) own: Option<String>,
    pub(super) ahead: Option<String>,
    pub(super) first: Option<String>,
}

impl Campaign {
    fn new(now: BootInstant) -> Campaign {
        Campaign {
            turn: Arc::default(),
            node: None,
            unanswered: false,
            asked_at: now,
            leaving: None,
            leader: None,
            targets: watch::Sender::default(),
            stale: false,
            obeyed: None,
        }
    }

    /// It is over; what it left is to be removed.
    pub(super) fn leave(&mut self, now: BootInstant) {
        self.leaving.get_or_insert(now);
    }

    fn aim(&mut self, own: Option<String>, ahead: Option<String>, first: Option<String>) {
        let first = first.filter(|first| ahead.as_ref() != Some(first));
        let targets = Targets { own, ahead, first };
        self.targets.send_if_modified(|old| {
            let changed = *old != targets;
            *old = targets;
            changed
        });
    }

    /// Whom the leader is or was asked to hand over to, if that is another candidate and this one has not yet considered
    /// it. Whoever a request names that was there before this candidate's node is none of its business.
    fn must_make_way(&mut self, claim: &Claim, note: Option<&Stored>, now: &Leader) -> Option<CandidateId> {
        let version = note.map_or(0, |note| note.version);
        let obeyed = self.obeyed.replace(version)?;
        if obeyed == version {
            return None;
        }
        let request = HandoverRequest::decode(note?).ok()??;
        // The leader that it names may have gone already.
        let before = self.leader.as_ref().and_then(|(_, leader)| leader.token);
        let addressed = [before, now.token].contains(&Some(request.token));
        request.to.filter(|to| addressed && *to != claim.id)
    }
}

fn held(claim: &Claim, leader: Option<Leader>) -> Acquired {
    let observation = Observation { leader, candidates: None };
    // Its node has to be asked about within each ttl, which shows that the campaign goes on.
    Acquired::Held { observation, try_again: clock::now() + claim.ttl / 2 }
}

/// What a call for a campaign begins with.
enum Step {
    /// It has no node.
    Create,
    /// There may be nodes that are not known.
    Search,
    /// Its node is gone, by what its process knows.
    Requeue,
    /// Its node is here.
    Look(Node),
}

impl Shared {
    /// Tries once to win.
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let name = (claim.election.clone(), claim.nonce);
        if self.state().campaigns.get(&name).is_some_and(|campaign| campaign.leaving.is_some()) {
            self.remove(&name).await?;
        }
        let turn = self.asked(&name);
        let _turn = turn.lock().await;
        for _ in 0..MOVES {
            let acquired = match self.step(&name) {
                Step::Create => self.create(claim, &name).await?,
                Step::Search => self.adopt(&name).await?,
                Step::Requeue => {
                    // Something else may stand in its place by now, and would for ever.
                    self.take_away(&name).await?;
                    None
                }
                Step::Look(node) => self.look(claim, &name, node).await?,
            };
            if let Some(acquired) = acquired {
                // Whoever is told of a proof may count on it for a ttl.
                self.asked(&name);
                return Ok(acquired);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the election's queue changes faster than it can be followed")
            .with_backend("zookeeper"))
    }

    fn step(&self, name: &Name) -> Step {
        let session = self.client.session();
        let state = self.state();
        let Some(campaign) = state.campaigns.get(name) else { return Step::Create };
        match &campaign.node {
            _ if campaign.unanswered => Step::Search,
            None => Step::Create,
            Some(node) if node.gone || node.session != session => Step::Requeue,
            Some(node) => Step::Look(node.clone()),
        }
    }

    async fn create(&self, claim: &Claim, name: &Name) -> Result<Option<Acquired>> {
        self.authority().await?;
        let dir = self.nodes.election(&name.0)?;
        let value = values::candidate(claim, None);
        let path = Nodes::candidate(&dir, name.1);
        let create = Write::Create { path, data: value.clone(), mode: Mode::EphemeralSequential };
        if let Some(campaign) = self.state().campaigns.get_mut(name) {
            campaign.unanswered = true;
        }
        let outcome = self.client.write(&create).await;
        let done = match outcome {
            Ok(done) => done,
            Err(failure) => {
                self.answered(name, failure.is_ambiguous());
                return Err(failure);
            }
        };
        if done.result == Err(code::NO_NODE) {
            self.answered(name, false);
            self.client.make(&dir).await?;
            return Ok(None);
        }
        let refused = done.result.is_err();
        self.answered(name, !refused);
        let wrote = done.settle(&create)?;
        let (Some(path), Some(stat)) = (wrote.path, wrote.stat) else { return Ok(None) };
        let node = Node::new(path, stat, value);
        if let Some(campaign) = self.state().campaigns.get_mut(name) {
            campaign.unanswered = false;
            campaign.obeyed = None;
            campaign.aim(Some(node.path.clone()), None, None);
            campaign.node = Some(node);
        }
        self.created();
        Ok(None)
    }

    fn answered(&self, name: &Name, unclear: bool) {
        if let Some(campaign) = self.state().campaigns.get_mut(name) {
            campaign.unanswered = unclear;
        }
    }

    /// Finds what creations that were not answered have left. The first is kept; the others are deleted.
    async fn adopt(&self, name: &Name) -> Result<Option<Acquired>> {
        let own = self.own_nodes(name).await?;
        let mut kept = None;
        for path in own {
            if kept.is_none()
                && let Some((value, stat)) = self.client.get(&path).await?
                && stat.owner == self.client.session()
            {
                kept = Some(Node::new(path, stat, value));
                continue;
            }
            let delete = Write::Delete { path };
            let done = self.client.write(&delete).await?;
            if done.result != Err(code::NO_NODE) {
                done.settle(&delete)?;
            }
        }
        if let Some(campaign) = self.state().campaigns.get_mut(name) {
            campaign.unanswered = false;
            campaign.aim(kept.as_ref().map(|node| node.path.clone()), None, None);
            campaign.node = kept;
        }
        self.created();
        Ok(None)
    }

    /// Looks where the node stands in its queue.
    async fn look(&self, claim: &Claim, name: &Name, node: Node) -> Result<Option<Acquired>> {
        let dir = parent(&node.path);
        let (children, note) = join(self.client.children(dir), self.read_note(&name.0, Note::Handover)).await;
        let queue = queue(children?);
        let Some(index) = queue.iter().position(|child| child.name == node.name()) else {
            self.lost(name);
            return Ok(None);
        };
        let [first, ..] = &queue[..] else { return Ok(None) };
        if index == 0 {
            return self.prove(claim, name, node).await;
        }
        let known = self.state().campaigns.get(name).and_then(|campaign| campaign.leader.clone());
        let leader = match known {
            Some((named, leader)) if named == first.name => leader,
            _ => match self.client.get(&format!("{dir}/{}", first.name)).await? {
                Some((value, stat)) => leader(&value, stat, &first.name),
                None => return Ok(None),
            },
        };
        let note = match note {
            Err(failure) if failure.kind() == ErrorKind::Corrupt => None,
            note => note?,
        };
        let make_way = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            let make_way = campaign.must_make_way(claim, note.as_ref(), &leader);
            campaign.leader = Some((first.name.clone(), leader.clone()));
            let path = |child: &Child| Some(format!("{dir}/{}", child.name));
            campaign.aim(Some(node.path.clone()), path(&queue[index - 1]), path(first));
            make_way
        };
        if let Some(to) = make_way
            && self.make_way(claim, name, &node, &queue[index + 1..], &to).await?
        {
            return Ok(None);
        }
        Ok(Some(held(claim, Some(leader))))
    }

    fn lost(&self, name: &Name) {
        let mut state = self.state();
        if let Some(node) = state.campaigns.get_mut(name).and_then(|campaign| campaign.node.as_mut()) {
            node.gone = true;
        }
    }

    /// The node is the first in its queue, and will be as long as it is there. Shows by a write that it is.
    async fn prove(&self, claim: &Claim, name: &Name, node: Node) -> Result<Option<Acquired>> {
        let node = {
            let mut state = self.state();
            let Some(campaign) = state.campaigns.get_mut(name) else { return Ok(None) };
            campaign.leader = None;
            campaign.aim(Some(node.path.clone()), None, None);
            let Some(known) = campaign.node.as_mut() else { return Ok(None) };
            if !known.led {
                known.led = true;
                known.proof = None;
                known.value = values::candidate(claim, clock::unix_ms());
            }
            known.clone()
        };
        if let Some(acquired) = self.elected(claim, &node).await? {
            return Ok(Some(acquired));
        }
        let young = self.client.attachment().is_some_and(|attachment| attachment.is_young(clock::now()));
        if young {
            let done = self.client.write(&node.rewrite()).await?;
            self.rewritten(name, &node, done).await?;
        } else {
            self.round().await?;
        }
        let node = self.state().campaigns.get(name).and_then(|campaign| campaign.node.clone());
        match node.filter(|node| !node.gone) {
            Some(node) => self.elected(claim, &node).await,
            None => Ok(None),
        }
    }

    /// `Some` if the node's proof leaves enough time for a term.
    async fn elected(&self, claim: &Claim, node: &Node) -> Result<Option<Acquired>> {
        let young = |proof: &Proof| clock::now() < proof.sent_at + self.ttl.min(proof.ttl) / 2;
        let Some(proof) = node.proof.filter(young) else { return Ok(None) };
        Ok(Some(Acquired::Granted(Grant {
            token: Some(FencingToken(node.created.unsigned_abs())),
            authority: self.authority().await?,
            sent_at: proof.sent_at,
            ttl: proof.ttl.min(claim.ttl),
        })))
    }

    /// Queues anew behind everyone if the candidate `to` stands behind this one; true if something has changed.
    async fn make_way(
        &self,
        claim: &Claim,
        name: &Name,
        node: &Node,
        behind: &[Child],
        to: &CandidateId,
    ) -> Result<bool> {
        let dir = parent(&node.path);
        let found = join_all(behind.iter().map(|child| async move {
            let found = self.client.get(&format!("{dir}/{}", child.name)).await?;
            Ok(found.is_some_and(|(value, _)| values::contender(&value, &child.name).0.id == to.as_str()))
        }));
        if !found.await.into_iter().collect::<Result<Vec<bool>>>()?.contains(&true) {
            return Ok(false);
        }
        let value = values::candidate(claim, None);
        let path = Nodes::candidate(dir, name.1);
        let create = Write::Create { path, data: value.clone(), mode: Mode::EphemeralSequential };
        let writes = [Write::Delete { path: node.path.clone() }, create];
        self.answered(name, true);
        let outcome = self.client.together(&writes).await;
        let done = outcome.inspect_err(|failure| self.answered(name, failure.is_ambiguous()))?;
        let session = done.attachment.session;
        self.answered(name, false);
        let created = match done.settle(&writes[1])? {
            Ok(wrote) => wrote.into_iter().nth(1),
            Err((_, code::NO_NODE)) => {
                self.lost(name);
                None
            }
            Err((_, code)) => return Err(super::failure::refused(code, writes[1].op(), dir, "the cluster")),
        };
        if let Some((path, stat)) = created.and_then(|wrote| wrote.path.zip(wrote.stat)) {
            let new = Node { session, ..Node::new(path, stat, value) };
            if let Some(campaign) = self.state().campaigns.get_mut(name) {
                campaign.aim(Some(new.path.clone()), None, None);
                campaign.node = Some(new);
            }
        }
        Ok(true)
    }

    // ---- the other calls ----

    /// Proves the grant current, from a round that it shares with all led nodes of this process.
    pub(super) async fn extend(&self, claim: &Claim, grant: &Grant) -> Result<Renewed> {
        let name = (claim.election.clone(), claim.nonce);
        self.asked(&name);
        let token = grant.token.map(|token| token.0);
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
        Err(Error::new(ErrorKind::Unavailable, "the grant was not proven in this round")
            .with_backend("zookeeper"))
    }

    /// The latest proof of the grant `token`, and whether something has happened to it that only a further round can judge.
    /// `None` if the grant is gone.
    fn proof_of(&self, name: &Name, token: Option<u64>) -> Option<(Proof, bool)> {
        let session = self.client.session();
        let mut state = self.state();
        let running = state.is_running();
        let campaign = state.campaigns.get_mut(name).filter(|campaign| campaign.leaving.is_none())?;
        let node = campaign.node.as_ref().filter(|node| !node.gone && node.session == session)?;
        let proof = node.proof.filter(|_| Some(node.created.unsigned_abs()) == token)?;
        let stale = campaign.stale;
        // The round under way may have written before it happened.
        campaign.stale &= running;
        Some((proof, stale))
    }

    /// What the store shows of an election.
    pub(super) async fn look_at(&self, election: &ElectionName) -> Result<Observation> {
        let dir = self.nodes.election(election)?;
        let queue = queue(self.client.children(&dir).await?);
        let entries = queue.iter().map(|child| {
            let path = format!("{dir}/{}", child.name);
            async move { Ok((child, self.client.get(&path).await?)) }
        });
        let entries = join_all(entries).await.into_iter().collect::<Result<Vec<_>>>()?;
        let there: Vec<_> =
            entries.iter().filter_map(|(child, entry)| entry.as_ref().map(|entry| (child, entry))).collect();
        let leader = there.first().map(|(child, (value, stat))| leader(value, *stat, &child.name));
        let candidates =
            there.iter().map(|(child, (value, _))| values::contender(value, &child.name).0).collect();
        Ok(Observation { leader, candidates: Some(candidates) })
    }

    /// A note, with the transaction that wrote it as its version.
    pub(super) async fn read_note(&self, election: &ElectionName, note: Note) -> Result<Option<Stored>> {
        let path = self.nodes.note(election, note);
        let Some((value, stat)) = self.client.get(&path).await? else { return Ok(None) };
        let key = format!("the ZooKeeper node {path}");
        let stored = values::read_note(&value, stat.modified.unsigned_abs(), &key);
        stored.map(Some).map_err(|error| error.with_backend("zookeeper"))
    }

    /// Notes that someone wants this campaign; makes it if need be.
    fn asked(&self, name: &Name) -> Arc<tokio::sync::Mutex<()>> {
        let now = clock::now();
        let mut state = self.state();
        let campaign = state.campaigns.entry(name.clone()).or_insert_with(|| Campaign::new(now));
        campaign.asked_at = now;
        Arc::clone(&campaign.turn)
    }

    /// What the hints of a campaign come from; changes as the queue does.
    pub(super) fn targets(&self, name: &Name) -> watch::Receiver<Targets> {
        let now = clock::now();
        let mut state = self.state();
        let campaign = state.campaigns.entry(name.clone()).or_insert_with(|| Campaign::new(now));
        campaign.targets.subscribe()
    }
}

/// The leader, if this is the first node of the queue.
fn leader(value: &[u8], stat: Stat, name: &str) -> Leader {
    let (contender, since_unix_ms) = values::contender(value, name);
    Leader { contender, token: Some(FencingToken(stat.created.unsigned_abs())), since_unix_ms }
}
