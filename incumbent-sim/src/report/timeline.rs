//! What each node did when, for a picture.

use crate::check::{self, Hold};
use crate::clock::Nanos;
use crate::outcome::{Illness, Letter, Owner, Picture, View};
use crate::plan::Fault;

use super::{TTL_MS, in_ms};

/// What each node did when. The nodes are numbered from 0; the store, if there is one, has the number after the last.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The leaderships, in the order in which they began.
    pub leaderships: Vec<Leadership>,
    /// When two or more were valid at once.
    pub overlaps: Vec<Span>,
    /// What went wrong, in order.
    pub faults: Vec<Fault>,
    /// When which node was down, frozen, or cut off.
    pub troubles: Vec<Trouble>,
    /// Whom each node takes for the leader. Of peers only.
    pub views: Vec<View>,
    /// The messages.
    pub letters: Vec<Letter>,
}

/// One term of one leader: while a check of it says *valid*.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Leadership {
    /// Whose.
    pub node: usize,
    /// Its term (epoch); on a store its token.
    pub term: u64,
    /// Its token; `None` if the algorithm has none.
    pub token: Option<u64>,
    /// From when to when.
    pub span: Span,
}

/// A time in which a node was not well.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trouble {
    /// The node.
    pub node: usize,
    /// What was wrong.
    pub what: Illness,
    /// From when to when.
    pub span: Span,
}

/// A time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Its begin.
    pub from_ms: f64,
    /// Its end.
    pub until_ms: f64,
}

impl Span {
    pub(super) fn new(from: Nanos, until: Nanos) -> Span {
        Span { from_ms: in_ms(from), until_ms: in_ms(until) }
    }

    /// How long it is.
    pub fn length_ms(&self) -> f64 {
        self.until_ms - self.from_ms
    }

    /// Whether the moment is in it.
    pub fn contains(&self, at_ms: f64) -> bool {
        self.from_ms <= at_ms && at_ms < self.until_ms
    }
}

impl Timeline {
    pub(super) fn new(holds: &[Hold], owners: &[Owner], faults: &[Fault], picture: Picture) -> Timeline {
        let leaderships = holds.iter().zip(owners).filter(|(hold, _)| hold.from < hold.until);
        let leaderships = leaderships.map(|(hold, owner)| Leadership {
            node: owner.node,
            term: owner.term,
            token: hold.token,
            span: Span::new(hold.from, hold.until),
        });
        let overlaps = check::overlapping_spans(holds);
        let troubles = picture.outages.iter().map(|outage| Trouble {
            node: outage.node,
            what: outage.what,
            span: Span::new(outage.from_ns, outage.until_ns),
        });
        Timeline {
            leaderships: leaderships.collect(),
            overlaps: overlaps.into_iter().map(|(from, until)| Span::new(from, until)).collect(),
            faults: faults.to_vec(),
            troubles: troubles.collect(),
            views: picture.views,
            letters: picture.letters,
        }
    }

    /// When a fault was there.
    pub fn span_of(fault: &Fault) -> Span {
        Span::new(fault.at_ns, fault.at_ns + fault.lasts_ns)
    }

    /// The first overlap that is at least half as long as the longest. One that ends as soon as the news of the new leader has
    /// come tells nothing: those below a tenth of the lease do not count.
    pub fn telling_overlap(&self) -> Option<Span> {
        let longest = self.overlaps.iter().map(Span::length_ms).fold(TTL_MS as f64 / 5.0, f64::max);
        self.overlaps.iter().find(|overlap| 2.0 * overlap.length_ms() >= longest).copied()
    }

    /// Who leads at a moment.
    pub fn leaders_at(&self, at_ms: f64) -> impl Iterator<Item = &Leadership> {
        self.leaderships.iter().filter(move |leadership| leadership.span.contains(at_ms))
    }

    /// What is wrong with a node at a moment.
    pub fn trouble_of(&self, node: usize, at_ms: f64) -> Option<&Trouble> {
        self.troubles.iter().find(|trouble| trouble.node == node && trouble.span.contains(at_ms))
    }
}
