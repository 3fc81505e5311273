//! Elections on a ring: the peers in the order of their ids, each of which speaks to the next one only.
//!
//! - Chang and Roberts ("An Improved Algorithm for Decentralized Extrema-Finding in Circular Configurations of Processes",
//!   1979): whoever misses the coordinator sends its number around. A peer passes a greater number on, sends its own
//!   instead of a smaller one if it has not sent any yet, and swallows it if it has. A number that comes back is the
//!   greatest, and its owner sends around that it is elected.
//! - The other form ([`Circulation::Collect`]): the message collects the numbers of all; whoever sent it sees the greatest
//!   when it comes back, and tells that one, which sends around that it is elected.
//!
//! The ring is repaired past dead neighbours: each hop is confirmed, and what is not confirmed in time goes to the next peer
//! but one. Epochs, heartbeats and promises are those of the other protocols; a coordinator that is elected says so around
//! the ring, and to each peer directly from its second round on. With a majority the message counts on its way who would
//! acknowledge a claim, and nobody claims an epoch that it cannot get.

mod message;
mod passing;

pub use self::message::{Message, Number, Word};

use self::passing::{Passing, attempts_of};
use super::claim::{Claimant, Rank};
use super::member::Member;
use super::peer::Peer;
use super::{Claim, ClaimConfig, Criterion, Durable, Envelope, Refusal, Term};
use crate::error::Result;
use crate::ids::CandidateId;
use crate::time::BootInstant;

/// What goes around.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Circulation {
    /// The greatest number so far (Chang and Roberts).
    Greatest,
    /// The numbers of all.
    Collect,
}

/// What a peer is told once.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct RingConfig {
    /// What Bully is told, too.
    pub claim: ClaimConfig,
    /// What goes around. The same at all peers.
    pub circulation: Circulation,
}

/// One peer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Ring {
    peer: Peer<Message>,
    criterion: Criterion,
    circulation: Circulation,
    state: State,
    /// The latest attempt. Those of one life rise, and a restart does not begin with an old one again.
    attempt: u64,
    passing: Passing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum State {
    Idle,
    /// It has sent its number, or passed a greater one on.
    Participant,
    /// It claims the next epoch as soon as that is durable.
    Claiming,
}

impl Member for Ring {
    type Config = RingConfig;
    type Message = Message;

    fn make(config: RingConfig, durable: Durable, seed: u128, started_at: BootInstant) -> Result<Ring> {
        let RingConfig { claim: ClaimConfig { peers, majority, criterion }, circulation } = config;
        let peer = Peer::new(peers, majority, durable, seed, started_at)?;
        let (state, passing) = (State::Idle, Passing::default());
        Ok(Ring { peer, criterion, circulation, state, attempt: attempts_of(seed), passing })
    }

    fn peer(&self) -> &Peer<Message> {
        &self.peer
    }

    fn peer_mut(&mut self) -> &mut Peer<Message> {
        &mut self.peer
    }

    fn check(&self, envelope: &Envelope<Message>) -> core::result::Result<(), Refusal> {
        match &envelope.message {
            Message::Heartbeat(Claim { established: true, .. }) | Message::TakeOver { .. } => {
                self.peer.check_leader(envelope, envelope.term, &envelope.from)
            }
            Message::Pass { word: Word::Elected { coordinator, epoch, claim, .. }, .. }
                if claim.established =>
            {
                self.peer.check_leader(envelope, *epoch, coordinator)
            }
            _ => self.peer.check(envelope),
        }
    }

    fn take(&mut self, now: BootInstant, from: CandidateId, term: Term, message: Message) {
        self.passing.hears(&from);
        match message {
            Message::Pass { hop, word } => {
                self.peer.send(from, Message::Received { hop });
                self.passed(now, word);
            }
            Message::Received { hop } => self.passing.received(&from, hop),
            Message::Chosen => self.chosen(now),
            Message::Heartbeat(claim) => self.heard(now, &from, term, claim),
            Message::HeartbeatAnswer(acknowledgement) => {
                self.peer.acknowledged(now, from, term, acknowledgement);
            }
            Message::TakeOver { named } => self.told_to_take_over(now, term, named),
        }
    }

