//! Makes a failing plan small: an earlier end, fewer faults, shorter ones.

use crate::clock::Nanos;
use crate::plan::Plan;

/// The smallest plan found that still fails, by trying: `fails` runs a plan and returns when it first broke something.
pub fn shrink<O: Clone>(plan: &Plan<O>, fails: impl Fn(&Plan<O>) -> Option<Nanos>) -> Plan<O> {
    let mut best = plan.clone();
    let Some(broken_at) = fails(&best) else { return best };
    let mut shorter = best.clone();
    shorter.end_at_ns = broken_at + 1;
    shorter.faults.retain(|fault| fault.at_ns <= broken_at);
    if fails(&shorter).is_some() {
        best = shorter;
    }
    // Half of the faults at once, then a quarter, and so on: most matter to nothing.
    let mut chunk = best.faults.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < best.faults.len() {
            let mut fewer = best.clone();
            fewer.faults.drain(start..(start + chunk).min(fewer.faults.len()));
            if fails(&fewer).is_some() {
                best = fewer;
            } else {
                start += chunk;
            }
        }
        if chunk == 1 {
            break;
        }
        chunk = chunk.div_ceil(2);
    }
    for number in 0..best.faults.len() {
        loop {
            let mut briefer = best.clone();
            briefer.faults[number].lasts_ns /= 2;
            if briefer.faults[number].lasts_ns == 0 || fails(&briefer).is_none() {
                break;
            }
            best = briefer;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Fault, Kind, Whom};

    #[test]
    fn only_what_matters_is_left() {
        let fault = |number: u64| Fault {
            at_ns: number * 100,
            lasts_ns: 1_000,
            kind: Kind::Freeze,
            whom: Whom::Leader,
            dice: number,
        };
        let faults = (0..40).map(fault).collect();
        let plan = Plan { seed: 1, options: (), faults, heal_at_ns: 5_000, end_at_ns: 9_000 };
        // It takes the faults 7 and 23, the latter for 100 ns, and shows 50 ns later.
        let fails = |plan: &Plan<()>| {
            let has = |dice, least| plan.faults.iter().any(|f| f.dice == dice && f.lasts_ns >= least);
            (has(7, 0) && has(23, 100) && plan.end_at_ns > 2_350).then_some(2_350)
        };
        let small = shrink(&plan, fails);
        assert_eq!(small.faults.iter().map(|fault| fault.dice).collect::<Vec<_>>(), [7, 23]);
        assert_eq!((small.end_at_ns, small.faults[1].lasts_ns), (2_351, 125));
        let good = Plan { faults: Vec::new(), ..plan };
        assert_eq!(shrink(&good, fails), good);
    }
}
