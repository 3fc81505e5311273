//! What a seed chooses: the store, the candidates, the weather, and which kinds of faults come (a *swarm*: no run has all).

use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Handover, Survives, TokenSource, Transfer};
use incumbent_core::{Guarantees, Settings, Timing};
use serde::Serialize;

use crate::clock::{HOUR, MS, Nanos, SECOND, nanos};
use crate::plan::{Draw, Fault, Kind, Plan};
use crate::random::Random;

/// The authority that grants the election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A lease whose end the server judges, on its own clock.
    Lease,
    /// A record and the protocol of `incumbent_core::record`: the challenger judges. Operators delete it now and then.
    Record,
    /// The same on a primary with an asynchronous replica: a fail-over loses the latest writes, and says that there was one.
    Replica,
    /// The same, and nobody says so.
    SilentReplica,
    /// Leases and keys, and `incumbent_core::session`: the oldest key leads. Its own leader changes.
    Queue,
    /// It lies: a leader of the store that was deposed answers keep-alives, and ends the leases that it knew.
    DeposedLeader,
    /// It lies: leases end early now and then, and the renewal of a dead one is answered as if it lived.
    LyingRenewals,
    /// It lies: a lease ends early now and then.
    ReapedEarly,
    /// It lies: a read shows what stood there before. Swaps are honest.
    StaleReads,
    /// It lies: the counter of tokens starts anew when the record was deleted.
    CounterRestarts,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [StoreKind; 10] = [
        StoreKind::Lease,
        StoreKind::Record,
        StoreKind::Replica,
        StoreKind::SilentReplica,
        StoreKind::Queue,
        StoreKind::DeposedLeader,
        StoreKind::LyingRenewals,
        StoreKind::ReapedEarly,
        StoreKind::StaleReads,
        StoreKind::CounterRestarts,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Lease => "lease",
            StoreKind::Record => "record",
            StoreKind::Replica => "replica",
            StoreKind::SilentReplica => "silent-replica",
            StoreKind::Queue => "queue",
            StoreKind::DeposedLeader => "deposed-leader",
            StoreKind::LyingRenewals => "lying-renewals",
            StoreKind::ReapedEarly => "reaped-early",
            StoreKind::StaleReads => "stale-reads",
            StoreKind::CounterRestarts => "counter-restarts",
        }
    }

    /// Whether it is a record that the challenger judges.
    pub(super) fn is_record(self) -> bool {
        matches!(
            self,
            StoreKind::Record
                | StoreKind::Replica
                | StoreKind::SilentReplica
                | StoreKind::StaleReads
                | StoreKind::CounterRestarts
        )
    }

    /// Whether it is leases and keys.
    pub(super) fn is_queue(self) -> bool {
        matches!(self, StoreKind::Queue | StoreKind::DeposedLeader)
    }

    /// Whether at most one leadership is valid on it (I1). Where it lies only in what it shows, and writes are honest, it is.
    pub fn excludes(self) -> bool {
        !matches!(self, StoreKind::LyingRenewals | StoreKind::ReapedEarly | StoreKind::SilentReplica)
    }

    /// Whether its tokens rise (I2).
    pub fn orders(self) -> bool {
        !matches!(self, StoreKind::CounterRestarts | StoreKind::SilentReplica)
    }

    pub(super) fn guarantees(self) -> Guarantees {
        let challenged = self.is_record();
        Guarantees {
            exclusion: if self.excludes() { Exclusion::SingleNode } else { Exclusion::AsyncReplicated },
            expiry: if challenged { Expiry::Challenger } else { Expiry::Server },
            token: TokenSource::Counter,
            transfer: Transfer::Targeted,
            ttl_min: Duration::from_millis(100),
            expiry_slack: Duration::ZERO,
            renew_spacing: Duration::ZERO,
            // A challenger may have looked just before the last renewal; a new leader of the store may have given a lease its whole
            // ttl anew.
            takeover_ttls: if challenged || self.is_queue() { 2 } else { 1 },
            takeover_extra: Duration::ZERO,
            handover: Handover::Pushed,
            survives: Survives { crash: true, power_loss: true, failover: false },
            lists_candidates: false,
            summary: "a model of a store",
            not_applicable: &[],
        }
    }

    /// The faults that may be asked of it besides those of every store.
    fn kinds(self) -> &'static [Kind] {
        match self {
            StoreKind::Record | StoreKind::StaleReads | StoreKind::CounterRestarts => &[Kind::Delete],
            StoreKind::Replica | StoreKind::SilentReplica | StoreKind::Queue | StoreKind::DeposedLeader => {
                &[Kind::FailOver]
            }
            StoreKind::Lease | StoreKind::LyingRenewals | StoreKind::ReapedEarly => &[],
        }
    }
}

/// What is drawn before a run begins.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Options {
    /// The authority.
    pub store: StoreKind,
    /// How many candidates stand.
    pub candidates: usize,
    /// Two of them go by one id.
    pub shared_id: bool,
    /// The lease duration.
    pub ttl_ms: u64,
    /// How long a polite stop may take.
    pub drain_ms: u64,
    /// How long the work takes to stop, at most.
    pub stop_ms: u64,
    /// How long the work takes from its check to its write, at most.
    pub think_ms: u64,
    /// The rate of each clock, the store's last: `1 + rate/10⁶`.
    pub rates_ppm: Vec<i64>,
    /// The longest delay of a message.
    pub delay_ms: u64,
    /// So many messages in a thousand are lost.
    pub loss: u32,
    /// So many in a thousand come twice.
    pub doubled: u32,
    /// So many hints in a thousand are lost; 1000: the store gives none.
    pub hints_lost: u32,
    /// Faults come at so many milliseconds' distance at most.
    pub fault_gap_ms: u64,
    /// The kinds of faults that come.
    pub faults: Vec<Kind>,
}

