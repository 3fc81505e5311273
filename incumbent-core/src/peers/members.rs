//! Who belongs to the cluster, and how that changes: one member at a time, one list after the other.
//!
//! Each list has a version. The list after version v differs from it by one member and is decided by single-decree Paxos
//! (Lamport, "Paxos Made Simple", 2001) among the members of v, so that there is exactly one. Whoever hears of it adopts it,
//! durably. Two rules keep leaderships apart while lists change:
//!
//! 1. A peer neither votes for nor acknowledges a sender with an older list than its own, or with one that is more than one
//!    step newer (see [`Refusal`](super::Refusal)).
//! 2. An acceptor takes part in the decision of v+2 only when it has had v+1 for as long as a promise lasts, by its own clock,
//!    counted anew from a restart.
//! 3. With its promise an acceptor says the greatest term that it has seen. Whoever campaigns under v+2 takes a greater one
//!    than all of these ([`List::floor`]).
//!
//! Why that is enough: majorities of lists one step apart have a peer in common, which keeps its promise and knows the term.
//! And no leadership under v is alive once v+2 exists, nor has one a greater term than those under v+2: its quorum has a peer
//! in common with the majority of v+1 that took part in the decision, and that one has acknowledged nothing under v for a
//! whole promise, and has told the term.
//!
//! What peers keep together otherwise, by majorities (a [register](super::register)), is to be read, and so written to a
//! majority, under v+1 before v+2 is proposed: see [`Members::propose`].

mod message;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::message::{Message, Turn};

use super::outbox::Outbox;
use super::output::{Output, Proof};
use super::{Envelope, List, Place, Refusal, Term};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, CandidateId};
use crate::time::BootInstant;
use crate::timing::PeerTiming;

/// What must outlive a crash.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Membership {
    /// The cluster that it belongs to.
    pub cluster: Authority,
    /// The peer that it belongs to.
    pub id: CandidateId,
    /// The list in force. Version 0 is that of a peer which is to be added, and takes part in nothing until it is told a list.
    pub list: List,
    /// In the decision of the next list: no turn before this one is answered any more.
    pub promised: Option<Turn>,
    /// What was accepted, and in which turn.
    pub accepted: Option<(Turn, List)>,
}

impl Membership {
    /// The state of a peer that has never taken part. To be made once in a peer's life.
    pub fn new(cluster: Authority, id: CandidateId, list: List) -> Membership {
        Membership { cluster, id, list, promised: None, accepted: None }
    }
}

/// One step from a list to the next one.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Adds a member.
    Add(CandidateId, Place),
    /// Removes a member.
    Remove(CandidateId),
}

impl Change {
    fn apply(&self, list: &List) -> Result<List> {
        let mut next = list.clone();
        next.version += 1;
        let done = match self {
            Change::Add(id, place) => next.members.insert(id.clone(), place.clone()).is_none(),
            Change::Remove(id) => next.members.remove(id).is_some() && !next.members.is_empty(),
        };
        if done {
            return Ok(next);
        }
        let (kind, message) = match self {
            Change::Add(id, _) => {
                (ErrorKind::InvalidConfig, format!("{id} is a member already; name a new one"))
            }
            Change::Remove(id) if list.members.contains_key(id) => {
                (ErrorKind::InvalidConfig, format!("{id} is the last member, which cannot be removed"))
            }
            Change::Remove(id) => {
                (ErrorKind::NotFound, format!("{id} is no member of list {}", list.version))
            }
        };
        Err(Error::new(kind, message))
    }
}

/// What the caller is told.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum News {
    /// This list is decided, and durable here. It must be put in force in all elections of this peer
    /// ([`Protocol::set_list`](super::Protocol::set_list)) before anything else is handed to them.
    Adopted(List),
    /// The list that this peer proposed is durable at a majority of the one before it and at a majority of its own members:
    /// the next change may follow.
    Settled(u64),
}

