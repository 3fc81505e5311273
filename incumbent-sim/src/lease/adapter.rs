//! What a backend does for a candidate on a store of records: the calls that carry out the protocol of
//! [`incumbent_core::record`], as a machine that takes one answer at a time.

use incumbent_core::record::{Challenger, Holder, Move, Record, Seen, TokenRule, still_held};
use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, Claim, Error, ErrorKind, FencingToken, Grant, Nonce,
    Renewed, Stored,
};

use super::record;
use super::record::Ask;

/// So often an attempt starts anew when others write meanwhile.
const MOVES: u32 = 4;

/// A campaign's memory.
#[derive(Debug)]
pub(super) struct Memory {
    nonce: Nonce,
    challenger: Challenger,
    /// The record as this campaign wrote it, while it leads.
    mine: Option<Stored>,
    /// The store's lineage in which it was granted.
    lineage: u64,
}

impl Memory {
    fn new(nonce: Nonce) -> Memory {
        Memory { nonce, challenger: Challenger::new(std::time::Duration::ZERO), mine: None, lineage: 0 }
    }
}

/// What the request under way is for.
#[derive(Debug)]
enum Step {
    Look,
    Create,
    Take(Record, Vec<u8>),
    Confirm(Record, Vec<u8>),
    Extend(Stored),
    GiveBack,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Flow {
    step: Step,
    left: u32,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    Send(Ask),
    Answer(Answer),
}

fn lineage_name(lineage: u64) -> Option<String> {
    (lineage > 0).then(|| lineage.to_string())
}

fn expected(seen: &Seen) -> Option<(u64, u64)> {
    seen.stored().map(|stored| (stored.version, stored.token))
}

fn is_own(claim: &Claim, seen: &Seen) -> bool {
    seen.holder().is_some_and(|holder| holder.id == claim.id && holder.nonce == claim.nonce)
}

fn contended() -> Error {
    Error::new(ErrorKind::Unavailable, "the record is being written by others; trying again")
}

impl Flow {
    /// Begins `call`.
    pub(super) fn begin(call: &Call, memory: &mut Option<Memory>) -> (Flow, Next) {
        let nonce = match call {
            Call::Acquire(claim) | Call::Renew(claim, _) | Call::Release(claim, ..) => claim.nonce,
            Call::ReadHandover(_) => Nonce(0),
        };
        let memory = match memory {
            Some(known) if known.nonce == nonce => known,
            _ => memory.insert(Memory::new(nonce)),
        };
        let mut flow = Flow { step: Step::Look, left: MOVES };
        let next = match call {
            Call::Renew(..) => flow.extend(memory),
            Call::Release(claim, _, next) => match memory.mine.take() {
                Some(mine) => flow.give_back(claim, next.as_ref(), Some(mine)),
                None => flow.look(),
            },
            Call::Acquire(_) | Call::ReadHandover(_) => flow.look(),
        };
        (flow, next)
    }

    fn look(&mut self) -> Next {
        self.step = Step::Look;
        Next::Send(Ask::Read)
    }

    fn again(&mut self, or: impl FnOnce() -> Answer) -> Next {
        if self.left == 0 {
            return Next::Answer(or());
        }
        self.left -= 1;
        self.look()
    }

    fn extend(&mut self, memory: &mut Memory) -> Next {
        let Some(mine) = memory.mine.clone() else { return self.look() };
        let expected = Some((mine.version, mine.token));
        let body = mine.body.clone();
        self.step = Step::Extend(mine);
        Next::Send(Ask::Swap { expected, token: TokenRule::Keep, body })
    }

    /// Takes an answer: the request was sent at `sent_at`, `now` is after the answer came, and the wall clock
    /// shows `wall_ms`, for people.
    pub(super) fn answered(
        &mut self,
        now: BootInstant,
        sent_at: BootInstant,
        wall_ms: u64,
        call: &Call,
        memory: &mut Option<Memory>,
        tell: record::Tell,
    ) -> Next {
        let Some(memory) = memory else { return Next::Answer(Answer::Release(Ok(()))) };
        match call {
            Call::Acquire(claim) => self.acquiring(now, sent_at, wall_ms, claim, memory, tell),
            Call::Renew(claim, grant) => self.renewing(sent_at, claim, grant, memory, tell),
            Call::Release(claim, _, next) => self.releasing(claim, next.as_ref(), tell),
            Call::ReadHandover(_) => Next::Answer(Answer::ReadHandover(Ok(None))),
        }
    }

