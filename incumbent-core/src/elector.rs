//! The elector: one candidate in one election, as a pure state machine. Inputs in, outputs out, time passed in.
//!
//! A caller loops: hand over what happened ([`Elector::handle_input`]) or that time has passed
//! ([`Elector::handle_timeout`]), then take every [`Output`] and act on it in order, then wait until
//! [`Elector::poll_timeout`] or the next input. One call to the backend is under way at a time.
//!
//! Its life: back-off → campaign → term → over (the work is confirmed stopped, the grant is released) → back-off …

mod ending;
mod exchange;

use std::collections::VecDeque;
use std::time::Duration;

pub use self::exchange::{Answer, Call, CallId, Event, Input, LossReason, Output, StopReason};

use crate::backend::{Acquired, Claim, Grant, Leader, Renewed};
use crate::error::{Error, ErrorKind};
use crate::handover::HandoverRequest;
use crate::ids::{CandidateId, ElectionName, Nonce};
use crate::rng::Rng;
use crate::time::{BootInstant, exact};
use crate::timing::Timing;

/// What an elector is told once.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct ElectorConfig {
    /// The election.
    pub election: ElectionName,
    /// The candidate's name.
    pub id: CandidateId,
    /// The address it advertises.
    pub address: Option<String>,
    /// The intervals in force.
    pub timing: Timing,
    /// [`Guarantees::takeover_max`](crate::Guarantees::takeover_max) of the ttl.
    pub takeover_max: Duration,
}

/// One candidate in one election.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Elector {
    config: ElectorConfig,
    rng: Rng,
    state: State,
    pending: Option<Pending>,
    outputs: VecDeque<Output>,
    calls: u64,
    failures: u32,
    shutdown: bool,
    shown: Option<Leader>,
    /// When the last acquire or renewal was sent.
    tried_at: BootInstant,
    /// The campaign before the present one: what is left of it in the store is not another process.
    last_nonce: Option<Nonce>,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