/// What a change that was proposed here waits for.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Awaited {
    /// That this peer has had its list for long enough.
    Age,
    /// Enough answers of members that have had their list for long enough; so many of that many have come.
    Answers(usize, usize),
    /// That the list is durable at a majority of these, who have not said so yet.
    Adoption(Vec<CandidateId>),
}

/// One peer's list, and its part in the decision of the next one.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Members {
    timing: PeerTiming,
    durable: Membership,
    outbox: Outbox<Message, Membership, News>,
    /// Since when the list is in force here; `None` while it is not durable.
    since: Option<BootInstant>,
    /// The greatest turn that was heard of.
    round: u64,
    /// The greatest term that this peer has seen in any election.
    term: Term,
    proposal: Option<Proposal>,
    spreading: Option<Spreading>,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Proposal {
    wanted: List,
    turn: Turn,
    phase: Phase,
    /// When it is tried again with a greater turn.
    again_at: BootInstant,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum Phase {
    /// Who has promised, what each has accepted, and the greatest term that each has seen.
    Preparing(BTreeMap<CandidateId, (Option<(Turn, List)>, Term)>),
    Accepting(List, BTreeSet<CandidateId>),
}

/// A decided list, on its way to the others.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Spreading {
    former: List,
    adopted: BTreeSet<CandidateId>,
    again_at: BootInstant,
}

impl Members {
    /// A peer that starts at `started_at`, by the boot clock, with what it made durable before.
    pub fn new(timing: PeerTiming, durable: Membership, started_at: BootInstant) -> Members {
        let messages_max = 64 + 4 * durable.list.members.len();
        Members {
            timing,
            outbox: Outbox::new(durable.clone(), messages_max),
            durable,
            since: Some(started_at),
            round: 0,
            term: Term(0),
            proposal: None,
            spreading: None,
        }
    }

    /// This peer has seen `term` in one of its elections. To be told before anything else is handed in.
    pub fn saw(&mut self, term: Term) {
        self.term = self.term.max(term);
    }

    /// The latest list that this peer knows. It may not be durable here yet.
    pub fn list(&self) -> &List {
        &self.durable.list
    }

    /// Whether a change that was proposed here is still on its way.
    pub fn is_changing(&self) -> bool {
        self.proposal.is_some() || self.spreading.is_some()
    }

    /// What the change that was proposed here waits for.
    pub fn awaited(&self, now: BootInstant) -> Option<Awaited> {
        if let Some(spreading) = &self.spreading {
            let concerned = spreading.former.members.keys().chain(self.durable.list.members.keys());
            let missing: BTreeSet<_> =
                concerned.filter(|peer| !spreading.adopted.contains(*peer)).cloned().collect();
            return Some(Awaited::Adoption(missing.into_iter().collect()));
        }
        let answered = match &self.proposal.as_ref()?.phase {
            Phase::Preparing(promised) => promised.len(),
            Phase::Accepting(_, accepted) => accepted.len(),
        };
        Some(match self.has_settled(now) {
            false => Awaited::Age,
            true => Awaited::Answers(answered, self.durable.list.quorum()),
        })
    }

