//! One election at one peer: the protocol's state machine, the candidate that wants to lead here, and those who wait for an answer.
//!
//! Nothing here decides who leads. What it decides is when a leadership that is over may be *said* to be over: when the elector has
//! released it, or when the last deadline has passed that the elector was ever told.

use std::collections::BTreeMap;
use std::time::Duration;

use incumbent_core::peers::{
    Durable, Event, Invalidate, Output, Proof, Protocol, Refusal, Save, Term, Trust,
};
use incumbent_core::{
    Acquired, Authority, BootInstant, CandidateId, Claim, Contender, ElectionName, Error, FencingToken,
    Grant, Nonce, Observation, Renewed, Result,
};
use tokio::sync::oneshot;

use super::wire::{Notice, Say};
use crate::clock;

/// What a seat wants done by its node.
pub(super) enum Act<M> {
    Save(Save),
    Send(CandidateId, Say<M>),
    /// Who leads has changed, or may have.
    Tell,
}

pub(super) struct Seat<P: Protocol> {
    pub(super) election: ElectionName,
    pub(super) protocol: P,
    candidacy: Option<Candidacy>,
    led: Option<Led>,
    /// The end of a leadership that may not be said yet.
    ending: Option<Invalidate>,
    /// The candidates of the other peers, as they said last.
    others: BTreeMap<CandidateId, Notice>,
    waiting: Vec<Waiting>,
    /// When a message came last.
    heard_at: BootInstant,
    /// For the node: when it is to look after this seat again.
    pub(super) due_at: BootInstant,
}

/// Who wants to lead at this peer, and until when unless it asks again.
struct Candidacy {
    claim: Claim,
    until: BootInstant,
}

/// A term that this peer leads or led.
struct Led {
    token: Option<FencingToken>,
    /// The campaign for which it was won.
    nonce: Nonce,
    since_unix_ms: Option<u64>,
    /// The send of the latest proof that the elector was told, and when a trust in it ends at the latest.
    told: Option<(BootInstant, BootInstant)>,
    released: bool,
}

enum Waiting {
    Acquire {
        nonce: Nonce,
        until: BootInstant,
        answer: oneshot::Sender<Result<Acquired>>,
    },
    Renew {
        nonce: Nonce,
        token: Option<FencingToken>,
        /// Until when a loser waits to be told who leads now.
        until: BootInstant,
        answer: oneshot::Sender<Result<Renewed>>,
    },
}

/// What the node knows that matters for an answer.
pub(super) struct Around<'a> {
    pub(super) cluster: &'a Authority,
    /// Why no majority can be reached, or nothing be written.
    pub(super) trouble: Option<Error>,
    /// Whether that is only because connections are being made.
    pub(super) connecting: bool,
}

impl<P: Protocol> Seat<P> {
    pub(super) fn new(election: ElectionName, protocol: P, now: BootInstant) -> Seat<P> {
        Seat {
            election,
            protocol,
            candidacy: None,
            led: None,
            ending: None,
            others: BTreeMap::new(),
            waiting: Vec::new(),
            heard_at: now,
            due_at: BootInstant::ZERO,
        }
    }

    fn ttl(&self) -> Duration {
        self.protocol.config().timing.ttl
    }

    // ---- what happens ----

    pub(super) fn said(
        &mut self,
        now: BootInstant,
        say: Say<P::Message>,
        acts: &mut Vec<Act<P::Message>>,
    ) -> core::result::Result<(), Refusal> {
        self.heard_at = now;
        let from = say.envelope.from.clone();
        let news = match say.notice {
            Some(notice) => self.others.insert(from.clone(), notice.clone()) != Some(notice),
            None => self.others.remove(&from).is_some(),
        };
        if news {
            acts.push(Act::Tell);
        }
        self.protocol.handle_message(now, say.envelope)
    }

    pub(super) fn proven(&mut self, now: BootInstant, proof: Proof) {
        self.protocol.handle_proof(now, proof);
    }

