//! Real candidates on `memory:` with faults before it: whatever is lost, late or doubled, no two lead at once, and somebody
//! leads again.

#[expect(dead_code, reason = "one of its bugs is enough here")]
#[path = "mutants/mutated.rs"]
mod mutated;
mod play;

use std::sync::Arc;
use std::time::Duration;

use incumbent_conformance::{Faults, Hints};
use incumbent_core::Backend;

use mutated::{Bug, Mutated};
use play::Store;

const TTL: Duration = Duration::from_millis(600);

fn memory() -> Store {
    Store { url: "memory:candidates".to_owned(), ttl: TTL, wrap: |right| right }
}

async fn play(faults: Faults) {
    play::play(&memory(), faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_watch() {
    play(Faults { seed: 1, hints: Hints::Absent, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_watch_that_never_says_anything() {
    play(Faults { seed: 2, hints: Hints::Silent, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_watch_that_breaks() {
    play(Faults { seed: 3, hints: Hints::Broken, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_hints_that_come_three_times() {
    play(Faults { seed: 4, hints: Hints::Tripled, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_answers_that_are_lost() {
    play(Faults { seed: 5, lost: 30, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_calls_that_are_doubled() {
    play(Faults { seed: 6, doubled: 50, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_answers_that_are_late() {
    play(Faults { seed: 7, late: 40, delay: TTL / 2, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_of_it() {
    let faults = Faults { seed: 8, lost: 15, doubled: 15, late: 15, delay: TTL, hints: Hints::Broken };
    play(faults).await;
}

/// The judge can see: a store that confirms what is gone makes two leaders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "called itself valid")]
async fn on_a_store_that_proves_nothing() {
    let lying = |right| Arc::new(Mutated::new(right, Bug::RenewedByKeepAlive)) as Arc<dyn Backend>;
    play::play(&Store { wrap: lying, ..memory() }, Faults { seed: 9, ..Faults::default() }).await;
}
