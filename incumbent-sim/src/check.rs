//! The judge: what must hold of every history of an election, simulated or measured.
//!
//! Times are nanoseconds on one clock. What was measured has a time before and a time after each event; in the simulator
//! both are one. Only certain orders are judged: whatever could have been innocent is.

mod sometimes;

use std::collections::BTreeMap;
use std::fmt;

pub use self::sometimes::Sometimes;

/// A rule that a history breaks, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant, as in `I1`.
    pub rule: &'static str,
    /// When it was broken.
    pub at: u64,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken at {:.6} s: {}", self.rule, self.at as f64 / 1e9, self.what)
    }
}

/// One leadership: certainly valid from `from` on, certainly until `until`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Whose it is, in a report.
    pub name: String,
    /// Its token; `None` if the store has none.
    pub token: Option<u64>,
    /// Before it was asked for.
    pub asked: u64,
    /// After it was granted.
    pub from: u64,
    /// When it ended at the earliest.
    pub until: u64,
}

/// A check of a leadership that said *valid*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Valid {
    /// The leadership's token.
    pub token: u64,
    /// Before the check.
    pub begin: u64,
    /// After it.
    pub end: u64,
}

/// A write that reached the protected resource, in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// When.
    pub at: u64,
    /// The token that it came with.
    pub token: u64,
    /// Whether the fence let it in. Its unfenced twin lets in everything.
    pub accepted: bool,
}

/// I1, the strong form: no two leaderships are valid at one instant.
pub fn overlaps(holds: &[Hold]) -> Vec<Violation> {
    let mut order: Vec<&Hold> = holds.iter().filter(|hold| hold.from < hold.until).collect();
    order.sort_by_key(|hold| hold.from);
    let mut violations = Vec::new();
    // Those before it that may still be valid.
    let mut open: Vec<&Hold> = Vec::new();
    for later in order {
        open.retain(|earlier| later.from < earlier.until);
        for earlier in &open {
            let lasts = earlier.until.min(later.until) - later.from;
            let what = format!(
                "{} and {} were both valid for {:?}",
                name(earlier),
                name(later),
                std::time::Duration::from_nanos(lasts)
            );
            violations.push(Violation { rule: "I1", at: later.from, what });
        }
        open.push(later);
    }
    violations
}

/// The times in which two or more leaderships were valid at once.
pub fn overlapping_spans(holds: &[Hold]) -> Vec<(u64, u64)> {
    let mut changes: Vec<(u64, i32)> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.from < hold.until) {
        changes.extend([(hold.from, 1), (hold.until, -1)]);
    }
    // An end comes before a begin at the same time.
    changes.sort_unstable();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let (mut valid, mut since) = (0, 0);
    for (at, change) in changes {
        if valid >= 2 && since < at {
            match spans.last_mut().filter(|last| last.1 == since) {
                Some(last) => last.1 = at,
                None => spans.push((since, at)),
            }
        }
        (valid, since) = (valid + change, at);
    }
    spans
}

/// For how long two or more leaderships were valid at once.
pub fn overlapping_time(holds: &[Hold]) -> u64 {
    overlapping_spans(holds).iter().map(|(from, until)| until - from).sum()
}

/// I1: once a newer leadership has been valid, no older one ever is again.
pub fn valid_after_newer(checks: &[Valid]) -> Vec<Violation> {
    let mut by_begin: Vec<&Valid> = checks.iter().collect();
    by_begin.sort_by_key(|check| check.begin);
    let mut by_end = by_begin.clone();
    by_end.sort_by_key(|check| check.end);
    let (mut ended, mut newest) = (by_end.into_iter().peekable(), None::<Valid>);
    let mut violations = Vec::new();
    for check in by_begin {
        while let Some(before) = ended.next_if(|before| before.end < check.begin) {
            if newest.is_none_or(|newest| newest.token < before.token) {
                newest = Some(*before);
            }
        }
        if let Some(newer) = newest.filter(|newer| newer.token > check.token) {
            let what = format!(
                "token {} was called valid {:?} after token {} had been",
                check.token,
                std::time::Duration::from_nanos(check.begin - newer.end),
                newer.token
            );
            violations.push(Violation { rule: "I1", at: check.begin, what });
        }
    }
    violations
}

