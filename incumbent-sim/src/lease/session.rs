//! What a backend does for a candidate on a store of leases and keys: the calls that carry out what
//! [`incumbent_core::session`] decides, as a machine that takes one answer at a time.

use std::time::Duration;

use incumbent_core::session::{Answered, LeaseId, Place, Round, Session};
use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, CandidateId, Contender, Error, ErrorKind, FencingToken,
    Grant, Leader, Nonce, Observation, Renewed,
};

use super::queue::{self, Ask};

/// What a process knows of its session.
#[derive(Debug)]
pub(super) struct Memory {
    session: Session<Nonce>,
    /// The latest term that an answer showed.
    term: u64,
    /// The campaign whose key may be there.
    key: Option<Nonce>,
    /// The lease of a create that was not answered.
    loose: Option<LeaseId>,
    node: usize,
    ttl: Duration,
}

impl Memory {
    pub(super) fn new(node: usize, ttl: Duration) -> Memory {
        Memory { session: Session::new(ttl), term: 0, key: None, loose: None, node, ttl }
    }
}

/// The request under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Grant { term: u64 },
    Create(LeaseId),
    Look,
    KeepAlive(LeaseId),
    Guard(LeaseId),
    Move(LeaseId),
    Delete,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Flow {
    step: Step,
    nonce: Nonce,
    /// The keys have been proven anew since the call began.
    round_done: bool,
    begun_at: BootInstant,
}

/// What comes next. Leases that are needed no longer are revoked besides.
#[derive(Debug)]
pub(super) enum Next {
    Send(Ask),
    Answer(Answer),
}

fn failed(call: &Call, message: &str) -> Next {
    let error = Error::new(ErrorKind::Unavailable, message.to_owned());
    Next::Answer(match call {
        Call::Acquire(_) => Answer::Acquire(Err(error)),
        Call::Renew(..) => Answer::Renew(Err(error)),
        Call::Release(..) => Answer::Release(Err(error)),
        Call::ReadHandover(_) => Answer::ReadHandover(Err(error)),
    })
}

impl Flow {
    /// Begins `call`.
    pub(super) fn begin(call: &Call, now: BootInstant, memory: &mut Memory) -> (Flow, Next) {
        let nonce = match call {
            Call::Acquire(claim) | Call::Renew(claim, _) | Call::Release(claim, ..) => claim.nonce,
            Call::ReadHandover(_) => Nonce(0),
        };
        if let Some(old) = memory.key.filter(|old| *old != nonce) {
            // What could not be deleted ends with its lease.
            let lease = memory.session.place(&old).map(|place| place.lease);
            memory.session.forget(&old);
            memory.key = None;
            for lease in lease.into_iter().chain(memory.loose.take()) {
                memory.session.condemn(lease);
            }
        }
        let mut flow = Flow { step: Step::Look, nonce, round_done: false, begun_at: now };
        let next = match call {
            Call::Acquire(_) => match memory.session.place(&nonce) {
                Some(_) => flow.look(),
                None => flow.create(now, memory),
            },
            Call::Renew(..) => flow.round(now, memory),
            Call::Release(..) | Call::ReadHandover(_) => {
                flow.step = Step::Delete;
                Next::Send(Ask::Delete(nonce))
            }
        };
        (flow, next)
    }

    fn look(&mut self) -> Next {
        self.step = Step::Look;
        Next::Send(Ask::Look(self.nonce))
    }

    fn grant(&mut self, memory: &Memory) -> Next {
        if memory.term == 0 {
            // What was applied before the lease is granted has to be known.
            return self.look();
        }
        self.step = Step::Grant { term: memory.term };
        Next::Send(Ask::Grant)
    }

    fn create(&mut self, now: BootInstant, memory: &mut Memory) -> Next {
        match memory.session.usable(now) {
            Some(lease) => {
                self.step = Step::Create(lease);
                memory.key = Some(self.nonce);
                Next::Send(Ask::Create(self.nonce, lease, memory.node))
            }
            None => self.grant(memory),
        }
    }

    /// Proves the key anew.
    fn round(&mut self, now: BootInstant, memory: &mut Memory) -> Next {
        match memory.session.round(now) {
            Round::Keep(lease) => {
                self.step = Step::KeepAlive(lease);
                Next::Send(Ask::KeepAlive(lease))
            }
            Round::Fresh => self.grant(memory),
        }
    }

    /// The request under way was given up: what it may have done is in doubt.
    pub(super) fn given_up(&self, memory: &mut Memory) {
        match self.step {
            Step::Create(lease) => memory.loose = Some(lease),
            Step::KeepAlive(lease) | Step::Guard(lease) => memory.session.not_kept(lease),
            Step::Move(_) => memory.session.doubt(&self.nonce),
            Step::Grant { .. } | Step::Look | Step::Delete => {}
        }
    }