enum State {
    Waiting { until: BootInstant },
    Campaigning { claim: Claim, next_try: BootInstant },
    Leading(Box<Term>),
    Over(Box<Over>),
    Ended,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Term {
    claim: Claim,
    grant: Grant,
    deadline: BootInstant,
    next_renew: BootInstant,
    read_handover: Option<BootInstant>,
    stopping: Option<Stopping>,
    work_stopped: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Stopping {
    reason: StopReason,
    until: Option<BootInstant>,
}

/// A campaign that has ended and must be cleaned up behind.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Over {
    claim: Claim,
    grant: Option<Grant>,
    next: Option<CandidateId>,
    work_running: bool,
    release_at: BootInstant,
    gone_at: BootInstant,
    pause: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Pending {
    id: CallId,
    kind: Kind,
    issued_at: BootInstant,
    look_again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Kind {
    Acquire,
    Renew,
    Release,
    ReadHandover,
}

impl Elector {
    /// A candidate that starts its first campaign with the first [`Elector::handle_timeout`]. `seed` must be random and
    /// never be used twice: nonces come from it.
    pub fn new(config: ElectorConfig, seed: u128) -> Elector {
        Elector {
            config,
            rng: Rng::new(seed),
            state: State::Waiting { until: BootInstant::ZERO },
            pending: None,
            outputs: VecDeque::new(),
            calls: 0,
            failures: 0,
            shutdown: false,
            shown: None,
            tried_at: BootInstant::ZERO,
            last_nonce: None,
        }
    }

    /// The settings in force.
    pub fn config(&self) -> &ElectorConfig {
        &self.config
    }

    /// The campaign under way, for the subscription to the backend's hints.
    pub fn claim(&self) -> Option<&Claim> {
        match &self.state {
            State::Campaigning { claim, .. } => Some(claim),
            State::Leading(term) => Some(&term.claim),
            State::Waiting { .. } | State::Over(_) | State::Ended => None,
        }
    }

    /// Takes what happened at `now`. What is due by then is done first: a late answer finds its term over.
    pub fn handle_input(&mut self, now: BootInstant, input: Input) {
        self.expire(now);
        match input {
            Input::Answer(id, answer) => match self.pending.take() {
                Some(pending) if pending.id == id => self.answered(now, pending, answer),
                other => self.pending = other,
            },
            Input::Look => self.look(now),
            Input::Stop(reason) => self.stop(now, reason),
            Input::WorkStopped => self.work_stopped(now),
            Input::Expired => self.lose(now, LossReason::Expired),
            Input::Abandoned => self.abandoned(now),
        }
        self.advance(now);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: BootInstant) {
        self.expire(now);
        self.advance(now);
    }

    /// The next thing to do; take them all before waiting.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Elector::handle_timeout`] is due next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<BootInstant> {
        let timing = &self.config.timing;
        let idle = self.pending.is_none();
        let (own, next) = match &self.state {
            State::Waiting { until } => (Some(*until), None),
            State::Campaigning { next_try, .. } => (None, idle.then_some(*next_try)),
            State::Leading(term) => {
                let end = match &term.stopping {
                    None => timing.outage_at(term.deadline),
                    Some(Stopping { until: Some(until), .. }) if !term.work_stopped => {
                        term.deadline.min(*until)
                    }
                    Some(_) => term.deadline,
                };
                let read = idle.then_some(term.read_handover).flatten();
                let renew = (idle || self.only_reads()).then_some(term.next_renew);
                (Some(end), renew.into_iter().chain(read).min())
            }
            State::Over(over) => (None, (idle && !over.work_running).then_some(over.release_at)),
            State::Ended => (None, None),
        };
        let call = self.pending.as_ref().map(|pending| pending.issued_at + timing.call_timeout);
        own.into_iter().chain(next).chain(call).min()
    }

    // ---- time ----

    /// Ends what may not outlive `now`: the term first, then the call under way.
    fn expire(&mut self, now: BootInstant) {
        if let State::Leading(term) = &self.state {
            let over = now >= term.deadline;
            let lost = match &term.stopping {
                Some(Stopping { reason, .. }) if over && term.work_stopped => {
                    Some(LossReason::Stopped(reason.clone()))
                }
                _ if over => Some(LossReason::Expired),
                Some(Stopping { reason, until: Some(until) }) if now >= *until && !term.work_stopped => {
                    Some(LossReason::DrainOverran(reason.clone()))
                }
                _ => None,
            };
            if let Some(reason) = lost {
                self.lose(now, reason);
            }
        }
        if let Some(pending) = self.pending.take_if(|p| now >= p.issued_at + self.config.timing.call_timeout)
        {
            self.outputs.push_back(Output::Cancel(pending.id));
            let limit = exact(self.config.timing.call_timeout);
            let error = Error::new(ErrorKind::TimedOut, format!("no answer from the store within {limit}"));
            self.failed(now, pending.kind, error);
        }
    }

    /// Starts what is due at `now`.
    fn advance(&mut self, now: BootInstant) {
        if let State::Waiting { until } = self.state {
            if self.shutdown {
                self.end();
            } else if now >= until {
                let claim = Claim {
                    election: self.config.election.clone(),
                    id: self.config.id.clone(),
                    nonce: self.rng.nonce(),
                    address: self.config.address.clone(),
                    ttl: self.config.timing.ttl,
                };
                self.state = State::Campaigning { claim, next_try: now };
            }
        }
        self.begin_outage(now);
        self.finish_term(now);
        self.give_way(now);
        if self.pending.is_none() {
            self.next_call(now);
        }
    }

    fn only_reads(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.kind == Kind::ReadHandover)
    }

    /// A read that hangs must not delay a renewal.
    fn give_way(&mut self, now: BootInstant) {
        let reads = self.only_reads();
        if let State::Leading(term) = &mut self.state
            && now >= term.next_renew
            && let Some(read) = self.pending.take_if(|_| reads)
        {
            term.read_handover = Some(now);
            self.outputs.push_back(Output::Cancel(read.id));
        }
    }

    fn next_call(&mut self, now: BootInstant) {
        let (kind, call) = match &mut self.state {
            State::Campaigning { claim, next_try } if now >= *next_try => {
                (Kind::Acquire, Call::Acquire(claim.clone()))
            }
            State::Leading(term) if now >= term.next_renew => {
                (Kind::Renew, Call::Renew(term.claim.clone(), term.grant.clone()))
            }
            State::Leading(term) if term.read_handover.is_some_and(|at| now >= at) => {
                term.read_handover = None;
                (Kind::ReadHandover, Call::ReadHandover(term.claim.election.clone()))
            }
            State::Over(over) if !over.work_running && now >= over.release_at => {
                (Kind::Release, Call::Release(over.claim.clone(), over.grant.clone(), over.next.clone()))
            }
            _ => return,
        };
        if matches!(kind, Kind::Acquire | Kind::Renew) {
            self.tried_at = now;
        }
        self.calls += 1;
        let id = CallId(self.calls);
        self.pending = Some(Pending { id, kind, issued_at: now, look_again: false });
        self.outputs.push_back(Output::Call(id, call));
    }

    fn begin_outage(&mut self, now: BootInstant) {
        let State::Leading(term) = &self.state else { return };
        if term.stopping.is_none() && now >= self.config.timing.outage_at(term.deadline) {
            let until = Some(term.deadline);
            self.begin_stop(StopReason::Outage, until);
        }
    }

    // ---- answers ----

    fn answered(&mut self, now: BootInstant, pending: Pending, answer: Answer) {
        let kind = pending.kind;
        let look_again = pending.look_again;
        match (kind, answer) {
            (Kind::Acquire, Answer::Acquire(Ok(acquired))) => {
                self.recovered();
                self.acquired(now, pending.issued_at, acquired);
            }
            (Kind::Renew, Answer::Renew(Ok(renewed))) => {
                self.recovered();
                self.renewed(now, pending.issued_at, renewed);
            }
            (Kind::Release, Answer::Release(Ok(()))) => {
                // Without a grant there may have been nothing to ask the store for.
                if matches!(&self.state, State::Over(over) if over.grant.is_some()) {
                    self.recovered();
                }
                self.tell_released(now);
                self.released(now);
            }
            (Kind::ReadHandover, Answer::ReadHandover(Ok(request))) => self.handover_read(now, request),
            // To read it again would tell no more, until somebody writes another; whoever wrote it learns that nobody goes.
            (Kind::ReadHandover, Answer::ReadHandover(Err(error))) if error.kind() == ErrorKind::Corrupt => {
                self.event(Event::HandoverIgnored(error));
            }
            (_, Answer::Acquire(Err(error)) | Answer::Renew(Err(error)))
            | (_, Answer::Release(Err(error)) | Answer::ReadHandover(Err(error))) => {
                self.failed(now, kind, error)
            }
            (kind, answer) => {
                // A driver that mixes up answers proves nothing.
                let error = Error::new(ErrorKind::Internal, format!("{kind:?} was answered by {answer:?}"));
                self.failed(now, kind, error);
            }
        }
        if look_again {
            self.look(now);
        }
    }

    fn recovered(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.event(Event::Recovered);
        }
    }

