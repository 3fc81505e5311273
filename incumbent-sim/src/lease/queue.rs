//! A store of leases and keys, as etcd is one: a key lives by a lease, the oldest key leads. Its members have a leader that
//! changes; a deposed one may go on answering keep-alives, and may still end the leases it knew.

use std::collections::BTreeMap;
use std::time::Duration;

use incumbent_core::session::{LeaseId, Place};
use incumbent_core::{BootInstant, Nonce};

use super::StoreKind;
use crate::random::Random;

/// What a candidate asks of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// A new lease.
    Grant,
    KeepAlive(LeaseId),
    /// Create the campaign's key with this lease, if it is not there.
    Create(Nonce, LeaseId, usize),
    /// Who is first, and where is this campaign's key?
    Look(Nonce),
    /// A write that compares the key's revision and lease.
    Guard(Nonce, Place),
    /// Such a write that moves the key to another lease.
    Move(Nonce, Place, LeaseId),
    Delete(Nonce),
    Revoke(LeaseId),
}

/// What it answers, and in which term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tell {
    pub(super) answer: Answer,
    pub(super) term: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Granted(LeaseId),
    /// With so much time; none: there is no such lease.
    Kept(Duration),
    /// Here is the key now, or there is no such lease.
    Created(Option<Place>),
    /// The first key's campaign, revision and candidate; this campaign's key.
    Seen(Option<(Nonce, u64, usize)>, Option<Place>),
    /// It was as compared.
    Done,
    /// This was there instead.
    Found(Option<Place>),
}

#[derive(Clone, Copy, Debug)]
struct Key {
    place: Place,
    owner: usize,
}

#[derive(Debug)]
pub(super) struct QueueStore {
    kind: StoreKind,
    ttl: Duration,
    term: u64,
    leases: BTreeMap<LeaseId, BootInstant>,
    keys: BTreeMap<Nonce, Key>,
    revision: u64,
    granted: LeaseId,
    /// A deposed leader answers keep-alives until then,
    deposed_until: BootInstant,
    /// and ends these leases when it believes that they are over.
    doomed: Vec<(LeaseId, BootInstant)>,
}

impl QueueStore {
    pub(super) fn new(kind: StoreKind, ttl: Duration) -> QueueStore {
        QueueStore {
            kind,
            ttl,
            term: 2,
            leases: BTreeMap::new(),
            keys: BTreeMap::new(),
            revision: 10,
            granted: 1_000,
            deposed_until: BootInstant::ZERO,
            doomed: Vec::new(),
        }
    }

    /// Ends the leases that are over, with their keys. True if a key is gone.
    pub(super) fn expire(&mut self, now: BootInstant) -> bool {
        let (leases, keys) = (&mut self.leases, &mut self.keys);
        self.doomed.retain(|(lease, at)| {
            if now >= *at {
                leases.remove(lease);
            }
            now < *at
        });
        leases.retain(|_, until| now < *until);
        let before = keys.len();
        keys.retain(|_, key| leases.contains_key(&key.place.lease));
        keys.len() < before
    }

    /// When the next lease is over.
    pub(super) fn next_end(&self) -> Option<BootInstant> {
        self.leases.values().chain(self.doomed.iter().map(|(_, at)| at)).min().copied()
    }

    /// Answers, and says whether a key came or went.
    pub(super) fn answer(&mut self, now: BootInstant, random: &mut Random, ask: Ask) -> (Tell, bool) {
        let mut changed = self.expire(now);
        let mut term = self.term;
        let place = |keys: &BTreeMap<Nonce, Key>, nonce| keys.get(&nonce).map(|key| key.place);
        let answer = match ask {
            Ask::Grant => {
                self.granted += 1;
                self.leases.insert(self.granted, now + self.ttl);
                Answer::Granted(self.granted)
            }
            Ask::KeepAlive(_) if now < self.deposed_until && random.per_mille(500) => {
                term -= 1;
                Answer::Kept(self.ttl)
            }
            Ask::KeepAlive(lease) => match self.leases.get_mut(&lease) {
                Some(until) => {
                    *until = now + self.ttl;
                    Answer::Kept(self.ttl)
                }
                None => Answer::Kept(Duration::ZERO),
            },
            Ask::Create(nonce, lease, owner) => {
                if self.leases.contains_key(&lease) && !self.keys.contains_key(&nonce) {
                    self.revision += 1;
                    let place = Place { revision: self.revision, lease };
                    self.keys.insert(nonce, Key { place, owner });
                    changed = true;
                }
                Answer::Created(place(&self.keys, nonce))
            }
            Ask::Look(nonce) => {
                let first = self.keys.iter().min_by_key(|(_, key)| key.place.revision);
                let first = first.map(|(nonce, key)| (*nonce, key.place.revision, key.owner));
                Answer::Seen(first, place(&self.keys, nonce))
            }
            Ask::Guard(nonce, expected) => match place(&self.keys, nonce) {
                Some(found) if found == expected => Answer::Done,
                found => Answer::Found(found),
            },
            Ask::Move(nonce, expected, lease) => match self.keys.get_mut(&nonce) {
                Some(key) if key.place == expected && self.leases.contains_key(&lease) => {
                    key.place.lease = lease;
                    Answer::Done
                }
                key => Answer::Found(key.map(|key| key.place)),
            },
            Ask::Delete(nonce) => {
                changed |= self.keys.remove(&nonce).is_some();
                Answer::Done
            }
            Ask::Revoke(lease) => {
                self.leases.remove(&lease);
                changed |= self.expire(now);
                Answer::Done
            }
        };
        (Tell { answer, term }, changed)
    }

    /// Another member leads: every lease gets its whole ttl anew. Where the deposed one does not notice, it goes on until `until`.
    pub(super) fn change_leader(&mut self, now: BootInstant, until: BootInstant) {
        self.expire(now);
        self.term += 1;
        if self.kind == StoreKind::DeposedLeader {
            self.deposed_until = until;
            self.doomed = self.leases.iter().map(|(lease, at)| (*lease, *at)).collect();
        }
        for at in self.leases.values_mut() {
            *at = now + self.ttl;
        }
    }

    /// It lies no more.
    pub(super) fn turn_honest(&mut self) {
        self.kind = StoreKind::Queue;
        self.deposed_until = BootInstant::ZERO;
        self.doomed.clear();
    }
}
