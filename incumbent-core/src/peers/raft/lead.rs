//! The leader: its rounds of heartbeats, its lease, its end; and the follower's side of a heartbeat.

use std::collections::{BTreeMap, VecDeque};

use super::message::{Message, Term};
use super::output::{Event, Loss};
use super::{Raft, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::CandidateId;
use crate::time::BootInstant;
use crate::timing::PeerTiming;

/// One term of leadership.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Lead {
    /// The latest round.
    round: u64,
    /// The rounds that may still be trusted and when each was sent, in order.
    sent: VecDeque<(u64, BootInstant)>,
    acknowledged: BTreeMap<CandidateId, Acknowledged>,
    /// The send of the latest round that a quorum acknowledged; before there is one, of the first.
    trusted_from: BootInstant,
    established: bool,
    pub(super) next_round_at: BootInstant,
}

/// The latest of a follower's acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct Acknowledged {
    round: u64,
    data_version: u64,
}

impl Lead {
    /// When this leader steps down unless a later round is acknowledged (dissertation §6.4.1, and §6.2 for who never
    /// hears from a quorum).
    pub(super) fn deadline(&self, timing: &PeerTiming) -> BootInstant {
        timing.deadline(self.trusted_from)
    }

    /// Whether a quorum has acknowledged any round.
    pub(super) fn established(&self) -> bool {
        self.established
    }

    /// The latest round that `quorum` peers acknowledged, the leader included: its latest is acknowledged by itself.
    fn quorum_round(&self, quorum: usize) -> u64 {
        let mut rounds: Vec<u64> = self.acknowledged.values().map(|last| last.round).collect();
        rounds.push(self.round);
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.get(quorum - 1).copied().unwrap_or(0)
    }
}

impl Raft {
    /// The term is won: tells everybody (§5.2). It is a leadership only once a quorum has acknowledged it.
    pub(super) fn lead(&mut self, now: BootInstant) {
        self.role = Role::Leader(Lead {
            round: 0,
            sent: VecDeque::new(),
            acknowledged: BTreeMap::new(),
            trusted_from: now,
            established: false,
            next_round_at: now,
        });
        self.send_round(now);
    }

    /// Sends a round, and acknowledges it itself: the leader, too, is bound by it.
    pub(super) fn send_round(&mut self, now: BootInstant) {
        let Role::Leader(lead) = &mut self.role else { return };
        lead.round += 1;
        lead.sent.push_back((lead.round, now));
        lead.next_round_at = self.config.timing.heartbeat_at(now);
        let round = lead.round;
        self.promise(now);
        self.broadcast(&Message::Heartbeat { round });
        self.extend(now);
    }

    /// Moves the end of trust to what the acknowledgements prove.
    fn extend(&mut self, now: BootInstant) {
        let quorum = self.quorum();
        let Role::Leader(lead) = &mut self.role else { return };
        let proven = lead.quorum_round(quorum);
        while lead.sent.front().is_some_and(|(round, _)| *round < proven) {
            lead.sent.pop_front();
        }
        let Some(&(_, sent_at)) = lead.sent.front().filter(|(round, _)| *round == proven) else { return };
        let valid_until = self.config.timing.deadline(sent_at);
        if now >= valid_until || (lead.established && sent_at <= lead.trusted_from) {
            return;
        }
        lead.trusted_from = sent_at;
        if lead.established {
            self.outbox.event(Event::Extended { valid_until });
        } else {
            lead.established = true;
            self.outbox.event(Event::Elected { token: self.durable.term.token(), valid_until });
            self.follow(Some(self.config.id.clone()));
        }
    }

    pub(super) fn acknowledged(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        term: Term,
        asked: Term,
        round: u64,
        data_version: u64,
    ) {
        let current = self.durable.term;
        let Role::Leader(lead) = &mut self.role else { return };
        if term > current {
            return self.adopt(now, term);
        }
        if term != current || asked != current || round > lead.round {
            return;
        }
        let last = lead.acknowledged.entry(from).or_insert(Acknowledged { round, data_version });
        if round >= last.round {
            *last = Acknowledged { round, data_version };
        }
        self.extend(now);
    }

    /// Ends this peer's leadership for good: its term is over for everybody.
    pub(super) fn step_down(&mut self, reason: Loss) {
        let Role::Leader(lead) = &self.role else { return };
        if lead.established {
            self.outbox.invalidate(self.durable.term.token(), reason);
        }
        self.surrendered = self.surrendered.max(Some(self.durable.term));
        self.role = Role::Follower;
        self.follow(None);
    }

    /// Gives up the term and asks a successor to campaign at once: `to`, or of the peers that answered the latest rounds
    /// the one with the most recent data, then with the greatest priority (dissertation §3.10). To be called when the work
    /// is confirmed stopped; [`Output::Invalidate`](super::Output::Invalidate) comes before the message to the successor.
    /// Does nothing if this peer does not lead. Afterwards it leaves the election to the others for a while.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`]: `to` is this peer, or no member, or one that only votes. The term goes on.
    pub fn surrender(&mut self, now: BootInstant, to: Option<&CandidateId>) -> Result<()> {
        self.expire(now);
        if let Some(to) = to.filter(|to| **to == self.config.id || !self.may_lead(to)) {
            let message =
                format!("{to} is not another peer that may lead; name a member with a priority above 0");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let Role::Leader(lead) = &self.role else { return Ok(()) };
        let recent = lead
            .acknowledged
            .iter()
            .filter(|(peer, last)| self.may_lead(peer) && last.round + 2 > lead.round);
        let best = recent.max_by_key(|(peer, last)| (last.data_version, self.config.members.get(*peer)));
        let successor = to.or(best.map(|(peer, _)| peer)).cloned();
        self.step_down(Loss::Surrendered);
        self.await_election(self.config.timing.promise_end(now));
        if let Some(successor) = successor {
            self.send(successor, Message::TimeoutNow);
        }
        Ok(())
    }

    // ---- the follower ----

    /// Whether `peer` may be the leader of this peer's term.
    pub(super) fn may_be_leader(&self, peer: &CandidateId) -> bool {
        !matches!(self.role, Role::Leader(_)) && self.leader.as_ref().is_none_or(|leader| leader == peer)
    }

    pub(super) fn heard(&mut self, now: BootInstant, from: CandidateId, term: Term, round: u64) {
        if term > self.durable.term {
            self.adopt(now, term);
        }
        if term == self.durable.term {
            self.role = Role::Follower;
            self.follow(Some(from.clone()));
            self.promise(now);
            self.await_election(self.promise.until);
        }
        let data_version = self.data_version;
        self.send(from, Message::HeartbeatAnswer { asked: term, round, data_version });
    }
}
