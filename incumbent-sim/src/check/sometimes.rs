//! What must happen now and then: a run in which it never did has proved nothing.

use std::ops::AddAssign;

use serde::Serialize;

/// How often the interesting happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sometimes {
    /// S1: a leader whose lease ran out was followed by another.
    pub by_expiry: u64,
    /// S2: one that released its lease was.
    pub by_release: u64,
    /// S3: a renewal (of peers: a round of heartbeats) was not answered in time.
    pub renewal_unknown: u64,
    /// S4: a frozen leader woke after its deadline and called itself not valid.
    pub woke_not_valid: u64,
    /// S5: the fence refused a stale write.
    pub stale_refused: u64,
    /// I3u: the unfenced twin took one.
    pub stale_unfenced: u64,
    /// S6: a leader was cut off on the side of the majority, or of the store.
    pub leader_with_majority: u64,
    /// S6: one was cut off from it.
    pub leader_without_majority: u64,
    /// S7: two faults were there at once.
    pub faults_at_once: u64,
    /// S8: the store (of peers: the leadership) changed while a renewal was under way.
    pub change_during_renewal: u64,
}

impl Sometimes {
    /// The names of what never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        let counts = [
            ("a leader change by expiry", self.by_expiry),
            ("a leader change by release", self.by_release),
            ("a renewal with unknown outcome", self.renewal_unknown),
            ("a frozen leader that wakes and is not valid", self.woke_not_valid),
            ("a stale write refused", self.stale_refused),
            ("a stale write that the unfenced twin took", self.stale_unfenced),
            ("a leader on the majority's side of a cut", self.leader_with_majority),
            ("a leader on the minority's side of a cut", self.leader_without_majority),
            ("two faults at once", self.faults_at_once),
            ("a change of the store during a renewal", self.change_during_renewal),
        ];
        counts.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }
}

impl AddAssign for Sometimes {
    fn add_assign(&mut self, other: Sometimes) {
        self.by_expiry += other.by_expiry;
        self.by_release += other.by_release;
        self.renewal_unknown += other.renewal_unknown;
        self.woke_not_valid += other.woke_not_valid;
        self.stale_refused += other.stale_refused;
        self.stale_unfenced += other.stale_unfenced;
        self.leader_with_majority += other.leader_with_majority;
        self.leader_without_majority += other.leader_without_majority;
        self.faults_at_once += other.faults_at_once;
        self.change_during_renewal += other.change_during_renewal;
    }
}
