//! The leader: its rounds of heartbeats, its lease, its end.

use std::collections::{BTreeMap, VecDeque};

use super::message::{Acknowledgement, Claim, Term, Words};
use super::output::{Event, Loss, Trust};
use super::peer::Peer;
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
    acknowledged: BTreeMap<CandidateId, Acknowledgement>,
    /// The send of the latest round that a quorum acknowledged; before there is one, of the first.
    trusted_from: BootInstant,
    /// A quorum voted for it: no earlier term is alive.
    won: bool,
    established: bool,
    pub(super) next_round_at: BootInstant,
}

impl Lead {
    /// When this leader steps down unless a later round is acknowledged (dissertation §6.4.1, and §6.2 for who never
    /// hears from a quorum).
    pub(super) fn deadline(&self, timing: &PeerTiming) -> BootInstant {
        timing.deadline(self.trusted_from)
    }

    pub(super) fn forget_acknowledged(&mut self) {
        self.acknowledged.clear();
    }

    /// The latest round that `quorum` peers acknowledged, the leader included: its latest is acknowledged by itself.
    fn quorum_round(&self, quorum: usize) -> u64 {
        let mut rounds: Vec<u64> = self.acknowledged.values().map(|last| last.round).collect();
        rounds.push(self.round);
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.get(quorum - 1).copied().unwrap_or(0)
    }
}

impl<M: Words> Peer<M> {
    /// Leads in this term: `won` if a quorum has voted for it, otherwise the first acknowledgements are the votes. It is a
    /// leadership only once a quorum has acknowledged it. The caller sends the first round.
    pub(super) fn lead(&mut self, now: BootInstant, won: bool) {
        self.lead = Some(Lead {
            round: 0,
            sent: VecDeque::new(),
            acknowledged: BTreeMap::new(),
            trusted_from: now,
            won,
            established: false,
            next_round_at: now,
        });
    }

    /// Begins a round and acknowledges it itself: the leader, too, is bound by it.
    pub(super) fn begin_round(&mut self, now: BootInstant) -> Option<Claim> {
        let (ballot, alone) = (self.ballot(), self.quorum() == 1);
        let lead = self.lead.as_mut()?;
        lead.round += 1;
        lead.sent.push_back((lead.round, now));
        lead.next_round_at = self.config.timing.heartbeat_at(now);
        let claim = Claim { round: lead.round, established: lead.established || alone, ballot };
        self.promise(now);
        Some(claim)
    }

    /// Sends a round to everybody (§5.2).
    pub(super) fn send_round(&mut self, now: BootInstant) {
        if let Some(claim) = self.begin_round(now) {
            self.broadcast(&M::heartbeat(claim));
            self.extend(now);
        }
    }

    /// Moves the end of trust to what the acknowledgements prove.
    pub(super) fn extend(&mut self, now: BootInstant) {
        let quorum = self.quorum();
        let Some(lead) = &mut self.lead else { return };
        let proven = lead.quorum_round(quorum);
        while lead.sent.front().is_some_and(|(round, _)| *round < proven) {
            lead.sent.pop_front();
        }
        let Some(&(_, sent_at)) = lead.sent.front().filter(|(round, _)| *round == proven) else { return };
        if now >= self.config.timing.deadline(sent_at) || (lead.established && sent_at <= lead.trusted_from) {
            return;
        }
        lead.trusted_from = sent_at;
        let first = !lead.established;
        (lead.won, lead.established) = (true, true);
        let Some(trust) = self.leadership() else { return };
        if first {
            self.outbox.event(Event::Elected(trust));
            self.follow(Some(self.config.id.clone()));
        } else {
            self.outbox.event(Event::Extended(trust));
        }
    }

    /// When a leader has something to do.
    pub(super) fn lead_due(&self) -> Option<BootInstant> {
        let lead = self.lead.as_ref()?;
        Some(lead.deadline(&self.config.timing).min(lead.next_round_at).min(self.standing_until))
    }

