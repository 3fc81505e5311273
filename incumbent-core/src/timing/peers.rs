//! The deadlines of peers that elect among themselves: a leader's trust, a voter's promise, the waits before an election.
//!
//! A leader trusts its lease for `ttl·(1−drift) − margin` on its own clock, from the *send* of a heartbeat round that a
//! quorum acknowledged. A voter keeps its promise for `ttl·(1+drift)` on its own clock, from the *receipt* of the same
//! heartbeat. With clocks whose rates lie within `1 ± drift`, the first is at most `ttl − margin` and the second at least
//! `ttl` of true time, and the receipt is not before the send.

use std::time::Duration;

use super::{drift, invalid, scale};
use crate::error::Result;
use crate::time::{BootInstant, exact};

/// The part of priorities in the wait before an election is bounded by this many steps.
const RANK_MAX: u32 = 4;

/// The intervals of peers. All peers of one cluster must use the same `ttl` and `drift_ppm`: a voter that promises for a
/// shorter time than the leader trusts makes two leaders possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PeerTiming {
    /// How long an acknowledged heartbeat binds its voter.
    pub ttl: Duration,
    /// From one heartbeat round to the next.
    pub heartbeat_interval: Duration,
    /// Distance between the end of trust and the end of the promises.
    pub margin: Duration,
    /// Bound on the error of any clock's rate, in parts per million.
    pub drift_ppm: u32,
}

impl PeerTiming {
    /// Heartbeats every ttl/10 (the ratio of etcd's defaults, 100 ms to 1 s) and a margin of ttl/10.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) with the arithmetic: a ttl outside 10 ms to 24 h, or
    /// `2·drift·ttl < margin` does not hold.
    pub fn new(ttl: Duration, drift_ppm: u32) -> Result<PeerTiming> {
        if ttl < Duration::from_millis(10) || ttl > Duration::from_secs(24 * 3600) {
            return Err(invalid(format!(
                "ttl {} is not within 10 ms to 24 h, what peers can keep; change ttl",
                exact(ttl)
            )));
        }
        let margin = ttl / 10;
        let error = drift(ttl, drift_ppm);
        if error.saturating_mul(2) >= margin {
            return Err(invalid(format!(
                "margin {} must be more than twice the clock drift {} over a ttl of {}; lower drift",
                exact(margin),
                exact(error),
                exact(ttl)
            )));
        }
        Ok(PeerTiming { ttl, heartbeat_interval: ttl / 10, margin, drift_ppm })
    }

    /// When a leader's trust ends: `send of the acknowledged round + ttl·(1−drift) − margin`.
    pub fn deadline(&self, sent_at: BootInstant) -> BootInstant {
        sent_at + self.ttl.saturating_sub(drift(self.ttl, self.drift_ppm) + self.margin)
    }

    /// Until when a voter that acknowledged a heartbeat at `received_at` may not vote: `received_at + ttl·(1+drift)`.
    /// The same holds for a voter that starts at `received_at`: it does not know what it promised before.
    pub fn promise_end(&self, received_at: BootInstant) -> BootInstant {
        received_at + self.ttl + drift(self.ttl, self.drift_ppm)
    }

    /// When a leader sends its next round.
    pub fn heartbeat_at(&self, sent_at: BootInstant) -> BootInstant {
        sent_at + self.heartbeat_interval
    }

    /// When a peer that is free to vote from `free_at` on asks for votes itself: a random part of ttl/4 later (Ongaro &
    /// Ousterhout §5.2), and ttl/4 later again for each peer of a greater priority, at most four. `jitter` is 0..1024.
    pub fn election_at(&self, free_at: BootInstant, rank: u32, jitter: u32) -> BootInstant {
        let step = self.ttl / 4;
        free_at + step * rank.min(RANK_MAX) + scale(step, jitter)
    }

    /// How long a candidate waits for answers before it asks anew: ttl/2 to ttl. `jitter` is 0..1024.
    pub fn attempt_end(&self, asked_at: BootInstant, jitter: u32) -> BootInstant {
        asked_at + self.ttl / 2 + scale(self.ttl / 2, jitter)
    }

    /// When a peer that cannot win its present attempt asks anew: ttl/20 to 3·ttl/20 later, and as much again for each peer
    /// of a greater priority, at most four. `jitter` is 0..1024.
    pub fn retry_at(&self, now: BootInstant, rank: u32, jitter: u32) -> BootInstant {
        let pause = self.ttl / 20 + scale(self.ttl / 10, jitter);
        now + pause * (1 + rank.min(RANK_MAX))
    }

    /// Until when a peer that holds an election by Bully waits for the answer of a greater peer, which is dead after it:
    /// ttl/4.
    pub fn answer_end(&self, asked_at: BootInstant) -> BootInstant {
        asked_at + self.ttl / 4
    }

    /// Until when a neighbour on the ring must have confirmed a message, which then takes the way around it: ttl/10.
    pub fn hop_end(&self, sent_at: BootInstant) -> BootInstant {
        sent_at + self.ttl / 10
    }

    /// Until when a neighbour that did not confirm is passed by, unless it is heard: 3·ttl. Longer than an election, so
    /// that the next attempt finds the dead known; and not for ever, since what was cut off may be back.
    pub fn passed_by_until(&self, now: BootInstant) -> BootInstant {
        now + self.ttl * 3
    }
}
