//! A store that grants leases and judges their end itself, on its own clock. What it answers is durable.

use std::time::Duration;

use incumbent_core::{BootInstant, Nonce};

use super::StoreKind;
use crate::random::Random;

/// Who asks: the candidate's number stands for its id, the nonce for its campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Campaign {
    pub(super) id: usize,
    pub(super) nonce: Nonce,
}

/// A grant as the store holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) by: Campaign,
    pub(super) token: u64,
}

/// What a candidate asks of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Acquire(Campaign),
    Renew(Held),
    Release(Campaign, Option<usize>),
}

/// What it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tell {
    Granted {
        token: u64,
    },
    /// By whom, or kept for somebody, and for how much longer.
    Held(Option<Held>, Duration),
    Extended,
    Lost(Option<Held>),
    Released,
}

#[derive(Debug)]
pub(super) struct LeaseStore {
    kind: StoreKind,
    ttl: Duration,
    held: Option<(Held, BootInstant)>,
    /// Whom a release has preferred, and until when.
    next: Option<(usize, BootInstant)>,
    counter: u64,
}

impl LeaseStore {
    pub(super) fn new(kind: StoreKind, ttl: Duration) -> LeaseStore {
        LeaseStore { kind, ttl, held: None, next: None, counter: 0 }
    }

    /// The lease, unless it has run out.
    pub(super) fn held(&mut self, now: BootInstant) -> Option<Held> {
        self.held.take_if(|(_, until)| now >= *until);
        self.held.map(|(held, _)| held)
    }

    /// When the lease runs out.
    pub(super) fn runs_out_at(&self) -> Option<BootInstant> {
        self.held.map(|(_, until)| until)
    }

    /// How long a lease lives from now.
    fn life(&self, random: &mut Random) -> Duration {
        let ends_early = matches!(self.kind, StoreKind::ReapedEarly | StoreKind::LyingRenewals);
        if ends_early && random.per_mille(100) {
            return self.ttl.mul_f64(random.below(1000) as f64 / 1000.0);
        }
        self.ttl
    }

    pub(super) fn answer(&mut self, now: BootInstant, random: &mut Random, ask: Ask) -> Tell {
        let held = self.held(now);
        match ask {
            Ask::Acquire(campaign) => match held {
                Some(held) if held.by == campaign => {
                    self.held = Some((held, now + self.life(random)));
                    Tell::Granted { token: held.token }
                }
                Some(held) => Tell::Held(Some(held), self.runs_out_at().unwrap_or(now).since(now)),
                None => match self.next {
                    Some((next, until)) if next != campaign.id && now < until => {
                        Tell::Held(None, until.since(now))
                    }
                    _ => {
                        self.counter += 1;
                        self.next = None;
                        let held = Held { by: campaign, token: self.counter };
                        self.held = Some((held, now + self.life(random)));
                        Tell::Granted { token: held.token }
                    }
                },
            },
            Ask::Renew(own) => match held {
                Some(held) if held == own => {
                    self.held = Some((held, now + self.life(random)));
                    Tell::Extended
                }
                _ if self.kind == StoreKind::LyingRenewals => Tell::Extended,
                other => Tell::Lost(other),
            },
            Ask::Release(campaign, next) => {
                if held.is_some_and(|held| held.by == campaign) {
                    self.held = None;
                    self.next = next.map(|next| (next, now + self.ttl));
                }
                Tell::Released
            }
        }
    }

    /// It lies no more.
    pub(super) fn turn_honest(&mut self) {
        self.kind = StoreKind::Lease;
    }

    /// It was started again: every lease that was not over gets its whole ttl anew.
    pub(super) fn restart(&mut self, now: BootInstant) {
        self.held = self.held(now).map(|held| (held, now + self.ttl));
    }
}