    fn proven(&mut self, now: BootInstant) {
        self.begin(now);
    }

    fn elect(&mut self, now: BootInstant) {
        self.hold_election(now);
    }

    fn idle(&mut self) {
        self.state = State::Idle;
    }

    fn list_changed(&mut self) {
        self.idle();
        self.passing = Passing::default();
    }

    /// Gives what was not confirmed to the next peer but one.
    fn tend(&mut self, now: BootInstant) {
        while let Some((word, silent)) = self.passing.unconfirmed(now, &self.peer.config.timing) {
            let own = word.owner() == &self.peer.config.id;
            let overtaken = match own {
                true => !word.is_elected() && word.attempt() != self.attempt,
                false => self.passing.is_overtaken(&word),
            };
            if !overtaken {
                self.pass_by(now, word, Some(&silent));
            }
        }
    }

    fn tend_at(&self) -> Option<BootInstant> {
        self.passing.due()
    }
}

impl Claimant for Ring {
    fn claim(&mut self, now: BootInstant) {
        self.state = if self.peer.claim(now) { State::Claiming } else { State::Idle };
        self.begin(now);
    }
}

impl Ring {
    fn number(&self) -> Number {
        Number { id: self.peer.config.id.clone(), data_version: self.peer.data_version }
    }

    fn rank(&self, number: &Number) -> Rank {
        self.peer.rank_of(self.criterion, &number.id, number.data_version)
    }

    // ---- the candidate ----

    /// Sends its number around.
    fn hold_election(&mut self, now: BootInstant) {
        self.state = State::Idle;
        if !self.peer.may_elect(now) {
            return;
        }
        self.peer.follow(None);
        self.take_part(now);
        self.attempt = self.attempt.wrapping_add(1);
        let (number, attempt, surrendered) = (self.number(), self.attempt, self.peer.surrendered);
        let word = match self.circulation {
            Circulation::Greatest => Word::Election { number, attempt, surrendered, hops: 1, ready: 1 },
            Circulation::Collect => Word::Collect {
                starter: number.id.clone(),
                attempt,
                surrendered,
                numbers: vec![number],
                hops: 1,
                ready: 1,
            },
        };
        self.pass(now, word);
    }

    /// Leaves it to what is under way, for a while.
    fn take_part(&mut self, now: BootInstant) {
        self.state = State::Participant;
        self.peer.await_answers(now);
    }

    /// Its number is the greatest, and so many would acknowledge it.
    fn won(&mut self, now: BootInstant, ready: u32) {
        if self.state != State::Participant || self.peer.lead.is_some() {
            return;
        }
        if (ready as usize) < self.peer.quorum() {
            // It has waited for answers, and got too few: no sooner than if it had got none.
            self.state = State::Idle;
            return self.peer.await_answers(now);
        }
        self.claim(now);
    }

    /// Its claim is made, around the ring, once it is durable.
    fn begin(&mut self, now: BootInstant) {
        if self.state != State::Claiming || !self.peer.has_claimed() {
            return;
        }
        self.state = State::Idle;
        self.peer.lead(now, false);
        if let Some(claim) = self.peer.begin_round(now) {
            let (coordinator, epoch) = (self.peer.config.id.clone(), self.peer.durable.term);
            self.pass(now, Word::Elected { coordinator, epoch, claim, hops: 1 });
            self.peer.extend(now);
        }
    }

    /// Another has seen that this one's number is the greatest.
    fn chosen(&mut self, now: BootInstant) {
        if self.state != State::Claiming && self.peer.lead.is_none() && !self.peer.hears_leader(now) {
            self.claim(now);
        }
    }

    // ---- everybody ----

