//! What a peer is told: who belongs to the cluster, and the intervals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Term;
use crate::ids::{Authority, CandidateId};
use crate::timing::PeerTiming;

/// Who leads rather than others: the peer with the greatest one asks for votes first. With 0 it never asks: it only votes.
pub type Priority = u8;

/// What the list says of one peer.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Who leads rather than others.
    pub priority: Priority,
    /// Where it is reached, in words of whoever connects the peers.
    pub address: String,
}

/// The peers of a cluster. Lists follow each other: each differs from the one before it by one member.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct List {
    /// From 1 up.
    pub version: u64,
    /// Whoever campaigns under this list takes a greater term, in each election: peers of this list need not have heard of the
    /// terms of lists that are two steps older.
    pub floor: Term,
    /// All peers. An even number is allowed: 4 stand the loss of one, as 3 do.
    pub members: BTreeMap<CandidateId, Place>,
}

impl List {
    /// A list of peers whose addresses are known by other means.
    pub fn new(version: u64, members: impl IntoIterator<Item = (CandidateId, Priority)>) -> List {
        let place = |(id, priority)| (id, Place { priority, address: String::new() });
        List { version, floor: Term(0), members: members.into_iter().map(place).collect() }
    }

    /// Whether it may be decided after `former`.
    pub(super) fn follows(&self, former: &List) -> bool {
        let beside = |one: &List, other: &List| {
            let missing = |(id, place): &(&CandidateId, &Place)| other.members.get(*id) != Some(*place);
            one.members.iter().filter(missing).count()
        };
        former.version.checked_add(1) == Some(self.version)
            && self.floor >= former.floor
            && !self.members.is_empty()
            && beside(self, former) + beside(former, self) == 1
    }

    pub(super) fn priority(&self, peer: &CandidateId) -> Priority {
        self.members.get(peer).map_or(0, |place| place.priority)
    }

    /// A majority.
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// All but `peer`.
    pub(super) fn others(&self, peer: &CandidateId) -> Vec<CandidateId> {
        self.members.keys().filter(|other| *other != peer).cloned().collect()
    }

    /// Whether `peer` is a member that may lead.
    pub(super) fn may_lead(&self, peer: &CandidateId) -> bool {
        self.priority(peer) > 0
    }

    /// How many peers have a greater priority than `peer`.
    pub(super) fn rank(&self, peer: &CandidateId) -> u32 {
        let own = self.priority(peer);
        let greater = self.members.values().filter(|other| other.priority > own).count();
        greater.try_into().unwrap_or(u32::MAX)
    }
}

/// What a peer is told once. Cluster and timing must be the same at all peers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Config {
    /// The cluster; messages of others are refused.
    pub cluster: Authority,
    /// This peer.
    pub id: CandidateId,
    /// All peers, this one too.
    pub list: List,
    /// The intervals in force.
    pub timing: PeerTiming,
}