    fn failed(&mut self, now: BootInstant, kind: Kind, error: Error) {
        self.failures = self.failures.saturating_add(1);
        // Only who waits for others backs off: a leader's time is short, and a release keeps the successor waiting.
        let in_a_row = if matches!(kind, Kind::Renew | Kind::Release) { 1 } else { self.failures };
        let again = now + self.config.timing.retry_after(in_a_row, self.rng.jitter());
        match (&mut self.state, kind) {
            (State::Campaigning { next_try, .. }, Kind::Acquire) => *next_try = again,
            (State::Leading(term), Kind::Renew) => term.next_renew = again,
            (State::Leading(term), Kind::ReadHandover) => term.read_handover = Some(again),
            (State::Over(over), Kind::Release) => {
                over.release_at = again;
                if again >= over.gone_at {
                    self.released(now);
                }
            }
            _ => {}
        }
        self.event(Event::Trouble(error));
    }

    fn acquired(&mut self, now: BootInstant, issued_at: BootInstant, acquired: Acquired) {
        let State::Campaigning { claim, next_try } = &mut self.state else { return };
        match acquired {
            Acquired::Held { observation, try_again } => {
                *next_try = try_again.max(now + self.config.timing.call_spacing());
                self.show(observation.leader);
            }
            Acquired::Granted(grant) => {
                let timing = self.config.timing;
                let proven_at = issued_at.min(grant.sent_at);
                let deadline = timing.deadline(proven_at, grant.ttl);
                let claim = claim.clone();
                if now >= timing.outage_at(deadline) {
                    // Too late to be of use: its work would be told to stop before it started.
                    self.over(now, claim, Some(grant), false, self.config.timing.retry_pause);
                    return;
                }
                self.shown = None;
                self.state = State::Leading(Box::new(Term {
                    next_renew: timing.renew_at(proven_at, self.rng.jitter()),
                    read_handover: None,
                    claim,
                    deadline,
                    stopping: None,
                    work_stopped: false,
                    grant: grant.clone(),
                }));
                self.event(Event::Elected(grant, deadline));
            }
        }
    }