/// The faults that may come whatever the store is.
const EVERYWHERE: [Kind; 16] = [
    Kind::Crash,
    Kind::Freeze,
    Kind::CutOut,
    Kind::CutIn,
    Kind::CutBoth,
    Kind::ClogOut,
    Kind::ClogIn,
    Kind::Storm,
    Kind::Resign,
    Kind::HandOver,
    Kind::ShutDown,
    Kind::SetWallClock,
    Kind::Hint,
    Kind::StoreFreeze,
    Kind::StoreCrash,
    Kind::ResourceRestart,
];

/// The rate of clocks is within this.
pub(super) const DRIFT_PPM: u32 = 1_000;

impl Plan<Options> {
    /// What follows from `seed`, on `store` or on one that the seed chooses, for one
    /// simulated hour, the end of which belongs to the healed core.
    pub fn new(seed: u64, store: Option<StoreKind>) -> Plan<Options> {
        let mut random = Random::new(seed);
        let options = Options::draw(&mut random, store);
        let mut plan = Plan { seed, faults: Vec::new(), heal_at_ns: 0, end_at_ns: HOUR, options };
        let calm = 2 * plan.takeover_bound() + 20 * plan.options.ttl();
        plan.heal_at_ns = plan.end_at_ns - calm;
        plan.faults = plan.options.draw_faults(&mut random, plan.heal_at_ns);
        plan
    }

    /// Within which time after the heal somebody must lead: whatever the old leader still holds, or its work still does, is
    /// over; the store lets go; a candidate that paused or backed off comes back and asks.
    pub(super) fn takeover_bound(&self) -> Nanos {
        let timing = self.options.timing();
        let takeover = nanos(self.options.store.guarantees().takeover_max(timing.ttl));
        let pauses = nanos(timing.backoff_max * 3) + 2 * nanos(timing.call_timeout);
        let work = self.options.stop_ms.max(self.options.drain_ms) * MS;
        // Clocks may differ by twice the bound.
        takeover + takeover / 500 + pauses + work + SECOND
    }
}

impl Options {
    /// Equal candidates and a store on a good network; the work takes a while from its check to its write.
    pub fn plain(store: StoreKind, candidates: usize, ttl_ms: u64, mut rates_ppm: Vec<i64>) -> Options {
        rates_ppm.resize(candidates + 1, 0);
        Options {
            store,
            candidates,
            shared_id: false,
            ttl_ms,
            drain_ms: ttl_ms / 4,
            stop_ms: ttl_ms / 10,
            think_ms: ttl_ms / 10,
            rates_ppm,
            delay_ms: 2,
            loss: 0,
            doubled: 0,
            hints_lost: 0,
            fault_gap_ms: 0,
            faults: Vec::new(),
        }
    }

    fn draw(random: &mut Random, store: Option<StoreKind>) -> Options {
        let store = store.unwrap_or_else(|| random.pick(&StoreKind::ALL));
        let candidates = random.pick(&[1, 2, 3, 5, 5, 5, 5, 7]);
        let ttl_ms = random.pick(&[5_000, 15_000, 15_000, 15_000, 30_000]);
        let rate = i64::from(DRIFT_PPM);
        let kinds = EVERYWHERE.iter().chain(store.kinds());
        Options {
            store,
            candidates,
            shared_id: candidates > 1 && random.per_mille(100),
            ttl_ms,
            drain_ms: random.pick(&[0, ttl_ms / 4, 30_000]),
            stop_ms: random.pick(&[10, ttl_ms / 8, ttl_ms]),
            think_ms: random.pick(&[1, ttl_ms / 20, ttl_ms / 5]),
            rates_ppm: (0..=candidates).map(|_| random.pick(&[-rate, -rate / 3, 0, 0, rate])).collect(),
            delay_ms: random.pick(&[2, 10, ttl_ms / 60, ttl_ms / 10]),
            loss: random.pick(&[0, 0, 10, 100]),
            doubled: random.pick(&[0, 20]),
            hints_lost: random.pick(&[0, 100, 1000]),
            fault_gap_ms: random.pick(&[ttl_ms / 2, 4 * ttl_ms, 20 * ttl_ms]),
            faults: kinds.copied().filter(|_| random.per_mille(600)).collect(),
        }
    }

    fn draw_faults(&self, random: &mut Random, until: Nanos) -> Vec<Fault> {
        let ttl = self.ttl();
        let draw = Draw { kinds: &self.faults, nodes: self.candidates, ttl, gap: self.fault_gap_ms * MS };
        let first = random.below(2 * ttl);
        draw.faults(random, first..until)
    }

    pub(super) fn ttl(&self) -> Nanos {
        self.ttl_ms * MS
    }

    pub(super) fn timing(&self) -> Timing {
        let settings = Settings {
            ttl: Duration::from_millis(self.ttl_ms),
            drain: Some(Duration::from_millis(self.drain_ms)),
            drift_ppm: DRIFT_PPM,
            ..Settings::default()
        };
        Timing::new(&settings, &self.store.guarantees()).expect("the settings are valid")
    }
}