    fn pass(&mut self, now: BootInstant, word: Word) {
        self.pass_by(now, word, None);
    }

    /// Gives `word` to the next peer that is not dead, behind the one that did not confirm it: to each one once.
    fn pass_by(&mut self, now: BootInstant, word: Word, silent: Option<&CandidateId>) {
        let id = &self.peer.config.id;
        let members = || self.peer.config.list.members.keys();
        let around = members().filter(|peer| *peer > id).chain(members().filter(|peer| *peer < id));
        let tried = |peer: &&CandidateId| silent.is_some_and(|silent| *peer != silent);
        let mut left = around.skip_while(tried).skip(usize::from(silent.is_some()));
        match left.find(|peer| !self.passing.is_dead(now, peer)).cloned() {
            Some(next) => {
                let until = self.peer.config.timing.hop_end(now);
                let hop = self.passing.pass(next.clone(), word.clone(), until);
                self.peer.send(next, Message::Pass { hop, word });
            }
            // Nobody else is there: the word has gone around.
            None => self.returned(now, word),
        }
    }

    /// A word comes from the neighbour.
    fn passed(&mut self, now: BootInstant, mut word: Word) {
        let own = &self.peer.config.id;
        if word.owner() == own {
            return self.returned(now, word);
        }
        if !self.passing.is_new(&word) {
            return;
        }
        if !word.hop(self.peer.config.list.members.len()) {
            // Its owner is dead, and it would go around for ever.
            return;
        }
        let stands = self.peer.stands(now);
        let led = self.peer.lead.is_some() || self.peer.hears_leader(now);
        match &mut word {
            Word::Election { number, surrendered, ready, .. } => {
                self.peer.learn_surrendered(*surrendered);
                if led || self.state == State::Claiming {
                    // Who asks will hear of the coordinator.
                    return;
                }
                if stands && self.rank(number) < self.rank(&self.number()) {
                    if self.state == State::Idle {
                        self.hold_election(now);
                    }
                    return;
                }
                *ready += u32::from(self.peer.is_ready(now, self.criterion, number.data_version));
                if stands {
                    self.take_part(now);
                }
            }
            Word::Collect { numbers, surrendered, ready, .. } => {
                self.peer.learn_surrendered(*surrendered);
                if led || self.state == State::Claiming {
                    return;
                }
                *ready += u32::from(!self.peer.bound(now));
                if stands {
                    numbers.push(self.number());
                    self.take_part(now);
                }
            }
            Word::Elected { coordinator, epoch, claim, .. } => {
                let (coordinator, epoch, claim) = (coordinator.clone(), *epoch, *claim);
                self.heard(now, &coordinator, epoch, claim);
            }
        }
        self.pass(now, word);
    }

    /// A word of its own has gone around.
    fn returned(&mut self, now: BootInstant, word: Word) {
        if !word.is_elected() && word.attempt() != self.attempt {
            return;
        }
        match word {
            Word::Election { number, ready, .. } if number.id == self.peer.config.id => self.won(now, ready),
            Word::Collect { starter, numbers, ready, .. } if starter == self.peer.config.id => {
                let greatest = numbers.into_iter().max_by_key(|number| self.rank(number));
                let greatest = greatest.map(|number| number.id);
                match greatest {
                    Some(greatest) if greatest != starter => {
                        if self.state == State::Participant && ready as usize >= self.peer.quorum() {
                            self.peer.send(greatest, Message::Chosen);
                        }
                    }
                    _ => self.won(now, ready),
                }
            }
            _ => {}
        }
    }

    /// A coordinator speaks, itself or around the ring.
    fn heard(&mut self, now: BootInstant, coordinator: &CandidateId, epoch: Term, claim: Claim) {
        let accepted = self.peer.claimed(now, coordinator, epoch, claim, self.criterion);
        if accepted || self.peer.leader.as_ref() == Some(coordinator) {
            self.state = State::Idle;
        }
    }
}
