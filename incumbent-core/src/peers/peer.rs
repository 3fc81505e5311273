//! What a peer of any protocol is made of: its state, whom it follows, what it says.

use super::config::Config;
use super::durable::Durable;
use super::lead::Lead;
use super::message::{Ballot, Envelope, Refusal, Term, Words};
use super::outbox::Outbox;
use super::output::Event;
use super::promise::Promise;
use super::{List, Loss};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::CandidateId;
use crate::rng::Rng;
use crate::time::BootInstant;

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Peer<M> {
    pub(super) config: Config,
    /// A majority decides, and promises bind.
    pub(super) exclusive: bool,
    /// How many peers have a greater priority.
    rank: u32,
    rng: Rng,
    pub(super) durable: Durable,
    pub(super) outbox: Outbox<M>,
    /// The term that this peer won or claims.
    pub(super) lead: Option<Lead>,
    /// Who leads in this term, as far as known.
    pub(super) leader: Option<CandidateId>,
    pub(super) promise: Promise,
    /// The latest term that is known to be over for good.
    pub(super) surrendered: Option<Term>,
    pub(super) data_version: u64,
    /// This peer stands before then; [`BootInstant::ZERO`] if not.
    pub(super) standing_until: BootInstant,
    /// When a peer that stands and does not lead does something about it.
    pub(super) election_at: BootInstant,
}

impl<M> Peer<M> {
    pub(super) fn new(
        config: Config,
        exclusive: bool,
        durable: Durable,
        seed: u128,
        started_at: BootInstant,
    ) -> Result<Peer<M>> {
        durable.check(&config.cluster, &config.id)?;
        if !config.list.members.contains_key(&config.id) {
            let message = format!("peer {} is not in its own list of peers; add it there", config.id);
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let until = if exclusive { config.timing.promise_end(started_at) } else { started_at };
        let mut peer = Peer {
            exclusive,
            rank: config.list.rank(&config.id),
            rng: Rng::new(seed),
            outbox: Outbox::new(durable.clone(), 64 + 4 * config.list.members.len()),
            lead: None,
            leader: None,
            promise: Promise { until, term: durable.term },
            durable,
            surrendered: None,
            data_version: 0,
            standing_until: BootInstant::ZERO,
            election_at: BootInstant::ZERO,
            config,
        };
        peer.await_election(until);
        Ok(peer)
    }

    /// How many acknowledge a leader, itself included.
    pub(super) fn quorum(&self) -> usize {
        if self.exclusive { self.config.list.quorum() } else { 1 }
    }

    pub(super) fn others(&self) -> Vec<CandidateId> {
        self.config.list.others(&self.config.id)
    }

    /// The term of a campaign.
    pub(super) fn next_term(&self) -> Option<Term> {
        self.durable.term.max(self.config.list.floor).next()
    }

    pub(super) fn ballot(&self) -> Ballot {
        Ballot { data_version: self.data_version, surrendered: self.surrendered }
    }

    pub(super) fn is_saved(&self) -> bool {
        self.outbox.is_saved(&self.durable)
    }

    // ---- standing ----

    /// Whether this peer would lead.
    pub(super) fn stands(&self, now: BootInstant) -> bool {
        now < self.standing_until && self.config.list.may_lead(&self.config.id)
    }

    /// When a peer that does not lead has something to do.
    pub(super) fn election_due(&self) -> Option<BootInstant> {
        let ever = self.election_at < self.standing_until && self.config.list.may_lead(&self.config.id);
        ever.then_some(self.election_at)
    }

    /// Whether this peer may hold an election now; if not, it comes back to that.
    pub(super) fn may_elect(&mut self, now: BootInstant) -> bool {
        if self.bound(now) {
            self.await_election(self.promise.until);
            return false;
        }
        if !self.is_saved() {
            // The disk is slow or full; a peer that cannot save what it has must not ask for more.
            self.outbox.save(&self.durable);
            self.retry(now);
            return false;
        }
        true
    }

    // ---- waits ----

    /// Does something about it only after `free_at` and a random wait.
    pub(super) fn await_election(&mut self, free_at: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.election_at(free_at, self.rank, jitter);
    }

    /// Asks anew after a short random wait.
    pub(super) fn retry(&mut self, now: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.retry_at(now, self.rank, jitter);
    }

    /// Waits for what was asked.
    pub(super) fn await_answers(&mut self, now: BootInstant) {
        let jitter = self.rng.jitter();
        self.election_at = self.config.timing.attempt_end(now, jitter);
    }

    pub(super) fn follow(&mut self, leader: Option<CandidateId>) {
        if self.leader != leader {
            self.leader = leader.clone();
            let replaced = |last: &Event| matches!(last, Event::LeaderChanged(_));
            self.outbox.latest_event(Event::LeaderChanged(leader), replaced);
        }
    }
}

impl<M: Words> Peer<M> {
    /// Refuses what must not be looked at.
    pub(super) fn check(&self, envelope: &Envelope<M>) -> core::result::Result<(), Refusal> {
        let Envelope { cluster, list, from, to, term, message } = envelope;
        let own = self.config.list.version;
        // An answer was given to this peer when it had this list or the one before it.
        let (oldest, newest) =
            if message.is_answer() { (own.saturating_sub(1), own) } else { (own, own + 1) };
        if *cluster != self.config.cluster {
            Err(Refusal::OtherCluster)
        } else if *list < oldest {
            Err(Refusal::OlderList)
        } else if *list > newest {
            Err(Refusal::NewerList)
        } else if *from == self.config.id || !self.config.list.members.contains_key(from) {
            Err(Refusal::UnknownSender)
        } else if *to != self.config.id {
            Err(Refusal::OtherReceiver)
        } else if term.max(&message.proposed()).0
            > self.durable.term.max(self.config.list.floor).0.saturating_add(Term::LEAP_MAX)
        {
            Err(Refusal::TermTooGreat)
        } else {
            Ok(())
        }
    }

