//! Real candidates on a backend with faults before it: whatever is lost, late or doubled, no two lead at once, and somebody
//! leads again within the bound.

#[expect(dead_code, reason = "one of its bugs is enough here")]
#[path = "mutants/mutated.rs"]
mod mutated;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use incumbent::{BootInstant, Connection, FencingToken, Leadership, Settings, clock};
use incumbent_conformance::{Faults, Faulty, Hints, History, Recorder, Tolerance, check};
use incumbent_core::Backend;
use tokio::time::sleep;

use mutated::{Bug, Mutated};

const TTL: Duration = Duration::from_millis(600);

/// A time at which a leadership said that it was valid, between two stamps.
struct Valid {
    token: FencingToken,
    before: BootInstant,
    after: BootInstant,
}

#[derive(Default)]
struct Terms {
    valid: Mutex<Vec<Valid>>,
}

impl Terms {
    fn ask(&self, leadership: &Leadership) -> bool {
        let before = clock::now();
        let valid = leadership.is_valid();
        let after = clock::now();
        if valid {
            self.valid.lock().expect("an unbroken lock").push(Valid {
                token: leadership.token().expect("a token"),
                before,
                after,
            });
        }
        valid
    }

    fn count(&self) -> usize {
        self.valid
            .lock()
            .expect("an unbroken lock")
            .iter()
            .map(|valid| valid.token)
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// The tokens of the terms, in order; once a term was certainly valid, no earlier one may be.
    fn judge(&self) -> Vec<FencingToken> {
        let mut all: Vec<(FencingToken, BootInstant, BootInstant)> = Vec::new();
        for valid in self.valid.lock().expect("an unbroken lock").iter() {
            match all.iter_mut().find(|(token, ..)| *token == valid.token) {
                Some((_, first, last)) => {
                    *first = valid.after.min(*first);
                    *last = valid.before.max(*last);
                }
                None => all.push((valid.token, valid.after, valid.before)),
            }
        }
        all.sort_by_key(|(token, ..)| *token);
        for pair in all.windows(2) {
            let ((old, _, last), (new, first, _)) = (pair[0], pair[1]);
            assert!(last <= first, "{old} called itself valid {:?} after {new} had", last.since(first));
        }
        all.into_iter().map(|(token, ..)| token).collect()
    }
}

async fn play(faults: Faults) {
    play_on(faults, |right| right).await;
}

/// Three candidates until there were eight terms: each leads for a moment and is done, and is dropped now and then.
async fn play_on(faults: Faults, store: fn(Arc<dyn Backend>) -> Arc<dyn Backend>) {
    let space = format!("memory:candidates-{}", faults.seed);
    let (terms, history) = (Arc::new(Terms::default()), History::new());
    let mut tasks = Vec::new();
    for number in 0..3 {
        let (terms, history, space) = (terms.clone(), history.clone(), space.clone());
        tasks.push(tokio::spawn(async move {
            let settings = Settings { ttl: TTL, ..Settings::default() };
            let right = incumbent::backend::factory(&space, &settings).expect("the backend");
            let faults = Faults { seed: faults.seed * 3 + number as u64, ..faults };
            let factory = move || {
                let recorded = Recorder::new(store(right()?), history, number);
                Ok(Arc::new(Faulty::new(Arc::new(recorded), faults)) as Arc<dyn Backend>)
            };
            let connection = Connection::open(factory, settings).await.expect("a connection");
            let election = connection.election("billing");
            for round in 0.. {
                let run = election.candidate(format!("c{number}")).run(async |leadership: Leadership| {
                    let end = clock::now() + TTL * (1 + round % 3) / 2;
                    while clock::now() < end && terms.ask(&leadership) {
                        sleep(Duration::from_millis(2)).await;
                    }
                });
                // Of four campaigns one is dropped wherever it is.
                let patience = if round % 4 == 3 { TTL } else { Duration::from_secs(3600) };
                if let Ok(result) = tokio::time::timeout(patience, run).await {
                    result.expect("a candidate does not give up");
                }
            }
        }));
    }
    let enough = async {
        while terms.count() < 8 {
            sleep(TTL / 10).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(90), enough).await;
    for task in tasks {
        task.abort();
    }
    let tokens = terms.judge();
    assert!(ended.is_ok(), "only the terms {tokens:?} in 90 s under {faults:?}");
    let tolerance = Tolerance { slack: Duration::ZERO, drift_ppm: 1000 };
    let violations = check(&history.entries(), tolerance);
    assert!(violations.is_empty(), "{faults:?}: {violations:?}");
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
    play_on(Faults { seed: 9, ..Faults::default() }, lying).await;
}
