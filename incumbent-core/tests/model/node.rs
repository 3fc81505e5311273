//! One candidate: the real elector, the record protocol as an adapter makes its calls, and the work of its term.

use std::time::Duration;

use incumbent_core::record::{Challenger, Holder, Move, Record, Seen, still_held};
use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, CallId, Claim, Elector, ElectorConfig, Event,
    FencingToken, Grant, Input, LossReason, Nonce, Observation, Output, Renewed, StopReason, Stored, Timing,
};

/// One tick of a clock in the record's world, where a ttl has whole milliseconds. A challenger waits 1000 ppm longer
/// than the ttl, for a clock that runs fast by as much; here it does, so the two cancel out and the model has the
/// worst case that is allowed.
const RECORD_TICK: Duration = Duration::from_nanos(1_001_000);

/// A backend that stamps its proofs with nonsense: the elector counts from its own call at the latest. (And one number
/// less makes two states different.)
const NEVER_BELIEVED: BootInstant = BootInstant::FAR_FUTURE;

/// What a candidate asks of the store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Request {
    Read,
    Swap(Swap),
}

/// Write `body` if the record still has the version `expected`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Swap {
    pub(crate) expected: u64,
    pub(crate) raise: bool,
    pub(crate) body: Vec<u8>,
}

/// What the store answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Reply {
    Read(Stored),
    Done { version: u64, token: u64 },
    Conflict,
}

/// The call of an elector and the number of the request within it.
pub(crate) type RequestId = (CallId, u8);

/// The call under way, as a future would hold it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Running {
    id: CallId,
    call: Call,
    issued_at: u64,
    /// Counts its requests, so that a reply finds the one that it answers.
    requests: u8,
    /// What the swap under way writes, if it is one.
    body: Vec<u8>,
}

/// The term as the user's code knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Term {
    pub(crate) token: u64,
    deadline: BootInstant,
    extended: bool,
    stopping: bool,
}

/// From when on an elector trusts an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Anchor {
    /// As it is.
    Send,
    /// As it must not be.
    Response,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    elector: Elector,
    pub(crate) alive: bool,
    /// Stands still, since this moment of true time.
    pub(crate) frozen: Option<u64>,
    /// By how much the elector's clock is behind the node's: the false anchoring, see [`Node::answer`].
    lag: u64,
    pub(crate) term: Option<Term>,
    /// The last term ended politely.
    pub(crate) resigned: bool,
    running: Option<Running>,
    challenger: Option<(Nonce, Challenger)>,
    mine: Option<(u64, Vec<u8>)>,
    /// Requests that were born in this step.
    pub(crate) outbox: Vec<(RequestId, Request)>,
}

fn ticks(count: u64) -> BootInstant {
    BootInstant::from_nanos(count)
}

impl Node {
    pub(crate) fn new(id: &str, timing: Timing) -> Node {
        let config = ElectorConfig {
            election: "e".parse().expect("a valid name"),
            id: id.parse().expect("a valid id"),
            address: None,
            takeover_max: timing.ttl,
            timing,
        };
        let seed = u128::from(id.as_bytes()[0]);
        Node {
            elector: Elector::new(config, seed),
            alive: true,
            frozen: None,
            lag: 0,
            term: None,
            resigned: false,
            running: None,
            challenger: None,
            mine: None,
            outbox: Vec::new(),
        }
    }

    /// What `is_valid()` says: it looks at the clock, whether the elector has run or not.
    pub(crate) fn is_valid(&self, clock: u64) -> bool {
        self.alive && self.term.as_ref().is_some_and(|term| ticks(clock - self.lag) < term.deadline)
    }

    pub(crate) fn is_due(&self, clock: u64) -> bool {
        self.alive && self.elector.poll_timeout().is_some_and(|at| at <= ticks(clock - self.lag))
    }

