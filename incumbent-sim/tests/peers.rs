//! Peers under faults: no invariant breaks, and every interesting thing happens.

use incumbent_sim::soak::{self, Subject, Sum};

#[track_caller]
fn unbroken(subject: Subject, seeds: u64) -> Sum {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let sum = soak::run(subject, 0..seeds, threads, &|_| {});
    eprintln!("{subject:?}: {} runs, {:.1} h: {:?} {:?}", sum.runs, sum.hours(), sum.counts, sum.sometimes);
    if let Some((seed, violation)) = sum.violations.first_key_value() {
        panic!("{} of {} runs fail; seed {seed}: {violation}", sum.violations.len(), sum.runs);
    }
    sum
}

#[track_caller]
fn one_leads(subject: Subject, seeds: u64) {
    let missing = unbroken(subject, seeds).sometimes.missing();
    // Which of its rounds are not answered in time a peer does not say, and there is no store.
    let of_stores = ["a renewal with unknown outcome", "a change of the store during a renewal"];
    assert!(missing.iter().all(|name| of_stores.contains(name)), "{missing:?}");
}

#[test]
fn raft_has_one_leader_under_faults_and_one_after_them() {
    one_leads(Subject::Raft, 2_000);
}

#[test]
fn bully_with_a_majority_has_one_leader_under_faults_and_one_after_them() {
    one_leads(Subject::Bully { majority: true }, 2_000);
}

#[test]
fn ring_with_a_majority_has_one_leader_under_faults_and_one_after_them() {
    one_leads(Subject::Ring { majority: true }, 150);
}

/// What they do not promise is not asked of them, but a leader comes back. A judge that finds no two is blind.
#[test]
fn without_a_majority_two_lead_under_faults_and_one_after_them() {
    for subject in [Subject::Bully { majority: false }, Subject::Ring { majority: false }] {
        unbroken(subject, 200);
        let split = |seed| {
            let outcome = subject.run(seed, incumbent_sim::outcome::Shown::Nothing);
            outcome.stale_let_in > 0 && incumbent_sim::check::overlapping_time(&outcome.holds) > 0
        };
        assert!((0..200).any(split), "{subject:?}");
    }
}
