//! The hops that are not confirmed yet, and the neighbours that do not confirm.

use std::collections::{BTreeMap, VecDeque};

use super::message::Word;
use crate::ids::CandidateId;
use crate::time::BootInstant;
use crate::timing::PeerTiming;

/// More words are not under way at one peer; the oldest is forgotten.
const HOPS_MAX: usize = 256;

#[derive(Clone, Default, PartialEq, Eq, Debug, Hash)]
pub(super) struct Passing {
    hops: VecDeque<Hop>,
    /// The number of the latest hop.
    latest: u64,
    /// Peers that are passed by until they are heard, or until then.
    dead: BTreeMap<CandidateId, BootInstant>,
    /// The latest attempt of each owner, and the latest epoch of each coordinator, that came by.
    seen: BTreeMap<(CandidateId, bool), u64>,
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

    /// Whether `word` comes by for the first time. Where the network is slow a hop is repeated that was not lost, and each
    /// copy would be repeated again.
    pub(super) fn is_new(&mut self, word: &Word) -> bool {
        let attempt = word.attempt();
        self.seen.insert((word.owner().clone(), word.is_elected()), attempt) != Some(attempt)
    }

    pub(super) fn received(&mut self, from: &CandidateId, number: u64) {
        self.hops.retain(|hop| hop.number != number || hop.to != *from);
    }

    /// A word that its neighbour did not confirm in time, which is passed by from now on.
    pub(super) fn unconfirmed(&mut self, now: BootInstant, timing: &PeerTiming) -> Option<Word> {
        let late = self.hops.iter().position(|hop| hop.until <= now)?;
        let hop = self.hops.remove(late)?;
        self.dead.insert(hop.to, timing.passed_by_until(now));
        Some(hop.word)
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