    /// Proposes a change of the list of version `base`. It is made when [`News::Adopted`] tells of a list that has it; of
    /// several that are proposed at one time one is made, and the others are to be proposed again.
    ///
    /// Before, whatever the peers keep by majorities must have been read from a majority of the list `base`, all of which had
    /// that list in force when they answered, and so refuse to write anything under the list before it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::NotFound`]: what cannot be changed. [`ErrorKind::NotLeader`]: this peer is
    /// no member. [`ErrorKind::Unavailable`]: an earlier change of this peer is not settled yet.
    pub fn propose(&mut self, now: BootInstant, base: u64, change: &Change) -> Result<()> {
        let wanted = change.apply(&self.durable.list)?;
        if !self.is_member() {
            let message = format!("peer {} is no member; propose it at a member", self.durable.id);
            return Err(Error::new(ErrorKind::NotLeader, message));
        }
        if self.is_changing() || base != self.durable.list.version {
            let message = "the last change is still on its way; wait until it is settled".to_owned();
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        self.prepare(now, wanted);
        Ok(())
    }

    /// Proposes no longer. What a majority has accepted may be decided all the same.
    pub fn withdraw(&mut self) {
        self.proposal = None;
    }

    /// Takes a message.
    ///
    /// # Errors
    /// Why it was refused. It changed nothing.
    pub fn handle_message(
        &mut self,
        now: BootInstant,
        envelope: Envelope<Message>,
    ) -> core::result::Result<(), Refusal> {
        let Envelope { cluster, list, from, to, term, message } = envelope;
        let own = self.durable.list.version;
        let introduced = match &message {
            Message::Adopt(list) => list.version > own && list.members.contains_key(&from),
            Message::Ask | Message::Adopted { .. } => true,
            _ => false,
        };
        if cluster != self.durable.cluster {
            return Err(Refusal::OtherCluster);
        }
        if to != self.durable.id {
            return Err(Refusal::OtherReceiver);
        }
        if from == self.durable.id || !(introduced || self.durable.list.members.contains_key(&from)) {
            return Err(Refusal::UnknownSender);
        }
        match message {
            Message::Ask => self.tell(from),
            Message::Adopt(list) => {
                if list.version > own {
                    let former = self.durable.list.clone();
                    let proposed = self.proposal.is_some() && list.version == own + 1;
                    self.adopt(list);
                    if proposed {
                        // Another peer has made a decision of what this one was asked for: it, too, sees to it.
                        let adopted = BTreeSet::from([self.durable.id.clone(), from.clone()]);
                        self.spreading = Some(Spreading { former, adopted, again_at: now });
                    }
                }
                let version = self.durable.list.version;
                self.send(from, Message::Adopted { version });
            }
            Message::Adopted { version } => self.adopted(from, version),
            _ if list != own => self.reconcile(&from, list),
            Message::Prepare { turn } => self.asked_to_promise(now, from, turn),
            Message::Promised { turn, accepted } => self.promised(now, from, &turn, (accepted, term)),
            Message::Accept { turn, list } => self.asked_to_accept(now, from, turn, list),
            Message::Accepted { turn } => self.accepted(now, from, &turn),
            Message::Refused { turn } => self.round = self.round.max(turn.round),
        }
        self.advance(now);
        Ok(())
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: BootInstant) {
        self.advance(now);
    }

    /// Takes the proof that a [`Save`](super::Save) was done.
    pub fn handle_proof(&mut self, now: BootInstant, proof: Proof) {
        self.outbox.done(&proof);
        if self.since.is_none() && self.is_saved() {
            self.since = Some(now);
        }
        self.count(now);
        self.advance(now);
    }

    /// The next thing to do; take them all before waiting. `None` also while a barrier is not proven done.
    pub fn poll_output(&mut self) -> Option<Output<Message, Membership, News>> {
        self.outbox.poll(&self.durable)
    }

    /// When [`Members::handle_timeout`] is due next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<BootInstant> {
        let proposal = self.proposal.as_ref().map(|proposal| proposal.again_at);
        let spreading = self.spreading.as_ref().map(|spreading| spreading.again_at);
        proposal.into_iter().chain(spreading).min()
    }

    /// Another peer's list has this version: whoever has the older one is told the newer one. To be called where peers
    /// meet, and when a message was refused for its list.
    pub fn reconcile(&mut self, peer: &CandidateId, version: u64) {
        let own = self.durable.list.version;
        if version < own {
            self.tell(peer.clone());
        } else if version > own {
            self.send(peer.clone(), Message::Ask);
        }
    }

