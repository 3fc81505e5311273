//! What a run came to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::{Hold, Sometimes, Violation};
use crate::clock::Nanos;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// How often the interesting did.
    pub sometimes: Sometimes,
    /// How often what happened.
    pub counts: Counts,
    /// The messages that were sent, by kind.
    pub messages: BTreeMap<&'static str, u64>,
    /// How long each election took: from the moment the leader was gone, cut off or stood still until another led.
    pub elected_after_ns: Vec<Nanos>,
    /// Two runs of one plan have the same.
    pub hash: u64,
    /// Every leadership, in the order in which they began.
    pub holds: Vec<Hold>,
    /// Whose each of them is.
    pub owners: Vec<Owner>,
    /// Writes of an earlier leadership that arrived after one of a later, and that no fence could refuse, since they have no
    /// token.
    pub stale_let_in: u64,
    /// What happened, a line each, if it was asked for.
    pub trace: Vec<String>,
    /// What a picture needs besides, if it was asked for.
    pub picture: Picture,
}

/// Whose a leadership is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The node.
    pub node: usize,
    /// Its term (epoch); on a store its token.
    pub term: u64,
}

/// What of a run is written down beside its figures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shown {
    /// Nothing.
    Nothing,
    /// What a picture needs.
    Picture,
    /// That, and every step in words.
    Steps,
}

/// How often what happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Events of the simulation.
    pub events: u64,
    /// Terms that began.
    pub elections: u64,
    /// Faults that met something.
    pub faults: u64,
    /// Simulated seconds.
    pub seconds: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.events += other.events;
        self.elections += other.elections;
        self.faults += other.faults;
        self.seconds += other.seconds;
    }
}

/// What a picture of a run needs beside its leaderships.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// When which node was down, frozen or cut off.
    pub outages: Vec<Outage>,
    /// Whom each node takes for the leader, in the order in which they learned it. Of peers only.
    pub views: Vec<View>,
    /// The messages, in the order in which they were sent.
    pub letters: Vec<Letter>,
}

/// From now on a node takes another, or itself, for the leader, or knows of none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct View {
    /// The node.
    pub node: usize,
    /// From when on.
    pub from_ns: Nanos,
    /// Who leads.
    pub leader: Option<usize>,
}

/// A time in which a node was not well.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outage {
    /// The node.
    pub node: usize,
    /// When it began.
    pub from_ns: Nanos,
    /// When it ended.
    pub until_ns: Nanos,
    /// What was wrong.
    pub what: Illness,
}

/// What is wrong with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Illness {
    /// Its process is down.
    Down,
    /// It stands still.
    Frozen,
    /// It is cut off from all others, in one direction or in both.
    CutOff,
    /// It is in the smaller of two groups that do not hear each other.
    Minority,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Letter {
    /// Who sent it; the number after the last node's is the store.
    pub from: usize,
    /// To whom.
    pub to: usize,
    /// Its kind.
    pub kind: &'static str,
    /// When it was sent.
    pub sent_ns: Nanos,
    /// When it arrived; `None` if it was lost.
    pub arrived_ns: Option<Nanos>,
}

/// Draws the picture, if one is asked for.
#[derive(Debug)]
pub(crate) struct Painter(Option<Picture>);

impl Painter {
    pub(crate) fn new(shown: Shown) -> Painter {
        Painter((shown >= Shown::Picture).then(Picture::default))
    }

    pub(crate) fn outage(&mut self, node: usize, from_ns: Nanos, until_ns: Nanos, what: Illness) {
        if let Some(picture) = &mut self.0 {
            picture.outages.push(Outage { node, from_ns, until_ns, what });
        }
    }

    pub(crate) fn view(&mut self, node: usize, from_ns: Nanos, leader: Option<usize>) {
        if let Some(picture) = &mut self.0 {
            picture.views.push(View { node, from_ns, leader });
        }
    }

    pub(crate) fn letter(
        &mut self,
        from: usize,
        to: usize,
        kind: &'static str,
        sent_ns: Nanos,
        arrived_ns: Option<Nanos>,
    ) {
        if let Some(picture) = &mut self.0 {
            picture.letters.push(Letter { from, to, kind, sent_ns, arrived_ns });
        }
    }

    pub(crate) fn picture(self) -> Picture {
        self.0.unwrap_or_default()
    }
}

/// Measures how long an election is without a leader that can be reached.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    since: Option<Nanos>,
    elected_after_ns: Vec<Nanos>,
}

impl Stopwatch {
    pub(crate) fn new() -> Stopwatch {
        Stopwatch { since: Some(0), elected_after_ns: Vec::new() }
    }

    /// The leader is gone, cut off, or stands still.
    pub(crate) fn lost(&mut self, now: Nanos) {
        self.since.get_or_insert(now);
    }

    /// It goes on.
    pub(crate) fn goes_on(&mut self) {
        self.since = None;
    }

    pub(crate) fn elected(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.elected_after_ns.push(now - since);
        }
    }

    pub(crate) fn times(self) -> Vec<Nanos> {
        self.elected_after_ns
    }
}
