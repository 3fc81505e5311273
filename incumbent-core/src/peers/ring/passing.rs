//! The hops that are not confirmed yet, and the neighbours that do not confirm.

use std::collections::{BTreeMap, VecDeque};

use super::message::Word;
use crate::ids::CandidateId;
use crate::time::BootInstant;
use crate::timing::PeerTiming;

/// More words are not under way at one peer; the oldest is forgotten.
const HOPS_MAX: usize = 256;

/// Words of more lives of one owner do not come by at one time.
const LIVES_MAX: usize = 8;

/// The number before the first attempt of a life.
pub(super) fn attempts_of(seed: u128) -> u64 {
    (seed as u64) << 32
}

/// Whether `word` and another one of its owner can be compared. Epochs rise over all lives, attempts in each.
fn of_one_life(word: &Word, other: u64) -> bool {
    word.is_elected() || word.attempt() >> 32 == other >> 32
}

#[derive(Clone, Default, PartialEq, Eq, Debug, Hash)]
pub(super) struct Passing {
    hops: VecDeque<Hop>,
    /// The number of the latest hop.
    latest: u64,
    /// Peers that are passed by until they are heard, or until then.
    dead: BTreeMap<CandidateId, BootInstant>,
    /// The latest attempt of each owner in each of its latest lives, and the latest epoch of each coordinator, that came by.
    seen: BTreeMap<(CandidateId, bool), VecDeque<u64>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Hop {
    number: u64,
    to: CandidateId,
    until: BootInstant,
    word: Word,
}

impl Passing {
    /// Notes that `word` is given to `to`, which must confirm before `until`. The number of the hop.
    pub(super) fn pass(&mut self, to: CandidateId, word: Word, until: BootInstant) -> u64 {
        if self.hops.len() == HOPS_MAX {
            self.hops.pop_front();
        }
        self.latest += 1;
        self.hops.push_back(Hop { number: self.latest, to, until, word });
        self.latest
    }

    /// Whether `word` is later than all of its owner that came by. Where the network is slow a hop is repeated that was not
    /// lost, and each copy would be repeated again; and an attempt that was overtaken by a later one of its owner is of no use.
    pub(super) fn is_new(&mut self, word: &Word) -> bool {
        let seen = self.seen.entry((word.owner().clone(), word.is_elected())).or_default();
        let attempt = word.attempt();
        match seen.iter_mut().find(|last| of_one_life(word, **last)) {
            Some(last) if attempt <= *last => return false,
            Some(last) => *last = attempt,
            None => {
                if seen.len() == LIVES_MAX {
                    seen.pop_front();
                }
                seen.push_back(attempt);
            }
        }
        true
    }

    /// Whether a later one of the owner has come by since.
    pub(super) fn is_overtaken(&self, word: &Word) -> bool {
        let seen = self.seen.get(&(word.owner().clone(), word.is_elected())).into_iter().flatten();
        seen.into_iter().any(|last| of_one_life(word, *last) && word.attempt() < *last)
    }

    pub(super) fn received(&mut self, from: &CandidateId, number: u64) {
        self.hops.retain(|hop| hop.number != number || hop.to != *from);
    }

    /// A word that its neighbour did not confirm in time, and that neighbour, which is passed by from now on.
    pub(super) fn unconfirmed(
        &mut self,
        now: BootInstant,
        timing: &PeerTiming,
    ) -> Option<(Word, CandidateId)> {
        let late = self.hops.iter().position(|hop| hop.until <= now)?;
        let hop = self.hops.remove(late)?;
        self.dead.insert(hop.to.clone(), timing.passed_by_until(now));
        Some((hop.word, hop.to))
    }

    pub(super) fn due(&self) -> Option<BootInstant> {
        self.hops.iter().map(|hop| hop.until).min()
    }

    pub(super) fn is_dead(&self, now: BootInstant, peer: &CandidateId) -> bool {
        self.dead.get(peer).is_some_and(|until| now < *until)
    }

    pub(super) fn hears(&mut self, peer: &CandidateId) {
        self.dead.remove(peer);
    }
}