    fn advance(&mut self, now: BootInstant) {
        if let Some(proposal) = self.proposal.take_if(|proposal| proposal.again_at <= now) {
            self.prepare(now, proposal.wanted);
        }
        if let Some(spreading) = &mut self.spreading
            && spreading.again_at <= now
        {
            spreading.again_at = self.timing.answer_end(now);
            let (former, adopted) = (&spreading.former.members, &spreading.adopted);
            let concerned: BTreeSet<_> = former.keys().chain(self.durable.list.members.keys()).collect();
            let missing = concerned.into_iter().filter(|peer| !adopted.contains(*peer));
            for peer in missing.cloned().collect::<Vec<_>>() {
                self.tell(peer);
            }
        }
    }

    fn is_saved(&self) -> bool {
        self.outbox.is_saved(&self.durable)
    }

    fn is_member(&self) -> bool {
        self.durable.list.members.contains_key(&self.durable.id)
    }

    fn tell(&mut self, peer: CandidateId) {
        let list = self.durable.list.clone();
        if list.version > 0 {
            self.send(peer, Message::Adopt(list));
        }
    }

    fn send(&mut self, to: CandidateId, message: Message) {
        if to == self.durable.id {
            return;
        }
        let envelope = Envelope {
            cluster: self.durable.cluster.clone(),
            list: self.durable.list.version,
            from: self.durable.id.clone(),
            to,
            term: self.term,
            message,
        };
        self.outbox.send(&self.durable, envelope);
    }

    fn broadcast(&mut self, message: &Message) {
        for peer in self.durable.list.others(&self.durable.id) {
            self.send(peer, message.clone());
        }
    }

    // ---- the acceptor ----

    /// Rule 2: whether this peer has had its list for long enough to take part in the decision of the next one.
    fn has_settled(&self, now: BootInstant) -> bool {
        self.is_member() && self.settled_at().is_some_and(|settled_at| now >= settled_at)
    }

    fn settled_at(&self) -> Option<BootInstant> {
        self.since.map(|since| self.timing.promise_end(since))
    }

    /// Phase 1: whether it promises to answer no turn before this one.
    fn promise(&mut self, now: BootInstant, turn: &Turn) -> bool {
        let free =
            self.has_settled(now) && self.durable.promised.as_ref().is_none_or(|promised| promised <= turn);
        if free {
            self.durable.promised = Some(turn.clone());
            self.outbox.save(&self.durable);
        }
        free
    }

    /// Phase 2: whether it accepts.
    fn accept(&mut self, now: BootInstant, turn: &Turn, list: &List) -> bool {
        let free = list.follows(&self.durable.list) && self.promise(now, turn);
        if free {
            self.durable.accepted = Some((turn.clone(), list.clone()));
            self.outbox.save(&self.durable);
        }
        free
    }

    fn asked_to_promise(&mut self, now: BootInstant, from: CandidateId, turn: Turn) {
        if self.promise(now, &turn) {
            let accepted = self.durable.accepted.clone();
            self.send(from, Message::Promised { turn, accepted });
        } else {
            self.refuse(from);
        }
    }

    fn asked_to_accept(&mut self, now: BootInstant, from: CandidateId, turn: Turn, list: List) {
        if self.accept(now, &turn, &list) {
            self.send(from, Message::Accepted { turn });
        } else {
            self.refuse(from);
        }
    }

    fn refuse(&mut self, proposer: CandidateId) {
        if let Some(turn) = self.durable.promised.clone() {
            self.send(proposer, Message::Refused { turn });
        }
    }

    // ---- the proposer ----

