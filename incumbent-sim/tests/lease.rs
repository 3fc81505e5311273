//! The electors on every store, under faults: no invariant breaks, and every interesting thing happens.

use std::ops::Range;

use incumbent_sim::check::Sometimes;
use incumbent_sim::lease::StoreKind;
use incumbent_sim::outcome::Shown;
use incumbent_sim::soak::{self, Subject, Sum};

#[track_caller]
fn unbroken(subject: Subject, seeds: Range<u64>) -> Sum {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let sum = soak::run(subject, seeds, threads, &|_| {});
    eprintln!("{subject:?}: {} runs, {:.0} h: {:?} {:?}", sum.runs, sum.hours(), sum.counts, sum.sometimes);
    if let Some((seed, violation)) = sum.violations.first_key_value() {
        panic!("{} of {} runs fail; seed {seed}: {violation}", sum.violations.len(), sum.runs);
    }
    sum
}

/// Eleven years of the electors on a server that judges leases.
#[test]
fn nothing_breaks_in_100_000_simulated_hours() {
    let sum = unbroken(Subject::Lease(Some(StoreKind::Lease)), 0..100_000);
    assert!(sum.hours() >= 100_000.0);
    // A run in which these never happened would prove nothing.
    assert_eq!(sum.sometimes.missing(), [""; 0], "{:?}", sum.sometimes);
    assert_eq!(Sometimes::default().missing().len(), 10);
}

/// Where a store lies or loses writes, what it cannot promise is not asked of it, but the fence holds and a leader comes back.
#[test]
fn every_store_keeps_what_it_promises() {
    for store in StoreKind::ALL {
        let sum = unbroken(Subject::Lease(Some(store)), 0..300);
        assert!(sum.counts.elections > sum.runs, "too few terms on {store:?}: {:?}", sum.counts);
    }
}

/// Known to be possible there, so a judge that finds nothing is blind.
#[test]
fn two_lead_on_a_store_that_lies_in_its_writes_or_loses_them() {
    for store in [StoreKind::LyingRenewals, StoreKind::ReapedEarly, StoreKind::SilentReplica] {
        let overlap = |seed| {
            let outcome = Subject::Lease(Some(store)).run(seed, Shown::Nothing);
            incumbent_sim::check::overlapping_time(&outcome.holds) > 0
        };
        assert!((0..300).any(overlap), "{store:?}");
    }
}

/// Telling changes nothing.
#[test]
fn a_shown_run_is_the_same_run() {
    for seed in 0..20 {
        let (quiet, shown) =
            (Subject::Lease(None).run(seed, Shown::Nothing), Subject::Lease(None).run(seed, Shown::Steps));
        assert_eq!((quiet.hash, quiet.holds), (shown.hash, shown.holds));
        assert!(quiet.trace.is_empty() && !shown.trace.is_empty() && !shown.picture.letters.is_empty());
    }
}
