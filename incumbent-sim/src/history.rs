//! What a run writes down while it goes on, the resource that leaders write to, and the judgement in the end.

use std::collections::BTreeMap;

use incumbent_core::{Admission, Authority, Fence, FencingToken, HighWater};

use crate::check::{self, Hold, Sometimes, Valid, Violation, Write};
use crate::clock::{Nanos, SECOND};
use crate::outcome::{Counts, Outcome, Owner, Painter, Shown, Stopwatch};
use crate::plan::Plan;
use crate::trace::Trace;

#[derive(Debug)]
pub(crate) struct History {
    pub(crate) holds: Vec<Hold>,
    /// Whose each of them is.
    pub(crate) owners: Vec<Owner>,
    pub(crate) checks: Vec<Valid>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) sometimes: Sometimes,
    pub(crate) counts: Counts,
    pub(crate) stopwatch: Stopwatch,
    pub(crate) painter: Painter,
    pub(crate) trace: Trace,
    resource: Resource,
}

/// What the leader writes to, and its twin that has no fence.
#[derive(Debug)]
struct Resource {
    fence: Fence,
    /// What it has made durable of its fence.
    stored: Option<HighWater>,
    mark: HighWater,
    writes: Vec<Write>,
    /// The latest leadership that wrote without a token.
    latest: usize,
    stale_let_in: u64,
}

/// What a write comes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stamp {
    Token(u64),
    /// No token: only the simulator knows of which leadership it is.
    Unmarked(usize),
}

/// What must hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    pub(crate) excludes: bool,
    pub(crate) orders: bool,
}

/// Who must have a leader in the end, and how soon after the heal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Core<'a> {
    pub(crate) members: &'a [bool],
    pub(crate) bound: Nanos,
}

impl History {
    pub(crate) fn new(shown: Shown, authority: Authority) -> History {
        History {
            holds: Vec::new(),
            owners: Vec::new(),
            checks: Vec::new(),
            violations: Vec::new(),
            sometimes: Sometimes::default(),
            counts: Counts::default(),
            stopwatch: Stopwatch::new(),
            painter: Painter::new(shown),
            trace: Trace::new(shown == Shown::Steps),
            resource: Resource {
                fence: Fence::default(),
                stored: None,
                mark: HighWater { authority, token: FencingToken(0) },
                writes: Vec::new(),
                latest: 0,
                stale_let_in: 0,
            },
        }
    }

    /// A leadership begins. Where it stands.
    pub(crate) fn elected(
        &mut self,
        owner: Owner,
        token: Option<u64>,
        asked: Nanos,
        from: Nanos,
        until: Nanos,
    ) -> usize {
        self.stopwatch.elected(from);
        self.holds.push(Hold { name: format!("n{}", owner.node), token, asked, from, until });
        self.owners.push(owner);
        self.holds.len() - 1
    }

    /// A leadership is over by `at` at the latest.
    pub(crate) fn close(&mut self, hold: usize, at: Nanos) {
        let hold = &mut self.holds[hold];
        hold.until = hold.until.min(at);
    }

    /// The work sees that its term is valid.
    pub(crate) fn checked(&mut self, at: Nanos, token: u64) {
        self.checks.push(Valid { token, begin: at, end: at });
    }

    /// A write arrives at the resource.
    pub(crate) fn arrived(&mut self, at: Nanos, token: u64) {
        let resource = &mut self.resource;
        resource.mark.token = FencingToken(token);
        let admitted = resource.fence.admit(&resource.mark);
        if let Ok(Admission::Raise) = admitted {
            resource.stored = resource.fence.high_water().cloned();
        }
        let accepted = admitted.is_ok();
        self.sometimes.stale_refused += u64::from(!accepted);
        resource.writes.push(Write { at, token, accepted });
    }

    /// One without a token does. No fence can tell whose it is.
    pub(crate) fn arrived_unmarked(&mut self, hold: usize) {
        let resource = &mut self.resource;
        resource.stale_let_in += u64::from(hold < resource.latest);
        resource.latest = hold.max(resource.latest);
    }

    /// The resource starts again with what it made durable.
    pub(crate) fn restart_resource(&mut self) {
        self.resource.fence = Fence::new(self.resource.stored.clone());
    }

    pub(crate) fn violated(&mut self, rule: &'static str, at: Nanos, what: String) {
        self.violations.push(Violation { rule, at, what });
    }

    /// Looks whether all that was promised holds.
    pub(crate) fn judge<O>(
        self,
        plan: &Plan<O>,
        promises: Promises,
        core: Option<Core<'_>>,
        messages: BTreeMap<&'static str, u64>,
    ) -> Outcome {
        let History {
            holds,
            owners,
            checks,
            mut violations,
            mut sometimes,
            mut counts,
            stopwatch,
            painter,
            trace,
            resource,
        } = self;
        violations.extend(check::fencing(&resource.writes));
        if promises.excludes {
            violations.extend(check::overlaps(&holds));
        }
        if promises.orders {
            violations.extend(check::token_order(&holds));
        }
        if promises.excludes && promises.orders {
            violations.extend(check::valid_after_newer(&checks));
        }
        if let Some(Core { members, bound }) = core.filter(|_| plan.has_heal()) {
            let healed = plan.heal_at_ns;
            let of_core = holds.iter().zip(&owners).filter(|(_, owner)| members[owner.node]);
            let of_core: Vec<Hold> = of_core.map(|(hold, _)| hold.clone()).collect();
            violations.extend(check::takeover(&of_core, healed, bound));
            violations.extend(check::stability(&of_core, healed + 2 * bound, plan.end_at_ns));
        }
        violations.sort_by_key(|violation| violation.at);
        sometimes.stale_unfenced += check::stale_writes(&resource.writes);
        counts.events = trace.events();
        counts.elections = holds.len() as u64;
        counts.seconds = plan.end_at_ns / SECOND;
        Outcome {
            violations,
            sometimes,
            counts,
            messages,
            elected_after_ns: stopwatch.times(),
            hash: trace.hash(),
            holds,
            owners,
            stale_let_in: resource.stale_let_in,
            trace: trace.into_lines(),
            picture: painter.picture(),
        }
    }
}
