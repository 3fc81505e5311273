//! What must hold whatever happens: watches every input and output of one elector, with arithmetic of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use incumbent_core::{
    Acquired, Answer, BootInstant, Call, CallId, Elector, Event, Grant, Input, LossReason, Nonce, Output,
    Renewed,
};

/// The term that is open, as the user knows it.
#[derive(Debug)]
struct Term {
    deadline: BootInstant,
    stopping: bool,
}

/// One call under way.
#[derive(Debug)]
struct Pending {
    id: CallId,
    call: Call,
    issued_at: BootInstant,
}

/// An elector and everything that was seen of it. Every broken invariant panics with its name.
#[derive(Debug)]
pub(crate) struct Watched {
    elector: Elector,
    now: BootInstant,
    pending: Option<Pending>,
    term: Option<Term>,
    work_running: bool,
    /// Work that was not confirmed stopped keeps its grant in the store until then.
    unreleased_until: BootInstant,
    superseded: bool,
    ended: bool,
    nonce: Option<Nonce>,
    past_nonces: BTreeSet<Nonce>,
    tokens: BTreeSet<u64>,
    /// The latest moment until which the store's answers allow trust, by the rule in one line: `min(issue, sent) + min(asked, granted)`.
    allowed: BootInstant,
    pub(crate) elections: usize,
}

impl Watched {
    pub(crate) fn new(elector: Elector) -> Watched {
        Watched {
            elector,
            now: BootInstant::ZERO,
            pending: None,
            term: None,
            work_running: false,
            unreleased_until: BootInstant::ZERO,
            superseded: false,
            ended: false,
            nonce: None,
            past_nonces: BTreeSet::new(),
            tokens: BTreeSet::new(),
            allowed: BootInstant::ZERO,
            elections: 0,
        }
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.now
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.elector.config().timing.ttl
    }

    pub(crate) fn poll_timeout(&self) -> Option<BootInstant> {
        self.elector.poll_timeout()
    }

    pub(crate) fn pending(&self) -> Option<(CallId, &Call)> {
        self.pending.as_ref().map(|pending| (pending.id, &pending.call))
    }

    pub(crate) fn work_running(&self) -> bool {
        self.work_running
    }

    pub(crate) fn leads(&self) -> bool {
        self.term.is_some()
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Lets time pass to `now` and does what is due then, not before: a process that was frozen until `now`.
    pub(crate) fn timeout(&mut self, now: BootInstant) -> Vec<Output> {
        self.stand_still(now);
        self.elector.handle_timeout(now);
        let outputs = self.poll();
        self.check(&outputs);
        outputs
    }

    /// Lets time pass to `now`; whatever is handed over next comes late.
    pub(crate) fn stand_still(&mut self, now: BootInstant) {
        assert!(now >= self.now, "the test's own clock went back");
        self.now = now;
    }

    /// Hands over an input at the present moment.
    pub(crate) fn input(&mut self, input: Input) -> Vec<Output> {
        match &input {
            Input::WorkStopped => self.work_running = false,
            Input::Abandoned => {
                if std::mem::take(&mut self.work_running) {
                    self.unreleased_until = self.allowed;
                }
            }
            Input::Answer(..) | Input::Look | Input::Stop(_) | Input::Expired => {}
        }
        self.elector.handle_input(self.now, input.clone());
        let outputs = self.poll();
        if let Input::Answer(id, answer) = &input
            && !outputs.contains(&Output::Cancel(*id))
        {
            self.note_answer(*id, answer);
        }
        self.check(&outputs);
        outputs
    }

    /// An answer that was in time: what it allows.
    fn note_answer(&mut self, id: CallId, answer: &Answer) {
        let Some(pending) = self.pending.take_if(|pending| pending.id == id) else { return };
        let ttl = self.elector.config().timing.ttl;
        let allowed =
            |sent_at: BootInstant, granted: Duration| pending.issued_at.min(sent_at) + ttl.min(granted);
        match (&pending.call, answer) {
            (Call::Acquire(_), Answer::Acquire(Ok(Acquired::Granted(Grant { sent_at, ttl, .. })))) => {
                self.allowed = allowed(*sent_at, *ttl);
            }
            (Call::Renew(..), Answer::Renew(Ok(Renewed::Extended { sent_at, ttl }))) => {
                self.allowed = self.allowed.max(allowed(*sent_at, *ttl));
            }
            (Call::Renew(..), Answer::Renew(Ok(Renewed::Lost(_)))) => self.superseded = true,
            _ => {}
        }
    }

    fn poll(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.elector.poll_output()).collect()
    }