    pub(super) fn send(&mut self, to: CandidateId, message: M) {
        let envelope = self.envelope(to, message);
        self.outbox.send(&self.durable, envelope);
    }

    fn envelope(&self, to: CandidateId, message: M) -> Envelope<M> {
        Envelope {
            cluster: self.config.cluster.clone(),
            list: self.config.list.version,
            from: self.config.id.clone(),
            to,
            term: self.durable.term,
            message,
        }
    }

    /// Asks all for what this peer asks of itself, too, without waiting for its own disk: a question promises nothing. If it
    /// crashes before its term is durable, it may ask for the same term again, and those who voted for it then still do; or it
    /// votes for another, since its own vote was not counted yet.
    pub(super) fn ask_all(&mut self, message: &M) {
        for peer in self.others() {
            let envelope = self.envelope(peer, message.clone());
            self.outbox.ask(envelope);
        }
        self.outbox.save(&self.durable);
    }

    pub(super) fn broadcast(&mut self, message: &M) {
        for peer in self.others() {
            self.send(peer, message.clone());
        }
    }

    /// Follows a later term (§5.1).
    pub(super) fn adopt(&mut self, now: BootInstant, term: Term) {
        if self.lead.is_some() {
            self.step_down(Loss::Superseded);
            self.retry(now);
        }
        self.durable.term = term;
        self.durable.voted_for = None;
        self.outbox.save(&self.durable);
        self.follow(None);
    }

    /// Ends what may not outlive `now`: a late answer finds its term over.
    pub(super) fn expire(&mut self, now: BootInstant) {
        if let Some(lead) = &self.lead
            && now >= lead.deadline(&self.config.timing)
        {
            self.step_down(Loss::Expired);
            self.retry(now);
        }
        if !self.stands(now) {
            // Once over, it is not due again.
            self.standing_until = BootInstant::ZERO;
            if self.lead.is_some() {
                self.hand_over(now, self.successor());
            }
        }
    }

    /// Puts a later list in force. Says whether it did: what was counted under the earlier one does not count any more.
    pub(super) fn set_list(&mut self, now: BootInstant, list: List) -> bool {
        let own = self.config.list.version;
        if list.version <= own {
            return false;
        }
        if self.lead.is_some() && !list.members.contains_key(&self.config.id) {
            // While the others still know this peer.
            self.hand_over(now, self.successor());
        } else if self.lead.is_some() && (list.version > own + 1 || self.leadership().is_none()) {
            // What was won under a list that is two steps older, and never acknowledged, must not be led in or ended later;
            // nor may acknowledgements be counted together that are so far apart.
            self.step_down(Loss::Superseded);
            self.retry(now);
        }
        self.config.list = list;
        self.rank = self.config.list.rank(&self.config.id);
        // It was said of the terms of this list and of its neighbours.
        self.surrendered = None;
        if let Some(lead) = &mut self.lead {
            lead.forget_acknowledged();
        }
        true
    }
}