    /// Begins a turn, which no earlier one of this peer can be taken for: its own promise to it is durable before anybody
    /// hears of it.
    fn prepare(&mut self, now: BootInstant, wanted: List) {
        self.round = self.durable.promised.as_ref().map_or(0, |turn| turn.round).max(self.round) + 1;
        let turn = Turn { round: self.round, proposer: self.durable.id.clone() };
        let mut promised = BTreeMap::new();
        let ready = self.promise(now, &turn);
        if ready {
            promised.insert(self.durable.id.clone(), (self.durable.accepted.clone(), self.term));
        }
        // Two that propose at one time do not wait equally long.
        let place = self.durable.list.members.keys().take_while(|peer| **peer != self.durable.id).count();
        let pause = self.timing.heartbeat_interval * place.try_into().unwrap_or(u32::MAX);
        let again_at = match self.settled_at() {
            Some(settled_at) if !ready => settled_at.max(now),
            _ => self.timing.answer_end(now) + pause,
        };
        let phase = Phase::Preparing(promised);
        self.proposal = Some(Proposal { wanted, turn: turn.clone(), phase, again_at });
        if ready {
            self.broadcast(&Message::Prepare { turn });
            self.count(now);
        }
    }

    fn promised(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        turn: &Turn,
        said: (Option<(Turn, List)>, Term),
    ) {
        if let Some(Proposal { turn: own, phase: Phase::Preparing(promised), .. }) = &mut self.proposal
            && own == turn
        {
            promised.insert(from, said);
            self.count(now);
        }
    }

    fn accepted(&mut self, now: BootInstant, from: CandidateId, turn: &Turn) {
        if let Some(Proposal { turn: own, phase: Phase::Accepting(_, accepted), .. }) = &mut self.proposal
            && own == turn
        {
            accepted.insert(from);
            self.count(now);
        }
    }

    /// Sees whether a majority has answered. Its own answer counts only when it is durable.
    fn count(&mut self, now: BootInstant) {
        if !self.is_saved() {
            return;
        }
        let quorum = self.durable.list.quorum();
        let Some(Proposal { wanted, turn, phase, .. }) = &self.proposal else { return };
        match phase {
            Phase::Preparing(promised) if promised.len() >= quorum => {
                let latest = promised.values().filter_map(|(accepted, _)| accepted.as_ref());
                let list = match latest.max_by(|a, b| a.0.cmp(&b.0)) {
                    Some((_, list)) => list.clone(),
                    None => {
                        let terms = promised.values().map(|(_, term)| *term);
                        List { floor: terms.fold(wanted.floor, Term::max), ..wanted.clone() }
                    }
                };
                let turn = turn.clone();
                let mut accepted = BTreeSet::new();
                if self.accept(now, &turn, &list) {
                    accepted.insert(self.durable.id.clone());
                }
                if let Some(proposal) = &mut self.proposal {
                    proposal.phase = Phase::Accepting(list.clone(), accepted);
                }
                self.broadcast(&Message::Accept { turn, list });
                self.count(now);
            }
            Phase::Accepting(list, accepted) if accepted.len() >= quorum => {
                let (list, former) = (list.clone(), self.durable.list.clone());
                self.adopt(list);
                let adopted = BTreeSet::from([self.durable.id.clone()]);
                self.spreading = Some(Spreading { former, adopted, again_at: now });
            }
            _ => {}
        }
    }

    // ---- everybody ----

    /// The list is decided.
    fn adopt(&mut self, list: List) {
        self.durable.list = list.clone();
        (self.durable.promised, self.durable.accepted) = (None, None);
        (self.since, self.proposal, self.spreading, self.round) = (None, None, None, 0);
        self.outbox.save(&self.durable);
        self.outbox.event(News::Adopted(list));
    }

    fn adopted(&mut self, from: CandidateId, version: u64) {
        let list = &self.durable.list;
        let Some(spreading) = self.spreading.as_mut().filter(|_| version >= list.version) else { return };
        spreading.adopted.insert(from);
        let most_of = |of: &List| {
            of.members.keys().filter(|peer| spreading.adopted.contains(*peer)).count() >= of.quorum()
        };
        if most_of(&spreading.former) && most_of(list) {
            self.spreading = None;
            self.outbox.event(News::Settled(list.version));
        }
    }
}
