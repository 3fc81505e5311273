//! A run before it begins: what its seed has drawn, and every fault with its time.

use std::ops::Range;

use serde::Serialize;

use crate::clock::{MS, Nanos};
use crate::random::Random;

/// What was drawn. A fault less, or a number changed, changes nothing else that was drawn.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan<O> {
    /// The seed that all of it follows from.
    pub seed: u64,
    /// What is simulated.
    pub options: O,
    /// What goes wrong, in order.
    pub faults: Vec<Fault>,
    /// The end of the faults: from then on a core of nodes is healthy, and must have a leader that stays. At the end of the run
    /// or later: nothing is healed, and nothing required.
    pub heal_at_ns: Nanos,
    /// The end.
    pub end_at_ns: Nanos,
}

impl<O> Plan<O> {
    pub(crate) fn has_heal(&self) -> bool {
        self.heal_at_ns < self.end_at_ns
    }
}

/// One fault.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Fault {
    /// When it begins.
    pub at_ns: Nanos,
    /// How long it lasts, where it lasts.
    pub lasts_ns: Nanos,
    /// What it is.
    pub kind: Kind,
    /// Whom it meets, where it meets a node.
    pub whom: Whom,
    /// A number for what else has to be chosen.
    pub dice: u64,
}

/// Which node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whom {
    /// Whoever leads at that moment; where nobody leads: the first.
    Leader,
    /// This one.
    Node(usize),
}

/// The kinds of faults. A node is a candidate, or a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The node's process is killed, and started again later with what it made durable.
    Crash,
    /// It, or its machine, stands still: nothing runs, and its boot clock goes on.
    Freeze,
    /// What it sends is lost.
    CutOut,
    /// What is sent to it is lost: its requests are carried out, it does not hear so.
    CutIn,
    /// Both.
    CutBoth,
    /// What it sends to one other peer is lost.
    CutLink,
    /// The peers fall into two groups that do not hear each other; the node is in the smaller one.
    Split,
    /// What it sends waits until the end.
    ClogOut,
    /// What is sent to it waits until the end.
    ClogIn,
    /// All messages of all are slow and many are lost.
    Storm,
    /// What it makes durable takes long.
    SlowDisk,
    /// It is asked to resign.
    Resign,
    /// The leader is asked to hand over to another.
    HandOver,
    /// It is asked to shut down, and is started again when it has.
    ShutDown,
    /// Somebody sets its wall clock, or the store's.
    SetWallClock,
    /// A hint that means nothing.
    Hint,
    /// The store stands still.
    StoreFreeze,
    /// The store's process is killed and started again with what it made durable; a server that judges leases grants each anew.
    StoreCrash,
    /// The protected resource is started again with what it made durable.
    ResourceRestart,
    /// An operator deletes the record.
    Delete,
    /// The replica takes over without the latest writes; where the store is a cluster, it elects another leader.
    FailOver,
}

/// What faults come, and how long they last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw<'a> {
    pub(crate) kinds: &'a [Kind],
    pub(crate) nodes: usize,
    /// They last three of these at most.
    pub(crate) ttl: Nanos,
    /// Their distance at most.
    pub(crate) gap: Nanos,
}

impl Draw<'_> {
    /// The faults of a time, of which the first comes at its begin.
    pub(crate) fn faults(&self, random: &mut Random, time: Range<Nanos>) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut at = time.start;
        while at < time.end && !self.kinds.is_empty() {
            let kind = random.pick(self.kinds);
            let longest = random.pick(&[self.ttl / 10, self.ttl, 3 * self.ttl]);
            let whom = match random.below(2) {
                0 => Whom::Leader,
                _ => Whom::Node(random.below(self.nodes as u64) as usize),
            };
            let lasts_ns = 1 + random.below(longest);
            faults.push(Fault { at_ns: at, kind, whom, lasts_ns, dice: random.word() });
            at += MS + random.below(2 * self.gap);
        }
        faults
    }
}
