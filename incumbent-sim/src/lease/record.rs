//! A store of one record: read it, swap it. What it answers is durable, unless it is a primary whose replica lags behind.

use std::collections::VecDeque;

use incumbent_core::Stored;
use incumbent_core::record::TokenRule;

use super::StoreKind;
use crate::clock::Nanos;
use crate::random::Random;

/// What a candidate asks of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Read,
    /// Write `body` if the record still has this version and token (`None`: is absent).
    Swap {
        expected: Option<(u64, u64)>,
        token: TokenRule,
        body: Vec<u8>,
    },
}

/// What it answers, and in which lineage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tell {
    pub(super) answer: Answer,
    pub(super) lineage: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Is(Option<Stored>),
    Done { version: u64, token: u64 },
    Conflict,
}

#[derive(Debug)]
pub(super) struct RecordStore {
    kind: StoreKind,
    record: Option<Stored>,
    /// What stood there before, and since when, the latest last: for the replica that lags and for reads that are stale.
    past: VecDeque<(Nanos, Option<Stored>)>,
    /// The latest version that was given to a write; none is used twice.
    version: u64,
    /// The counter of tokens.
    counter: u64,
    lineage: u64,
}

/// More is not remembered.
const PAST_MAX: usize = 32;

impl RecordStore {
    pub(super) fn new(kind: StoreKind) -> RecordStore {
        RecordStore { kind, record: None, past: VecDeque::new(), version: 0, counter: 0, lineage: 1 }
    }

    /// Whether the candidates are told of fail-overs.
    fn tells_lineage(&self) -> bool {
        self.kind == StoreKind::Replica
    }

    fn has_past(&self) -> bool {
        matches!(self.kind, StoreKind::Replica | StoreKind::SilentReplica | StoreKind::StaleReads)
    }

    /// The token beside the record.
    pub(super) fn token(&self) -> Option<u64> {
        self.record.as_ref().map(|stored| stored.token)
    }

    /// Answers, and says whether it wrote.
    pub(super) fn answer(&mut self, now: Nanos, wall_us: u64, random: &mut Random, ask: Ask) -> (Tell, bool) {
        let (answer, wrote) = match ask {
            Ask::Read => {
                let stale = self.kind == StoreKind::StaleReads && random.per_mille(200);
                let old = self.past.len().saturating_sub(1 + random.below(4) as usize);
                let shown = match self.past.get(old).filter(|_| stale) {
                    Some((_, stored)) => stored,
                    None => &self.record,
                };
                (Answer::Is(shown.clone()), false)
            }
            Ask::Swap { expected, token, body } => {
                if expected != self.record.as_ref().map(|stored| (stored.version, stored.token)) {
                    (Answer::Conflict, false)
                } else {
                    let token = self.next_token(token, wall_us);
                    self.version += 1;
                    self.write(now, Some(Stored { version: self.version, token, body }));
                    (Answer::Done { version: self.version, token }, true)
                }
            }
        };
        let lineage = if self.tells_lineage() { self.lineage } else { 0 };
        (Tell { answer, lineage }, wrote)
    }

    fn next_token(&mut self, rule: TokenRule, wall_us: u64) -> u64 {
        let old = self.token().unwrap_or(0);
        match rule {
            TokenRule::Keep => old,
            TokenRule::Set(token) => token.0,
            TokenRule::Raise => match self.kind {
                StoreKind::CounterRestarts => old + 1,
                StoreKind::Replica | StoreKind::SilentReplica => wall_us.max(old + 1),
                _ => {
                    self.counter += 1;
                    self.counter
                }
            },
        }
    }

    fn write(&mut self, now: Nanos, record: Option<Stored>) {
        let before = std::mem::replace(&mut self.record, record);
        if self.has_past() {
            self.past.push_back((now, before));
            if self.past.len() > PAST_MAX {
                self.past.pop_front();
            }
        }
    }

    /// It lies no more.
    pub(super) fn turn_honest(&mut self) {
        if self.kind == StoreKind::StaleReads {
            self.kind = StoreKind::Record;
        }
    }

    /// An operator deletes the record.
    pub(super) fn delete(&mut self, now: Nanos) {
        self.write(now, None);
    }

    /// A replica takes over that has seen nothing of what was written after `seen`.
    pub(super) fn fail_over(&mut self, seen: Nanos) {
        // What was replaced first after that moment is what it has.
        if let Some(first_lost) = self.past.iter().position(|(replaced_at, _)| *replaced_at > seen) {
            self.record = self.past[first_lost].1.clone();
            self.past.truncate(first_lost);
        }
        self.lineage += 1;
    }
}