    fn acquiring(
        &mut self,
        now: BootInstant,
        sent_at: BootInstant,
        wall_ms: u64,
        claim: &Claim,
        memory: &mut Memory,
        tell: record::Tell,
    ) -> Next {
        let lineage = lineage_name(tell.lineage);
        let held = |seen: &Seen, try_again| {
            Answer::Acquire(Ok(Acquired::Held { observation: seen.observation(), try_again }))
        };
        match (tell.answer, std::mem::replace(&mut self.step, Step::Look)) {
            (record::Answer::Is(stored), _) => {
                let seen = match Seen::new(stored) {
                    Ok(seen) => seen,
                    Err(error) => return Next::Answer(Answer::Acquire(Err(error))),
                };
                let next = memory.challenger.judge(claim, &seen, lineage.as_deref(), now, false);
                let (step, token, body) = match next {
                    Move::Wait(try_again) => return Next::Answer(held(&seen, try_again)),
                    Move::Create => {
                        let record = Record::unheld(claim.ttl, None).within(lineage);
                        (Step::Create, TokenRule::Keep, record.encode())
                    }
                    Move::Take => {
                        let holder = Holder {
                            id: claim.id.clone(),
                            nonce: claim.nonce,
                            address: None,
                            since_unix_ms: Some(wall_ms),
                            liveness: None,
                        };
                        let record = Record::held(holder, claim.ttl).within(lineage);
                        let body = record.encode();
                        memory.lineage = tell.lineage;
                        (Step::Take(record, body.clone()), TokenRule::Raise, body)
                    }
                    Move::Confirm => match &seen {
                        Seen::Record(_, record) => {
                            let record = record.clone().within(lineage);
                            let body = record.encode();
                            memory.lineage = tell.lineage;
                            (Step::Confirm(record, body.clone()), TokenRule::Keep, body)
                        }
                        Seen::Absent | Seen::Unreadable(_) => return self.look(),
                    },
                };
                self.step = step;
                Next::Send(Ask::Swap { expected: expected(&seen), token, body })
            }
            (
                record::Answer::Done { version, token },
                Step::Take(record, body) | Step::Confirm(record, body),
            ) if memory.lineage == tell.lineage => {
                memory.mine = Some(Stored { version, token, body });
                Next::Answer(Answer::Acquire(Ok(Acquired::Granted(Grant {
                    token: Some(FencingToken(token)),
                    authority: Authority::new("record"),
                    sent_at,
                    ttl: record.ttl(),
                }))))
            }
            (record::Answer::Done { .. } | record::Answer::Conflict, _) => {
                self.again(|| held(&Seen::Absent, now))
            }
        }
    }

    fn renewing(
        &mut self,
        sent_at: BootInstant,
        claim: &Claim,
        grant: &Grant,
        memory: &mut Memory,
        tell: record::Tell,
    ) -> Next {
        let lost = |stored| {
            let seen = Seen::new(stored);
            Next::Answer(Answer::Renew(seen.map(|seen| Renewed::Lost(seen.observation()))))
        };
        match (tell.answer, std::mem::replace(&mut self.step, Step::Look)) {
            (record::Answer::Done { version, token }, Step::Extend(mine)) => {
                let stored = Stored { version, token, body: mine.body };
                if memory.lineage != tell.lineage {
                    return lost(Some(stored));
                }
                memory.mine = Some(stored);
                Next::Answer(Answer::Renew(Ok(Renewed::Extended { sent_at, ttl: grant.ttl })))
            }
            (record::Answer::Is(stored), _) => {
                let seen = match Seen::new(stored) {
                    Ok(seen) => seen,
                    Err(error) => return Next::Answer(Answer::Renew(Err(error))),
                };
                if !still_held(claim, grant.token.unwrap_or(FencingToken(0)), &seen) {
                    memory.mine = None;
                    return Next::Answer(Answer::Renew(Ok(Renewed::Lost(seen.observation()))));
                }
                memory.mine = seen.stored().cloned();
                self.extend(memory)
            }
            (record::Answer::Done { .. } | record::Answer::Conflict, _) => {
                self.again(|| Answer::Renew(Err(contended())))
            }
        }
    }

    fn releasing(
        &mut self,
        claim: &Claim,
        next: Option<&incumbent_core::CandidateId>,
        tell: record::Tell,
    ) -> Next {
        match tell.answer {
            record::Answer::Is(stored) => self.give_back(claim, next, stored),
            record::Answer::Done { .. } => Next::Answer(Answer::Release(Ok(()))),
            record::Answer::Conflict => self.again(|| Answer::Release(Err(contended()))),
        }
    }

    fn give_back(
        &mut self,
        claim: &Claim,
        next: Option<&incumbent_core::CandidateId>,
        stored: Option<Stored>,
    ) -> Next {
        let seen = match Seen::new(stored) {
            Ok(seen) => seen,
            Err(error) => return Next::Answer(Answer::Release(Err(error))),
        };
        if !is_own(claim, &seen) {
            return Next::Answer(Answer::Release(Ok(())));
        }
        // In its old lineage: who challenges it after a fail-over still waits.
        let lineage = match &seen {
            Seen::Record(_, record) => record.lineage.clone(),
            Seen::Absent | Seen::Unreadable(_) => None,
        };
        let record = Record::unheld(claim.ttl, next.cloned()).within(lineage);
        self.step = Step::GiveBack;
        Next::Send(Ask::Swap { expected: expected(&seen), token: TokenRule::Keep, body: record.encode() })
    }
}