    /// This peer's own leadership.
    pub(super) fn leadership(&self) -> Option<Trust> {
        let lead = self.lead.as_ref().filter(|lead| lead.established)?;
        let term = self.durable.term;
        Some(Trust {
            term,
            token: self.exclusive.then(|| term.token()),
            sent_at: lead.trusted_from,
            valid_until: lead.deadline(&self.config.timing),
        })
    }

    pub(super) fn acknowledged(
        &mut self,
        now: BootInstant,
        from: CandidateId,
        term: Term,
        acknowledgement: Acknowledgement,
    ) {
        let current = self.durable.term;
        let Some(lead) = &mut self.lead else { return };
        if term > current {
            return self.adopt(now, term);
        }
        if term != current || acknowledgement.asked != current || acknowledgement.round > lead.round {
            return;
        }
        let last = lead.acknowledged.entry(from).or_insert(acknowledgement);
        if acknowledgement.round >= last.round {
            *last = acknowledgement;
        }
        self.extend(now);
    }

    /// The follower's side: promises, and says so.
    pub(super) fn acknowledge(&mut self, now: BootInstant, leader: CandidateId, asked: Term, round: u64) {
        let (data_version, standing) = (self.data_version, self.stands(now));
        if asked == self.durable.term {
            self.promise(now);
            self.await_election(self.promise.until);
        }
        self.send(leader, M::acknowledgement(Acknowledgement { asked, round, data_version, standing }));
    }

    /// Ends this peer's leadership for good: if it was one, its term is over for everybody.
    pub(super) fn step_down(&mut self, reason: Loss) {
        let Some(lead) = self.lead.take() else { return };
        if lead.established {
            self.outbox.invalidate(self.durable.term, reason);
        }
        if lead.won {
            self.learn_surrendered(Some(self.durable.term));
        }
        self.follow(None);
    }

    /// See [`Protocol::surrender`](super::Protocol::surrender).
    pub(super) fn surrender(&mut self, now: BootInstant, to: Option<&CandidateId>) -> Result<()> {
        if let Some(to) = to.filter(|to| **to == self.config.id || !self.config.list.may_lead(to)) {
            let message =
                format!("{to} is not another peer that may lead; name a member with a priority above 0");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let Some(lead) = &self.lead else { return Ok(()) };
        if let Some(to) = to.filter(|to| !lead.acknowledged.get(*to).is_some_and(|last| last.standing)) {
            let message = format!("{to} does not stand for election now; start a candidate there first");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let successor = to.cloned().or_else(|| self.successor());
        self.standing_until = BootInstant::ZERO;
        self.hand_over(now, successor);
        Ok(())
    }

    /// Of the peers that stand and answered the latest rounds, the one with the most recent data, then with the greatest
    /// priority, then with the greatest id.
    pub(super) fn successor(&self) -> Option<CandidateId> {
        let lead = self.lead.as_ref()?;
        let fit = lead.acknowledged.iter().filter(|(peer, last)| {
            last.standing && last.round + 2 > lead.round && self.config.list.may_lead(peer)
        });
        let best = fit.max_by_key(|(peer, last)| (last.data_version, self.config.list.priority(peer), *peer));
        best.map(|(peer, _)| peer.clone())
    }

    /// Gives up the term for `successor`, and leaves the election to the others for a while.
    pub(super) fn hand_over(&mut self, now: BootInstant, successor: Option<CandidateId>) {
        let won = self.lead.as_ref().is_some_and(|lead| lead.won);
        self.step_down(Loss::Surrendered);
        self.await_election(self.config.timing.promise_end(now));
        // Who claimed in vain ended no other term, and has nothing to hand over.
        match successor {
            _ if !won => {}
            Some(successor) => self.send(successor, M::take_over(true)),
            None => {
                // Nobody is known to stand. All are told, so that whoever does by now, or will, need not wait.
                self.broadcast(&M::take_over(false));
                self.retry(now);
            }
        }
    }
}