    pub(super) fn timeout(&mut self, now: BootInstant) {
        self.protocol.handle_timeout(now);
        if self.candidacy.as_ref().is_some_and(|candidacy| now >= candidacy.until) {
            self.candidacy = None;
        }
    }

    /// A campaign asks for the election.
    pub(super) fn acquire(
        &mut self,
        now: BootInstant,
        claim: Claim,
        until: BootInstant,
        answer: oneshot::Sender<Result<Acquired>>,
    ) {
        self.timeout(now);
        if let Some(other) = self.candidacy.as_ref().filter(|other| other.claim.nonce != claim.nonce) {
            // One campaign at a time: it is as if the other one led.
            let try_again = other.until.min(now + self.ttl() / 3);
            let _ = answer.send(Ok(Acquired::Held { observation: self.observation(now), try_again }));
            return;
        }
        let nonce = claim.nonce;
        let stands_until = now + self.ttl();
        if self.led.is_none()
            && self.ending.is_none()
            && let Some(trust) = self.protocol.leadership()
        {
            // Won for a campaign that was gone by then, so that nobody was told of it.
            self.led = Some(Led::new(trust, nonce));
        }
        self.candidacy = Some(Candidacy { claim, until: stands_until });
        self.protocol.stand(now, stands_until);
        self.waiting.push(Waiting::Acquire { nonce, until, answer });
    }

    /// A leader asks for more time.
    pub(super) fn renew(
        &mut self,
        now: BootInstant,
        claim: &Claim,
        grant: &Grant,
        until: BootInstant,
        answer: oneshot::Sender<Result<Renewed>>,
    ) {
        let stands_until = now + self.ttl();
        if let Some(own) = self.candidacy.as_mut().filter(|own| own.claim.nonce == claim.nonce) {
            own.until = stands_until;
            self.protocol.stand(now, stands_until);
        }
        self.waiting.push(Waiting::Renew { nonce: claim.nonce, token: grant.token, until, answer });
    }

    /// A campaign ends. The caller sees to it that what comes of it is sent before it answers.
    pub(super) fn release(&mut self, now: BootInstant, nonce: Nonce, next: Option<&CandidateId>) {
        let led = self.led.as_mut().filter(|led| led.nonce == nonce);
        if let Some(led) = led {
            led.released = true;
            if self.ending.is_none() && self.protocol.leadership().is_some() {
                let stands = |(peer, notice): (&CandidateId, &Notice)| {
                    next.is_some_and(|next| notice.contender.id == next.as_str()).then(|| peer.clone())
                };
                let to = self.others.iter().find_map(stands);
                if to.is_none() || self.protocol.surrender(now, to.as_ref()).is_err() {
                    // Whoever was named does not stand any more: any other does.
                    let _ = self.protocol.surrender(now, None);
                }
            }
        }
        if self.candidacy.as_ref().is_some_and(|own| own.claim.nonce == nonce) {
            self.candidacy = None;
            self.protocol.stand(now, BootInstant::ZERO);
        }
    }

    // ---- what follows ----

    /// Takes all that the protocol wants done. Call it after anything has happened.
    pub(super) fn pump(&mut self, now: BootInstant, acts: &mut Vec<Act<P::Message>>) {
        loop {
            match self.protocol.poll_output() {
                Some(Output::Save(save)) => acts.push(Act::Save(save)),
                Some(Output::Invalidate(invalidate)) => {
                    self.ending = Some(invalidate);
                    let spent = self.led.as_ref().filter(|led| led.told.is_some()).map(|led| led.nonce);
                    if self.candidacy.as_ref().is_some_and(|own| Some(own.claim.nonce) == spent) {
                        // A campaign leads in one term only.
                        self.candidacy = None;
                        self.protocol.stand(now, BootInstant::ZERO);
                    }
                    acts.push(Act::Tell);
                }
                Some(Output::Send(envelope)) => {
                    let say = Say { election: self.election.clone(), notice: self.notice(now), envelope };
                    acts.push(Act::Send(say.envelope.to.clone(), say));
                }
                Some(Output::Event(event)) => self.event(event, acts),
                None if self.may_end(now) => {
                    self.led = None;
                    let Some(invalidate) = self.ending.take() else { return };
                    // Whoever was told has released it, or knows by its own clock that it is over.
                    self.protocol.handle_proof(now, invalidate.with(|_, _| {}));
                }
                None => return,
            }
        }
    }

