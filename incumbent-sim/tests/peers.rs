//! Peers under faults: no invariant breaks, and every interesting thing happens.

use incumbent_sim::soak::{self, Subject};

#[test]
fn raft_has_one_leader_under_faults_and_one_after_them() {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let sum = soak::run(Subject::Raft, 0..2_000, threads, &|_| {});
    eprintln!("{} runs, {:.1} h: {:?} {:?}", sum.runs, sum.hours(), sum.counts, sum.sometimes);
    if let Some((seed, violation)) = sum.violations.first_key_value() {
        panic!("{} of {} runs fail; seed {seed}: {violation}", sum.violations.len(), sum.runs);
    }
    let missing = sum.sometimes.missing();
    // Which of its rounds are not answered in time a peer does not say, and there is no store.
    let of_stores = ["a renewal with unknown outcome", "a change of the store during a renewal"];
    assert!(missing.iter().all(|name| of_stores.contains(name)), "{missing:?}");
}
