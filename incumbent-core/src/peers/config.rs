//! What a peer is told: who belongs to the cluster, and the intervals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{Authority, CandidateId};
use crate::timing::PeerTiming;

/// Who leads rather than others: the peer with the greatest one asks for votes first. With 0 it never asks: it only votes.
pub type Priority = u8;

/// The peers of a cluster. Lists follow each other: each differs from the one before it by one member.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct List {
    /// From 1 up.
    pub version: u64,
    /// All peers. An even number is allowed: 4 stand the loss of one, as 3 do.
    pub members: BTreeMap<CandidateId, Priority>,
}

impl List {
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
        self.members.get(peer).is_some_and(|priority| *priority > 0)
    }

    /// How many peers have a greater priority than `peer`.
    pub(super) fn rank(&self, peer: &CandidateId) -> u32 {
        let own = self.members.get(peer);
        let greater = self.members.values().filter(|other| Some(*other) > own).count();
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