    fn check(&mut self, outputs: &[Output]) {
        assert!(!self.ended || outputs.is_empty(), "nothing comes after Ended: {outputs:?}");
        for output in outputs {
            match output {
                Output::Call(id, call) => self.check_call(*id, call),
                Output::Cancel(id) => {
                    let pending = self.pending.take();
                    assert_eq!(pending.map(|p| p.id), Some(*id), "only the call under way is cancelled");
                }
                Output::Event(event) => self.check_event(event),
            }
        }
        let superseded = std::mem::take(&mut self.superseded);
        assert!(!superseded || self.term.is_none(), "proof of another holder ends the term at once");
        if let Some(term) = &self.term {
            assert!(self.now < term.deadline, "at the deadline the term is over");
        }
        match self.elector.poll_timeout() {
            Some(at) => {
                assert!(at > self.now, "a timeout that is due at once is a busy loop: {:?}", self.elector)
            }
            None => assert!(
                self.ended || self.work_running,
                "without a timeout only the work or nothing is waited for: {:?}",
                self.elector
            ),
        }
    }

    fn check_call(&mut self, id: CallId, call: &Call) {
        assert!(self.pending.is_none(), "one call at a time: {call:?} while {:?}", self.pending);
        match call {
            Call::Acquire(claim) => {
                assert!(self.term.is_none() && !self.work_running, "no campaign before the work has stopped");
                assert!(!self.past_nonces.contains(&claim.nonce), "a nonce serves one campaign");
                if self.nonce != Some(claim.nonce) {
                    assert_eq!(self.nonce, None, "a campaign is ended before the next begins");
                    self.nonce = Some(claim.nonce);
                }
            }
            Call::Renew(claim, _) => {
                assert!(self.term.is_some(), "only a term is renewed");
                assert_eq!(self.nonce, Some(claim.nonce), "a renewal is of the own campaign");
            }
            Call::Release(claim, ..) => {
                assert!(self.term.is_none(), "the term is invalid before its release");
                assert!(!self.work_running, "nothing is released while the work runs");
                assert!(self.now >= self.unreleased_until, "nothing is released while the work may run");
                if let Some(nonce) = self.nonce.take() {
                    self.past_nonces.insert(nonce);
                }
                assert!(self.past_nonces.contains(&claim.nonce), "only an own campaign is released");
            }
            Call::ReadHandover(_) => assert!(self.term.is_some(), "only a leader reads requests to it"),
        }
        self.pending = Some(Pending { id, call: call.clone(), issued_at: self.now });
    }

    fn check_event(&mut self, event: &Event) {
        match event {
            Event::Elected(grant, deadline) => {
                assert!(self.term.is_none(), "a term is lost before the next is won");
                assert!(!self.work_running, "the former term's work has stopped before the next begins");
                let token = grant.token.expect("the tests' store has tokens").0;
                assert!(self.tokens.last().is_none_or(|last| *last < token), "a new term has a new token");
                self.tokens.insert(token);
                self.elections += 1;
                self.check_deadline(*deadline);
                self.term = Some(Term { deadline: *deadline, stopping: false });
                self.work_running = true;
            }
            Event::Extended(deadline) => {
                let before = self.term.as_ref().expect("only a term is extended").deadline;
                assert!(*deadline > before, "a deadline only grows");
                self.check_deadline(*deadline);
                self.term.as_mut().expect("checked").deadline = *deadline;
            }
            Event::Stopping { .. } => {
                let term = self.term.as_mut().expect("only a term is told to stop");
                assert!(!term.stopping, "the work is told once");
                term.stopping = true;
            }
            Event::Lost(reason) => {
                let term = self.term.take().expect("Elected and Lost come in pairs");
                if let LossReason::DrainOverran(_) = reason {
                    self.unreleased_until = self.allowed;
                }
                let told = matches!(reason, LossReason::Stopped(_) | LossReason::DrainOverran(_));
                assert!(!told || term.stopping, "a polite end was announced");
                if let LossReason::Stopped(_) = reason {
                    assert!(!self.work_running, "stopped means confirmed stopped");
                    assert!(
                        !matches!(self.pending, Some(Pending { call: Call::Renew(..), .. }))
                            || self.now >= term.deadline,
                        "a renewal under way is awaited"
                    );
                }
            }
            Event::Ended => {
                assert!(self.term.is_none() && !self.work_running && self.pending.is_none());
                self.ended = true;
            }
            Event::Released { campaigning_at } => {
                assert!(self.term.is_none() && !self.work_running, "released while the work runs");
                assert!(campaigning_at.is_none_or(|at| at >= self.now));
            }
            Event::HandoverIgnored(_) => assert!(self.term.is_some(), "only a leader reads requests to it"),
            Event::LeaderChanged(_) | Event::SameId(_) | Event::Trouble(_) | Event::Recovered => {}
        }
    }

    /// The rule of the design, once more and by hand: trust counts from the send, and ends before the lease does.
    fn check_deadline(&self, deadline: BootInstant) {
        let timing = &self.elector.config().timing;
        assert!(deadline + timing.margin + timing.slack <= self.allowed, "trust outlives the proof");
        assert!(deadline > self.now, "trust that has ended is not handed out");
    }
}