    fn renewed(&mut self, now: BootInstant, issued_at: BootInstant, renewed: Renewed) {
        let State::Leading(term) = &mut self.state else { return };
        match renewed {
            Renewed::Lost(observation) => {
                let leader = observation.leader;
                self.lose(now, LossReason::Superseded(leader.clone()));
                self.show(leader);
            }
            Renewed::Extended { sent_at, ttl } => {
                let proven_at = issued_at.min(sent_at);
                let deadline = self.config.timing.deadline(proven_at, ttl);
                term.next_renew = self
                    .config
                    .timing
                    .renew_at(proven_at, self.rng.jitter())
                    .max(now + self.config.timing.call_spacing());
                if deadline > term.deadline {
                    term.deadline = deadline;
                    if let Some(Stopping { reason: StopReason::Outage, until }) = &mut term.stopping {
                        // Being told is final, but a later deadline leaves more time to stop in.
                        *until = Some(deadline);
                    }
                    self.event(Event::Extended(deadline));
                }
            }
        }
    }

    fn handover_read(&mut self, now: BootInstant, request: Option<HandoverRequest>) {
        let State::Leading(term) = &self.state else { return };
        if let Some(request) = request
            && Some(request.token) == term.grant.token
        {
            self.stop(now, StopReason::Handover(request.to));
        }
    }

    /// A hint is followed at once if the last try is not too fresh: hints that a try causes must not make it spin, and
    /// hints of an outage must not defeat the back-off.
    fn look(&mut self, now: BootInstant) {
        let timing = self.config.timing;
        let spacing = match &self.state {
            _ if self.failures > 0 => timing.retry_pause,
            State::Campaigning { .. } => timing.hint_spacing(),
            _ => timing.call_spacing(),
        };
        let at = now.max(self.tried_at + spacing);
        match (&mut self.state, &mut self.pending) {
            (State::Campaigning { .. } | State::Leading(_), Some(pending)) => pending.look_again = true,
            (State::Campaigning { next_try, .. }, None) => *next_try = at.min(*next_try),
            (State::Leading(term), None) => {
                term.next_renew = at.min(term.next_renew);
                term.read_handover = Some(at.min(term.read_handover.unwrap_or(at)));
            }
            _ => {}
        }
    }

    // ---- reports ----

    fn show(&mut self, leader: Option<Leader>) {
        let same = match (&self.shown, &leader) {
            (None, None) => true,
            (Some(old), Some(new)) => old.contender == new.contender && old.token == new.token,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(leader) = &leader
            && leader.contender.id == self.config.id.as_str()
            && leader.contender.nonce.is_some_and(|nonce| !self.is_own(nonce))
        {
            self.event(Event::SameId(leader.clone()));
        }
        self.shown.clone_from(&leader);
        self.event(Event::LeaderChanged(leader));
    }

    fn is_own(&self, nonce: Nonce) -> bool {
        self.last_nonce == Some(nonce) || self.claim().is_some_and(|claim| claim.nonce == nonce)
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }
}
