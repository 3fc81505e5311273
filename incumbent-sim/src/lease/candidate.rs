//! One candidate: the real elector, the call that it has under way, its work, and what its user believes.

use incumbent_core::{
    Acquired, Answer, Authority, BootInstant, Call, CallId, CandidateId, Contender, Elector, FencingToken,
    Grant, Leader, Observation, Renewed,
};

use super::adapter;
use super::session;
use super::store::{Held, Tell};
use crate::clock::Nanos;

/// A candidate's process and what it remembers. What is not here outlives no crash, and nothing does.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: CandidateId,
    /// `None`: the process is down.
    pub(super) elector: Option<Elector>,
    /// Counts its starts: what was meant for a former life is dropped.
    pub(super) life: u32,
    /// When it is woken next.
    pub(super) wake_at: Nanos,
    pub(super) frozen_until: Nanos,
    pub(super) running: Option<Running>,
    pub(super) memory: Option<adapter::Memory>,
    pub(super) session: Option<session::Memory>,
    pub(super) belief: Option<Belief>,
    pub(super) work: Work,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: CallId,
    pub(super) call: Call,
    pub(super) issued_at: Nanos,
    /// When its latest request was sent, by the boot clock.
    pub(super) sent_at: BootInstant,
    /// Counts its requests.
    pub(super) request: u16,
    pub(super) flow: Flow,
}

/// What a backend has to do for the call besides asking once.
#[derive(Debug)]
pub(super) enum Flow {
    None,
    Record(adapter::Flow),
    Queue(session::Flow),
}

/// What the user's `is_valid()` says: whether this deadline has passed, by the boot clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Belief {
    pub(super) token: u64,
    pub(super) deadline: BootInstant,
    /// Where this leadership stands in the history.
    pub(super) hold: usize,
}

/// The work of a term: it checks, thinks, writes, and begins anew, until it is told to stop or is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) running: bool,
    /// Counts the terms, so that a step of a former one is dropped.
    pub(super) term: u32,
}

impl Candidate {
    pub(super) fn new(id: CandidateId) -> Candidate {
        Candidate {
            id,
            elector: None,
            life: 0,
            wake_at: Nanos::MAX,
            frozen_until: 0,
            running: None,
            memory: None,
            session: None,
            belief: None,
            work: Work::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.elector.is_some()
    }

    /// The process is gone, and all that it knew.
    pub(super) fn crash(&mut self) {
        let (id, life, term) = (self.id.clone(), self.life + 1, self.work.term + 1);
        *self = Candidate { life, work: Work { running: false, term }, ..Candidate::new(id) };
    }
}

/// The candidate as others are shown it.
fn leader(held: Held, ids: &[CandidateId]) -> Leader {
    Leader {
        contender: Contender {
            id: ids[held.by.id].as_str().to_owned(),
            nonce: Some(held.by.nonce),
            address: None,
        },
        token: Some(FencingToken(held.token)),
        since_unix_ms: None,
    }
}

/// What a backend makes of the answer of a store that judges leases itself.
pub(super) fn understand(
    running: &Running,
    now: BootInstant,
    tell: Tell,
    authority: &Authority,
    ids: &[CandidateId],
) -> Option<Answer> {
    let observation =
        |held: Option<Held>| Observation { leader: held.map(|held| leader(held, ids)), candidates: None };
    Some(match (&running.call, tell) {
        (Call::Acquire(claim), Tell::Granted { token }) => Answer::Acquire(Ok(Acquired::Granted(Grant {
            token: Some(FencingToken(token)),
            authority: authority.clone(),
            sent_at: running.sent_at,
            ttl: claim.ttl,
        }))),
        (Call::Acquire(_), Tell::Held(by, left)) => {
            Answer::Acquire(Ok(Acquired::Held { observation: observation(by), try_again: now + left }))
        }
        (Call::Renew(claim, _), Tell::Extended) => {
            Answer::Renew(Ok(Renewed::Extended { sent_at: running.sent_at, ttl: claim.ttl }))
        }
        (Call::Renew(..), Tell::Lost(by)) => Answer::Renew(Ok(Renewed::Lost(observation(by)))),
        (Call::Release(..), Tell::Released) => Answer::Release(Ok(())),
        _ => return None,
    })
}