/// I2: what was asked for after another was granted has a greater token, and no token is given twice.
pub fn token_order(holds: &[Hold]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let with_token: Vec<(&Hold, u64)> = holds.iter().filter_map(|hold| Some((hold, hold.token?))).collect();
    let mut twice: BTreeMap<u64, &Hold> = BTreeMap::new();
    for (hold, token) in &with_token {
        if let Some(other) = twice.insert(*token, hold) {
            let what = format!("{} was granted as well as {}", name(hold), name(other));
            violations.push(Violation { rule: "I2", at: hold.from, what });
        }
    }
    let mut asked = with_token.clone();
    asked.sort_by_key(|(hold, _)| hold.asked);
    let mut granted = with_token;
    granted.sort_by_key(|(hold, _)| hold.from);
    let (mut granted, mut greatest) = (granted.into_iter().peekable(), None::<(&Hold, u64)>);
    for (hold, token) in asked {
        while let Some(before) = granted.next_if(|(before, _)| before.from <= hold.asked) {
            if greatest.is_none_or(|(_, greatest)| greatest < before.1) {
                greatest = Some(before);
            }
        }
        if let Some((before, _)) = greatest.filter(|(_, greatest)| *greatest > token) {
            let what = format!("{} was granted after {}", name(hold), name(before));
            violations.push(Violation { rule: "I2", at: hold.from, what });
        }
    }
    violations
}

/// I3: the fenced register never accepts a write whose token is lower than one it has accepted.
pub fn fencing(writes: &[Write]) -> Vec<Violation> {
    let mut highest = 0;
    let mut violations = Vec::new();
    for write in writes.iter().filter(|write| write.accepted) {
        if write.token < highest {
            let what = format!("the fence let token {} in after token {highest}", write.token);
            violations.push(Violation { rule: "I3", at: write.at, what });
        }
        highest = highest.max(write.token);
    }
    violations
}

/// I3u, the control group: how many writes of an older leader reached the resource after a newer one's. A long run without any
/// shows nothing about the fence.
pub fn stale_writes(writes: &[Write]) -> u64 {
    let mut highest = 0;
    let mut stale = 0;
    for write in writes {
        stale += u64::from(write.token < highest);
        highest = highest.max(write.token);
    }
    stale
}

/// I5: somebody leads at some moment between `healed` and `healed + bound`.
pub fn takeover(holds: &[Hold], healed: u64, bound: u64) -> Option<Violation> {
    let by = healed + bound;
    let led = holds.iter().any(|hold| hold.from < hold.until && hold.from <= by && hold.until > healed);
    (!led).then(|| {
        let what = format!(
            "nobody led within {:?} of the heal at {:.3} s",
            std::time::Duration::from_nanos(bound),
            healed as f64 / 1e9
        );
        Violation { rule: "I5", at: by, what }
    })
}

/// I6: from `calm` to `end`, without a fault, one leadership is valid all the time.
pub fn stability(holds: &[Hold], calm: u64, end: u64) -> Option<Violation> {
    let steady = holds.iter().any(|hold| hold.from <= calm && hold.until >= end);
    let begun: Vec<String> =
        holds.iter().filter(|hold| calm < hold.from && hold.from < end).map(name).collect();
    (!steady || !begun.is_empty()).then(|| {
        let what = format!(
            "without a fault from {:.3} s to {:.3} s the leadership did not stay; begun meanwhile: {begun:?}",
            calm as f64 / 1e9,
            end as f64 / 1e9
        );
        Violation { rule: "I6", at: end, what }
    })
}

fn name(hold: &Hold) -> String {
    match hold.token {
        Some(token) => format!("{} (token {token})", hold.name),
        None => hold.name.clone(),
    }
}
