//! Judges a history. Only certain orders count: whatever could have been innocent is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use incumbent_core::{BootInstant, CandidateId, ElectionName, FencingToken, Nonce};

use crate::history::{Answer, Call, Entry};

/// A rule that a history breaks, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule, as in `R1`.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.rule, self.what)
    }
}

/// By how much the ends of leases may be judged early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tolerance {
    /// [`Guarantees::expiry_slack`](incumbent_core::Guarantees::expiry_slack).
    pub slack: Duration,
    /// Bound on the error of a clock's rate, in parts per million.
    pub drift_ppm: u32,
}

impl Tolerance {
    /// When a lease of `ttl` that was proved by a request sent at `sent_at` may run out at the earliest.
    fn certain_until(self, sent_at: BootInstant, ttl: Duration) -> BootInstant {
        let drift = ttl.as_nanos() * u128::from(self.drift_ppm) / 1_000_000;
        let drift = Duration::from_nanos(drift.try_into().unwrap_or(u64::MAX));
        sent_at + ttl.saturating_sub(self.slack).saturating_sub(drift)
    }
}

/// A grant as the history proves it: certainly there from `from` on, certainly unexpired until `until`.
#[derive(Clone, Debug)]
struct Hold {
    campaign: (CandidateId, Nonce),
    token: Option<FencingToken>,
    /// Before the call that was granted.
    begin: BootInstant,
    from: BootInstant,
    until: BootInstant,
    /// When its holder began to release it, or someone to remove it: nothing is certain after that.
    cut: BootInstant,
}

impl Hold {
    fn certain_end(&self) -> BootInstant {
        self.until.min(self.cut)
    }

    fn name(&self) -> String {
        let (id, nonce) = &self.campaign;
        let nonce = nonce.to_string();
        match self.token {
            Some(token) => format!("{id}:{} (token {token})", &nonce[..4]),
            None => format!("{id}:{}", &nonce[..4]),
        }
    }
}

/// All violations of R1, R2, R3 and R9 in `entries`.
pub fn check(entries: &[Entry], tolerance: Tolerance) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut elections: BTreeMap<&ElectionName, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        if let Some(election) = &entry.election {
            elections.entry(election).or_default().push(entry);
        }
    }
    let of_all: Vec<&Entry> = entries.iter().filter(|entry| entry.election.is_none()).collect();
    for mut entries in elections.into_values() {
        entries.extend(&of_all);
        entries.sort_by_key(|entry| entry.begin);
        let holds = holds(&entries, tolerance, &mut violations);
        overlaps(&holds, &mut violations);
        token_order(&holds, &mut violations);
        late_extensions(&entries, &holds, &mut violations);
        observations(&entries, &mut violations);
    }
    violations
}

/// Puts the grants together from their proofs.
fn holds(entries: &[&Entry], tolerance: Tolerance, violations: &mut Vec<Violation>) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for entry in entries {
        let of_campaign = |hold: &&mut Hold| Some(&hold.campaign) == entry.campaign.as_ref();
        match (entry.call, &entry.end) {
            (Call::Release, _) => {
                for hold in holds.iter_mut().filter(of_campaign) {
                    hold.cut = hold.cut.min(entry.begin);
                }
            }
            (Call::Remove, _) => {
                for hold in &mut holds {
                    hold.cut = hold.cut.min(entry.begin);
                }
            }
            (Call::Acquire, Some((end, Answer::Granted { token, sent_at, ttl }))) => {
                let Some(campaign) = entry.campaign.clone() else { continue };
                proof_after_answer(*sent_at, *end, violations);
                let until = tolerance.certain_until(*sent_at, *ttl);
                // An adopted grant is the same grant, unless it was given up in between.
                let known = holds.iter_mut().filter(of_campaign);
                let known = known.filter(|hold| hold.token == *token && hold.cut > entry.begin).last();
                match known {
                    Some(hold) => hold.until = hold.until.max(until),
                    None => holds.push(Hold {
                        campaign,
                        token: *token,
                        begin: entry.begin,
                        from: *end,
                        until,
                        cut: BootInstant::FAR_FUTURE,
                    }),
                }
            }
            (Call::Renew(token), Some((end, Answer::Extended { sent_at, ttl }))) => {
                proof_after_answer(*sent_at, *end, violations);
                let until = tolerance.certain_until(*sent_at, *ttl);
                let hold = holds.iter_mut().filter(of_campaign).filter(|hold| hold.token == token).last();
                if let Some(hold) = hold {
                    hold.until = hold.until.max(until);
                }
            }
            _ => {}
        }
    }
    holds
}

