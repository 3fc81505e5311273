//! What a seed chooses: how many peers, their clocks and disks, the weather, and which kinds of faults come.

use std::time::Duration;

use incumbent_core::peers::Criterion;
use incumbent_core::peers::ring::Circulation;
use incumbent_core::timing::PeerTiming;

use crate::clock::{MS, Nanos, nanos};
use crate::plan::{Draw, Fault, Kind, Plan};
use crate::random::Random;

/// What is drawn before a run begins.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// How many peers there are.
    pub peers: usize,
    /// Whether a leader needs a majority. Raft's always does.
    pub majority: bool,
    /// Of Bully and Ring: who is the greatest.
    pub criterion: Criterion,
    /// Of Ring: what goes around.
    pub circulation: Circulation,
    /// How long an acknowledged heartbeat binds.
    pub ttl_ms: u64,
    /// The leader's trust ends as late as the formulas allow: its margin only covers rounding.
    pub tight: bool,
    /// The bound on clocks' rates that the peers are told.
    pub drift_ppm: u32,
    /// The rate of each clock: `1 + rate/10⁶`.
    pub rates_ppm: Vec<i64>,
    /// The priority of each peer; with 0 it only votes.
    pub priorities: Vec<u8>,
    /// How recent the data of each peer is.
    pub data_versions: Vec<u64>,
    /// The longest delay of a message.
    pub delay_ms: u64,
    /// So many messages in a thousand are lost.
    pub loss: u32,
    /// So many in a thousand come twice.
    pub doubled: u32,
    /// So many saves in a thousand take up to two ttls.
    pub slow_saves: u32,
    /// Faults come at so many milliseconds' distance at most.
    pub fault_gap_ms: u64,
    /// The kinds of faults that come.
    pub faults: Vec<Kind>,
    /// All start at once, and all messages and saves take equally long: only chance lets one be the first.
    pub lock_step: bool,
}

/// The faults that may come.
const KINDS: [Kind; 12] = [
    Kind::Crash,
    Kind::Freeze,
    Kind::CutOut,
    Kind::CutIn,
    Kind::CutBoth,
    Kind::CutLink,
    Kind::Split,
    Kind::ClogOut,
    Kind::ClogIn,
    Kind::Storm,
    Kind::SlowDisk,
    Kind::Resign,
];

impl Plan<Options> {
    /// What follows from `seed`, for 100 ttls, the last of which belong to the healed core.
    pub fn new(seed: u64, majority: bool) -> Plan<Options> {
        let mut random = Random::new(seed);
        let mut options = Options::draw(&mut random);
        if seed % 16 == 15 {
            let (peers, tight) = (options.peers, options.tight);
            options =
                Options { tight, lock_step: true, ..Options::plain(peers, options.ttl_ms, vec![0; peers]) };
        }
        options.majority = majority;
        options.criterion = [Criterion::GreatestId, Criterion::MostRecentData][(seed / 2 % 2) as usize];
        options.circulation = [Circulation::Greatest, Circulation::Collect][(seed % 2) as usize];
        let ttl = options.ttl_ms * MS;
        let mut plan = Plan { seed, faults: Vec::new(), heal_at_ns: 60 * ttl, end_at_ns: 100 * ttl, options };
        plan.faults = plan.options.draw_faults(&mut random, plan.heal_at_ns);
        plan
    }

    /// Within which time after the heal somebody must lead: promises end, and a few attempts fail.
    pub(super) fn takeover_bound(&self) -> Nanos {
        10 * self.options.ttl_ms * MS
    }
}

impl Options {
    /// Equal peers on a good network.
    pub fn plain(peers: usize, ttl_ms: u64, rates_ppm: Vec<i64>) -> Options {
        Options {
            peers,
            majority: true,
            criterion: Criterion::GreatestId,
            circulation: Circulation::Greatest,
            ttl_ms,
            tight: false,
            drift_ppm: 1_000,
            rates_ppm,
            priorities: vec![1; peers],
            data_versions: vec![0; peers],
            delay_ms: 2,
            loss: 0,
            doubled: 0,
            slow_saves: 0,
            fault_gap_ms: 0,
            faults: Vec::new(),
            lock_step: false,
        }
    }

    fn draw(random: &mut Random) -> Options {
        let peers = random.pick(&[1, 2, 3, 3, 4, 5, 5, 7]);
        let ttl_ms = random.pick(&[1_000, 1_000, 10_000]);
        let drift_ppm = random.pick(&[1_000, 10_000, 40_000]);
        let ranked = random.per_mille(300);
        let aged = random.per_mille(300);
        let rate = i64::from(drift_ppm);
        Options {
            peers,
            majority: true,
            criterion: Criterion::GreatestId,
            circulation: Circulation::Greatest,
            ttl_ms,
            tight: random.per_mille(800),
            drift_ppm,
            rates_ppm: (0..peers).map(|_| random.pick(&[-rate, 0, rate])).collect(),
            priorities: (0..peers)
                .map(|peer| if ranked && peer > 0 { random.below(4) as u8 } else { 3 })
                .collect(),
            data_versions: (0..peers).map(|_| if aged { random.below(3) } else { 0 }).collect(),
            delay_ms: random.pick(&[1, ttl_ms / 100, ttl_ms / 5, 3 * ttl_ms]),
            loss: random.pick(&[0, 0, 50, 300]),
            doubled: random.pick(&[0, 30]),
            slow_saves: random.pick(&[0, 0, 100, 500]),
            fault_gap_ms: random.pick(&[ttl_ms / 2, 2 * ttl_ms, 6 * ttl_ms]),
            faults: KINDS.into_iter().filter(|_| random.per_mille(600)).collect(),
            lock_step: false,
        }
    }

    fn draw_faults(&self, random: &mut Random, until: Nanos) -> Vec<Fault> {
        let ttl = self.ttl();
        let draw = Draw { kinds: &self.faults, nodes: self.peers, ttl, gap: self.fault_gap_ms * MS };
        let first = random.below(3 * ttl);
        draw.faults(random, first..until)
    }

    pub(super) fn timing(&self) -> PeerTiming {
        let mut timing = PeerTiming::new(Duration::from_millis(self.ttl_ms), self.drift_ppm)
            .expect("the settings are valid");
        if self.tight {
            timing.margin = Duration::from_nanos(100);
        }
        timing
    }

    pub(super) fn ttl(&self) -> Nanos {
        nanos(Duration::from_millis(self.ttl_ms))
    }
}