    /// Takes an answer: the request was sent at `sent_at`, and `now` is after the answer came.
    pub(super) fn answered(
        &mut self,
        now: BootInstant,
        sent_at: BootInstant,
        call: &Call,
        memory: &mut Memory,
        ids: &[CandidateId],
        tell: queue::Tell,
    ) -> Next {
        let answered = Answered { sent_at, at: now, term: tell.term };
        memory.term = memory.term.max(tell.term);
        let key = self.nonce;
        match (self.step, tell.answer) {
            (Step::Grant { term }, queue::Answer::Granted(lease)) => {
                memory.session.granted(lease, sent_at, memory.ttl, term);
                match memory.session.place(&key) {
                    Some(place) => self.shift(place, lease),
                    None => self.create(now, memory),
                }
            }
            (Step::Create(lease), queue::Answer::Created(place)) => match place {
                Some(place) if memory.session.life(place.lease).is_some() => {
                    memory.session.attach(key, place);
                    self.look()
                }
                _ => {
                    memory.session.condemn(lease);
                    failed(call, "the lease ended before the key was created")
                }
            },
            (Step::Look, queue::Answer::Seen(first, place)) => {
                self.seen(now, call, memory, ids, first, place)
            }
            (Step::KeepAlive(lease), queue::Answer::Kept(ttl)) => {
                let place = memory.session.place(&key);
                match place.filter(|_| memory.session.kept(lease, ttl, answered)) {
                    Some(place) => {
                        self.step = Step::Guard(lease);
                        Next::Send(Ask::Guard(key, place))
                    }
                    None => {
                        memory.session.not_kept(lease);
                        self.grant(memory)
                    }
                }
            }
            (Step::Guard(lease), queue::Answer::Done) => {
                let place = memory.session.place(&key);
                let proof = place.and_then(|place| memory.session.proven(&key, place.lease, answered));
                if proof.is_some_and(|proof| proof.sent_at >= self.begun_at) {
                    return self.proven(now, call, memory);
                }
                memory.session.not_kept(lease);
                self.grant(memory)
            }
            (Step::Move(lease), queue::Answer::Done) => {
                memory.session.moved(&key, lease);
                self.proven(now, call, memory)
            }
            (Step::Guard(_) | Step::Move(_), queue::Answer::Found(place)) => {
                memory.session.found(&key, place);
                match memory.session.place(&key) {
                    None => self.proven(now, call, memory),
                    Some(_) => failed(call, "the key was moved meanwhile"),
                }
            }
            (Step::Delete, queue::Answer::Done) => {
                memory.session.forget(&key);
                memory.key = None;
                if let Some(lease) = memory.loose.take() {
                    memory.session.condemn(lease);
                }
                Next::Answer(Answer::Release(Ok(())))
            }
            _ => failed(call, "an answer to another question"),
        }
    }

    fn shift(&mut self, place: Place, lease: LeaseId) -> Next {
        self.step = Step::Move(lease);
        Next::Send(Ask::Move(self.nonce, place, lease))
    }

    fn seen(
        &mut self,
        now: BootInstant,
        call: &Call,
        memory: &mut Memory,
        ids: &[CandidateId],
        first: Option<(Nonce, u64, usize)>,
        place: Option<Place>,
    ) -> Next {
        let Call::Acquire(_) = call else {
            // The term was asked for.
            return self.round(now, memory);
        };
        if memory.session.place(&self.nonce).is_none() {
            return self.create(now, memory);
        }
        memory.session.found(&self.nonce, place);
        if memory.session.is_gone(&self.nonce) {
            memory.session.forget(&self.nonce);
            return self.create(now, memory);
        }
        let is_first = first.is_some_and(|(nonce, ..)| nonce == self.nonce);
        if is_first {
            memory.session.lead(&self.nonce);
        }
        let stale = memory.session.kept_at().is_none_or(|kept_at| now.since(kept_at) >= memory.ttl / 4);
        if (is_first || stale) && !self.round_done {
            return self.round(now, memory);
        }
        Next::Answer(Answer::Acquire(Ok(Acquired::Held {
            observation: observation(first, ids),
            try_again: now + memory.ttl / 3,
        })))
    }

    /// A round is done: what it proved is the answer.
    fn proven(&mut self, now: BootInstant, call: &Call, memory: &mut Memory) -> Next {
        self.round_done = true;
        let key = self.nonce;
        let place = memory.session.place(&key);
        let proof = memory.session.proof(&key).filter(|proof| proof.sent_at >= self.begun_at);
        match (call, place, proof) {
            (Call::Acquire(_), None, _) => failed(call, "the key is gone"),
            (Call::Renew(..), None, _) => {
                Next::Answer(Answer::Renew(Ok(Renewed::Lost(Observation::default()))))
            }
            (Call::Acquire(_), Some(_), _) if !memory.session.is_led(&key) => {
                Next::Answer(Answer::Acquire(Ok(Acquired::Held {
                    observation: Observation::default(),
                    try_again: now + memory.ttl / 3,
                })))
            }
            (Call::Acquire(_), Some(place), Some(proof)) => {
                Next::Answer(Answer::Acquire(Ok(Acquired::Granted(Grant {
                    token: Some(FencingToken(place.revision)),
                    authority: Authority::new("queue"),
                    sent_at: proof.sent_at,
                    ttl: proof.ttl,
                }))))
            }
            (Call::Renew(..), Some(_), Some(proof)) => {
                Next::Answer(Answer::Renew(Ok(Renewed::Extended { sent_at: proof.sent_at, ttl: proof.ttl })))
            }
            _ => failed(call, "the key could not be proven"),
        }
    }
}

/// The leases that nothing lives by any more, to be revoked.
pub(super) fn revocable(memory: &mut Memory) -> Vec<LeaseId> {
    let leases = memory.session.take_revocable();
    // Nobody waits for the answer: what is not revoked runs out.
    leases.iter().for_each(|lease| memory.session.ended(*lease));
    leases
}

fn observation(first: Option<(Nonce, u64, usize)>, ids: &[CandidateId]) -> Observation {
    let leader = first.map(|(nonce, revision, owner)| Leader {
        contender: Contender { id: ids[owner].as_str().to_owned(), nonce: Some(nonce), address: None },
        token: Some(FencingToken(revision)),
        since_unix_ms: None,
    });
    Observation { leader, candidates: None }
}