fn proof_after_answer(sent_at: BootInstant, end: BootInstant, violations: &mut Vec<Violation>) {
    if sent_at > end {
        let what = format!("a proof claims to have been sent {:?} after its answer", sent_at.since(end));
        violations.push(Violation { rule: "R3", what });
    }
}

/// R1: no two certain intervals meet.
fn overlaps(holds: &[Hold], violations: &mut Vec<Violation>) {
    for (i, one) in holds.iter().enumerate() {
        for other in &holds[i + 1..] {
            let (from, until) = (one.from.max(other.from), one.certain_end().min(other.certain_end()));
            if from < until {
                let (earlier, later) = if one.from < other.from { (one, other) } else { (other, one) };
                let what = format!(
                    "{} and {} both held an unexpired grant for {:?}",
                    earlier.name(),
                    later.name(),
                    until.since(from)
                );
                violations.push(Violation { rule: "R1", what });
            }
        }
    }
}

/// R2: a grant that began after another was answered has a greater token, and no token is given twice.
fn token_order(holds: &[Hold], violations: &mut Vec<Violation>) {
    for (i, one) in holds.iter().enumerate() {
        for other in &holds[i + 1..] {
            let (earlier, later) = if one.from <= other.begin { (one, other) } else { (other, one) };
            let (Some(low), Some(high)) = (earlier.token, later.token) else { continue };
            let in_order = earlier.from <= later.begin;
            if low == high || (in_order && low > high) {
                let what = format!("{} was granted after {}", later.name(), earlier.name());
                violations.push(Violation { rule: "R2", what });
            }
        }
    }
}

/// R3: no extension is proved by what was sent after another grant, or the removal, was certain.
fn late_extensions(entries: &[&Entry], holds: &[Hold], violations: &mut Vec<Violation>) {
    for entry in entries {
        let (Call::Renew(token), Some((_, Answer::Extended { sent_at, .. }))) = (entry.call, &entry.end)
        else {
            continue;
        };
        let own =
            holds.iter().find(|hold| Some(&hold.campaign) == entry.campaign.as_ref() && hold.token == token);
        let Some(own) = own else { continue };
        let successor = holds.iter().find(|hold| own.from <= hold.begin && hold.from < *sent_at);
        if let Some(successor) = successor {
            let what = format!(
                "{} was extended by what was sent {:?} after {} had been granted",
                own.name(),
                sent_at.since(successor.from),
                successor.name()
            );
            violations.push(Violation { rule: "R3", what });
        }
        let removal = entries.iter().find_map(|removal| match (removal.call, &removal.end) {
            (Call::Remove, Some((end, Answer::Done))) if own.from <= removal.begin && end < sent_at => {
                Some(*end)
            }
            _ => None,
        });
        if let Some(removed) = removal {
            let what = format!(
                "{} was extended by what was sent {:?} after it had been removed by hand",
                own.name(),
                sent_at.since(removed)
            );
            violations.push(Violation { rule: "R3", what });
        }
    }
}

/// R9: what one handle shows never goes back.
fn observations(entries: &[&Entry], violations: &mut Vec<Violation>) {
    type Shown = Vec<(BootInstant, BootInstant, FencingToken)>;
    let mut shown: BTreeMap<usize, Shown> = BTreeMap::new();
    for entry in entries {
        if let (Call::Observe, Some((end, Answer::Shown(Some(token))))) = (entry.call, &entry.end) {
            shown.entry(entry.handle).or_default().push((entry.begin, *end, *token));
        }
    }
    for (handle, shown) in shown {
        for (i, (_, end, before)) in shown.iter().enumerate() {
            let back = shown[i + 1..].iter().find(|(begin, _, after)| end <= begin && after < before);
            if let Some((_, _, after)) = back {
                let what = format!("connection {handle} showed token {after} after it had shown {before}");
                violations.push(Violation { rule: "R9", what });
                break;
            }
        }
    }
}