    fn event(&mut self, event: Event, acts: &mut Vec<Act<P::Message>>) {
        match event {
            Event::Elected(trust) => {
                self.led = self.candidacy.as_ref().map(|own| Led::new(trust, own.claim.nonce));
                acts.push(Act::Tell);
            }
            Event::Extended(_) => {}
            Event::LeaderChanged(_) => acts.push(Act::Tell),
        }
    }

    fn may_end(&self, now: BootInstant) -> bool {
        let told = |led: &Led| led.released || led.told.is_none_or(|(_, until)| now >= until);
        self.ending.is_some() && self.led.as_ref().is_none_or(told)
    }

    /// Answers those who wait and can be answered.
    pub(super) fn settle(&mut self, now: BootInstant, around: &Around<'_>) {
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting {
                Waiting::Acquire { answer, .. } if answer.is_closed() => {}
                Waiting::Renew { answer, .. } if answer.is_closed() => {}
                Waiting::Acquire { nonce, until, answer } => match self.acquired(now, nonce, until, around) {
                    Some(acquired) => drop(answer.send(acquired)),
                    None => self.waiting.push(Waiting::Acquire { nonce, until, answer }),
                },
                Waiting::Renew { nonce, token, until, answer } => {
                    match self.renewed(now, nonce, token, until) {
                        Some(renewed) => drop(answer.send(Ok(renewed))),
                        None => self.waiting.push(Waiting::Renew { nonce, token, until, answer }),
                    }
                }
            }
        }
    }

    fn acquired(
        &mut self,
        now: BootInstant,
        nonce: Nonce,
        until: BootInstant,
        around: &Around<'_>,
    ) -> Option<Result<Acquired>> {
        let ttl = self.ttl();
        let own = self.candidacy.as_ref().is_some_and(|own| own.claim.nonce == nonce);
        if own
            && self.ending.is_none()
            && let Some(led) = self.led.as_mut().filter(|led| led.nonce == nonce)
            && let Some(trust) = self.protocol.leadership().filter(|trust| now < trust.valid_until)
        {
            led.tell(trust.sent_at, ttl);
            let grant =
                Grant { token: led.token, authority: around.cluster.clone(), sent_at: trust.sent_at, ttl };
            self.keep_standing(now, trust.sent_at + ttl);
            return Some(Ok(Acquired::Granted(grant)));
        }
        let observation = self.observation(now);
        if !own || observation.leader.is_some() {
            return Some(Ok(Acquired::Held { observation, try_again: now + ttl / 3 }));
        }
        match &around.trouble {
            Some(trouble) if !around.connecting || now >= until => Some(Err(trouble.clone())),
            None if now >= until => Some(Ok(Acquired::Held { observation, try_again: now + ttl / 10 })),
            _ => None,
        }
    }

    fn renewed(
        &mut self,
        now: BootInstant,
        nonce: Nonce,
        token: Option<FencingToken>,
        until: BootInstant,
    ) -> Option<Renewed> {
        let timing = self.protocol.config().timing;
        let trust = self.protocol.leadership().filter(|trust| now < trust.valid_until);
        let led = self.led.as_mut().filter(|led| led.nonce == nonce && led.token == token);
        let (Some(led), Some(trust), None) = (led, trust, &self.ending) else {
            let observation = self.observation(now);
            // Whoever leads now says so soon.
            return (observation.leader.is_some() || now >= until).then_some(Renewed::Lost(observation));
        };
        // One that was told before proves nothing new; an old one gives less time than the next, which comes soon.
        let is_new = led.told.is_none_or(|(sent_at, _)| trust.sent_at > sent_at);
        if !is_new || now > trust.sent_at + timing.heartbeat_interval * 2 {
            return None;
        }
        led.tell(trust.sent_at, timing.ttl);
        self.keep_standing(now, trust.sent_at + timing.ttl);
        Some(Renewed::Extended { sent_at: trust.sent_at, ttl: timing.ttl })
    }

    /// The proof may be younger than the question: who was told of it leads for as long as it says.
    fn keep_standing(&mut self, now: BootInstant, until: BootInstant) {
        if let Some(own) = self.candidacy.as_mut().filter(|own| own.until < until) {
            own.until = until;
            self.protocol.stand(now, until);
        }
    }

    // ---- what it shows ----

    /// The candidate of this peer, as others are told of it.
    pub(super) fn notice(&self, now: BootInstant) -> Option<Notice> {
        let claim = &self.candidacy.as_ref().filter(|own| now < own.until)?.claim;
        let contender =
            Contender { id: claim.id.to_string(), nonce: Some(claim.nonce), address: claim.address.clone() };
        let trusted = self.protocol.leadership().is_some_and(|trust| now < trust.valid_until);
        let led =
            self.led.as_ref().filter(|led| trusted && self.ending.is_none() && led.nonce == claim.nonce);
        Some(Notice { contender, leads: led.map(|led| (led.token, led.since_unix_ms)) })
    }

    /// Who leads, as far as this peer knows.
    fn observation(&self, now: BootInstant) -> Observation {
        let own = self.notice(now);
        let leader = match self.protocol.leader() {
            Some(leader) if *leader == self.protocol.config().id => own.and_then(|own| own.leader()),
            Some(leader) => self.others.get(leader).and_then(Notice::leader),
            None => None,
        };
        Observation { leader, candidates: None }
    }

    // ---- time ----

    /// When [`Seat::timeout`] is due next, if nothing else happens.
    pub(super) fn due(&self) -> BootInstant {
        let now_led = self.led.is_some() && self.ending.is_none();
        let waiting = self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Acquire { until, .. } => Some(*until),
            // A leader waits for a proof, however long that takes.
            Waiting::Renew { until, .. } => (!now_led).then_some(*until),
        });
        let candidacy = self.candidacy.as_ref().map(|own| own.until);
        let ending = self.ending.as_ref().and(self.led.as_ref()).and_then(|led| led.told).map(|told| told.1);
        let all = [self.protocol.poll_timeout(), candidacy, ending];
        all.into_iter().flatten().chain(waiting).min().unwrap_or_else(|| self.idle_at())
    }

    /// When it may be forgotten but for what is on the disk: every promise that it made is over.
    fn idle_at(&self) -> BootInstant {
        self.protocol.config().timing.promise_end(self.heard_at) + self.ttl()
    }

    pub(super) fn is_idle(&self, now: BootInstant) -> bool {
        let idle = self.candidacy.is_none() && self.led.is_none() && self.ending.is_none();
        idle && self.waiting.is_empty() && self.protocol.poll_timeout().is_none() && now >= self.idle_at()
    }
}

impl Led {
    fn new(trust: Trust, nonce: Nonce) -> Led {
        Led { token: trust.token, nonce, since_unix_ms: clock::unix_ms(), told: None, released: false }
    }

    fn tell(&mut self, sent_at: BootInstant, ttl: Duration) {
        let until = self.told.map_or(BootInstant::ZERO, |told| told.1).max(sent_at + ttl);
        self.told = Some((sent_at, until));
    }
}

/// A vote that is not even begun binds nobody: a peer that has never taken part in an election may vote at once.
pub(super) fn silent_from(durable: &Durable, started_at: BootInstant) -> BootInstant {
    if durable.term == Term(0) { BootInstant::ZERO } else { started_at }
}
