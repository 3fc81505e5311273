//! What happened, as a hash that two runs of one seed must share, and as lines for people if they are asked for.

use crate::clock::{Nanos, SECOND};
use crate::random::mix;

#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(shown: bool) -> Trace {
        Trace { hash: 0, events: 0, lines: shown.then(Vec::new) }
    }

    /// Everything that happens goes into the hash.
    pub(crate) fn note(&mut self, at: Nanos, what: u64) {
        self.events += 1;
        self.hash = mix(self.hash ^ mix(at ^ what.rotate_left(40)));
    }

    /// A line for people.
    pub(crate) fn say(&mut self, at: Nanos, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>12.6}  {}", at as f64 / SECOND as f64, line()));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