    /// True while the work was told to stop and still runs.
    pub(crate) fn is_stopping(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.stopping)
    }

    pub(crate) fn crash(&mut self) {
        self.alive = false;
        self.term = None;
        self.running = None;
        self.frozen = None;
    }

    pub(crate) fn is_extended(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.extended)
    }

    pub(crate) fn wake(&mut self, clock: u64) {
        self.elector.handle_timeout(ticks(clock - self.lag));
        self.act(clock);
    }

    pub(crate) fn input(&mut self, clock: u64, input: Input) {
        self.elector.handle_input(ticks(clock - self.lag), input);
        self.act(clock);
    }

    /// Does what the elector puts out.
    fn act(&mut self, clock: u64) {
        while let Some(output) = self.elector.poll_output() {
            match output {
                Output::Call(id, Call::ReadHandover(_)) => {
                    // Not what this model is about.
                    let nothing = Input::Answer(id, Answer::ReadHandover(Ok(None)));
                    self.elector.handle_input(ticks(clock - self.lag), nothing);
                }
                Output::Call(id, call) => self.begin(clock, id, call),
                Output::Cancel(_) => self.running = None,
                Output::Event(event) => self.note(clock, event),
            }
        }
    }

    fn note(&mut self, clock: u64, event: Event) {
        match event {
            Event::Elected(grant, deadline) => {
                let token = grant.token.expect("the store has tokens").0;
                self.term = Some(Term { token, deadline, extended: false, stopping: false });
                self.resigned = false;
                self.challenger = None;
            }
            Event::Extended(deadline) => {
                let term = self.term.as_mut().expect("a term");
                (term.deadline, term.extended) = (deadline, true);
            }
            Event::Stopping { .. } => self.term.as_mut().expect("a term").stopping = true,
            Event::Lost(reason) => {
                self.term = None;
                self.mine = None;
                self.resigned = reason == LossReason::Stopped(StopReason::Resigned);
                // Work whose term is over is dropped at once.
                self.elector.handle_input(ticks(clock - self.lag), Input::WorkStopped);
            }
            _ => {}
        }
    }

    // ---- the adapter ----

    fn begin(&mut self, clock: u64, id: CallId, call: Call) {
        let renews = matches!(call, Call::Renew(..));
        let running = Running { id, call, issued_at: clock, requests: 0, body: Vec::new() };
        match self.mine.clone() {
            Some((version, body)) if renews => self.swap(running, version, false, body),
            _ => self.send(running, Request::Read),
        }
    }

    fn swap(&mut self, mut running: Running, expected: u64, raise: bool, body: Vec<u8>) {
        running.body.clone_from(&body);
        self.send(running, Request::Swap(Swap { expected, raise, body }));
    }

    fn send(&mut self, mut running: Running, request: Request) {
        running.requests += 1;
        self.outbox.push(((running.id, running.requests), request));
        self.running = Some(running);
    }

    pub(crate) fn awaits(&self, id: RequestId) -> bool {
        self.alive && self.running.as_ref().is_some_and(|running| (running.id, running.requests) == id)
    }

    /// A reply to the request that is waited for.
    pub(crate) fn reply(&mut self, clock: u64, reply: Reply, anchor: Anchor) {
        let running = self.running.take().expect("a request is waited for");
        match running.call.clone() {
            Call::Acquire(claim) => self.acquiring(clock, running, &claim, reply, anchor),
            Call::Renew(claim, grant) => self.renewing(clock, running, &claim, &grant, reply, anchor),
            Call::Release(claim, ..) => self.releasing(clock, running, &claim, reply, anchor),
            Call::ReadHandover(_) => unreachable!("it is answered at once"),
        }
    }

    fn acquiring(&mut self, clock: u64, running: Running, claim: &Claim, reply: Reply, anchor: Anchor) {
        match reply {
            Reply::Read(stored) => {
                let seen = Seen::new(Some(stored.clone())).expect("a format of our own");
                let claim = Claim { ttl: record_ttl(claim), ..claim.clone() };
                let challenger = match self.challenger.take() {
                    Some((nonce, challenger)) if nonce == claim.nonce => challenger,
                    _ => Challenger::new(Duration::ZERO),
                };
                let (_, challenger) = self.challenger.insert((claim.nonce, challenger));
                let read_at = BootInstant::ZERO + RECORD_TICK * clock as u32;
                match challenger.judge(&claim, &seen, None, read_at, false) {
                    Move::Wait(until) => {
                        let until = until.as_nanos().div_ceil(RECORD_TICK.as_nanos() as u64);
                        let try_again = ticks(until - self.lag);
                        let held = Acquired::Held { observation: Observation::default(), try_again };
                        self.answer(clock, &running, Answer::Acquire(Ok(held)), anchor);
                    }
                    Move::Take => {
                        let record = Record::held(holder(&claim), claim.ttl);
                        self.swap(running, stored.version, true, record.encode());
                    }
                    Move::Confirm => self.swap(running, stored.version, false, stored.body),
                    Move::Create => unreachable!("the record is there from the start"),
                }
            }
            Reply::Done { version, token } => {
                self.mine = Some((version, running.body.clone()));
                let grant = Grant {
                    token: Some(FencingToken(token)),
                    authority: Authority::new("m"),
                    sent_at: NEVER_BELIEVED,
                    ttl: claim.ttl,
                };
                self.answer(clock, &running, Answer::Acquire(Ok(Acquired::Granted(grant))), anchor);
            }
            Reply::Conflict => self.send(running, Request::Read),
        }
    }

    fn renewing(
        &mut self,
        clock: u64,
        running: Running,
        claim: &Claim,
        grant: &Grant,
        reply: Reply,
        anchor: Anchor,
    ) {
        match reply {
            Reply::Done { version, .. } => {
                self.mine = Some((version, running.body.clone()));
                let extended = Renewed::Extended { sent_at: NEVER_BELIEVED, ttl: claim.ttl };
                self.answer(clock, &running, Answer::Renew(Ok(extended)), anchor);
            }
            Reply::Conflict => self.send(running, Request::Read),
            Reply::Read(stored) => {
                let seen = Seen::new(Some(stored.clone())).expect("a format of our own");
                if still_held(claim, grant.token.expect("the store has tokens"), &seen) {
                    self.swap(running, stored.version, false, stored.body);
                } else {
                    let lost = Renewed::Lost(Observation::default());
                    self.answer(clock, &running, Answer::Renew(Ok(lost)), anchor);
                }
            }
        }
    }

    fn releasing(&mut self, clock: u64, running: Running, claim: &Claim, reply: Reply, anchor: Anchor) {
        match reply {
            Reply::Done { .. } => self.answer(clock, &running, Answer::Release(Ok(())), anchor),
            Reply::Conflict => self.send(running, Request::Read),
            Reply::Read(stored) => {
                let seen = Seen::new(Some(stored.clone())).expect("a format of our own");
                if seen.holder().is_some_and(|holder| holder.id == claim.id && holder.nonce == claim.nonce) {
                    let record = Record::unheld(record_ttl(claim), None);
                    self.swap(running, stored.version, false, record.encode());
                } else {
                    self.answer(clock, &running, Answer::Release(Ok(())), anchor);
                }
            }
        }
    }

    /// Hands the answer to the elector. Anchored at the response, its clock is put back by the time that the answer
    /// took, so that to the elector the answer comes at the moment of the call: all that follows is as if the elector
    /// counted from the response, and the elector is the real one.
    fn answer(&mut self, clock: u64, running: &Running, answer: Answer, anchor: Anchor) {
        let proves = matches!(
            answer,
            Answer::Acquire(Ok(Acquired::Granted(_))) | Answer::Renew(Ok(Renewed::Extended { .. }))
        );
        if proves && anchor == Anchor::Response {
            // What is due by the true clock is done first, as ever.
            self.running = Some(running.clone());
            self.wake(clock);
            if self.running.take_if(|under_way| under_way.id == running.id).is_none() {
                return;
            }
            self.lag += clock - running.issued_at;
        }
        self.input(clock, Input::Answer(running.id, answer));
    }

    /// An answer to a call that is over changes nothing, whatever it says.
    pub(crate) fn assert_ignores(&self, clock: u64, call: CallId) {
        if self.running.as_ref().is_some_and(|running| running.id == call) {
            return;
        }
        let mut before = self.elector.clone();
        before.handle_timeout(ticks(clock - self.lag));
        let mut after = before.clone();
        let extended = Renewed::Extended { sent_at: ticks(clock - self.lag), ttl: Duration::from_nanos(99) };
        after.handle_input(ticks(clock - self.lag), Input::Answer(call, Answer::Renew(Ok(extended))));
        assert_eq!(before, after, "a late answer counted");
    }
}

/// A tick is a nanosecond to the elector (so that its jitter rounds to nothing) and a millisecond to the record.
fn record_ttl(claim: &Claim) -> Duration {
    Duration::from_millis(claim.ttl.as_nanos() as u64)
}

fn holder(claim: &Claim) -> Holder {
    Holder { id: claim.id.clone(), nonce: claim.nonce, address: None, since_unix_ms: None, liveness: None }
}
