//! Three real candidates on a store with faults before it, and a judge of what they believed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use incumbent::{BootInstant, Connection, FencingToken, Leadership, Settings, clock};
use incumbent_conformance::{Faults, Faulty, History, Recorder, Tolerance, check};
use incumbent_core::Backend;
use tokio::time::sleep;

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

/// What the candidates play on.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    /// What else stands between it and the faults.
    pub(crate) wrap: fn(Arc<dyn Backend>) -> Arc<dyn Backend>,
}

/// Three candidates until there were eight terms: each leads for a moment and is done, and is dropped now and then.
/// No two may lead at once, and somebody must lead again.
pub(crate) async fn play(store: &Store, faults: Faults) {
    let (terms, history) = (Arc::new(Terms::default()), History::new());
    let mut tasks = Vec::new();
    for number in 0..3 {
        let (terms, history, store) = (terms.clone(), history.clone(), store.clone());
        tasks.push(tokio::spawn(async move {
            let settings = Settings { ttl: store.ttl, ..Settings::default() };
            let right = incumbent::backend::factory(&store.url, &settings).expect("the backend");
            let election = format!("billing-{}", faults.seed);
            let faults = Faults { seed: faults.seed * 3 + number as u64, ..faults };
            let factory = move || {
                let recorded = Recorder::new((store.wrap)(right()?), history, number);
                Ok(Arc::new(Faulty::new(Arc::new(recorded), faults)) as Arc<dyn Backend>)
            };
            let connection = Connection::open(factory, settings).await.expect("a connection");
            let election = connection.election(election);
            for round in 0.. {
                let run = election.candidate(format!("c{number}")).run(async |leadership: Leadership| {
                    let end = clock::now() + store.ttl * (1 + round % 3) / 2;
                    while clock::now() < end && terms.ask(&leadership) {
                        sleep(Duration::from_millis(2)).await;
                    }
                });
                // Of four campaigns one is dropped wherever it is.
                let patience = if round % 4 == 3 { store.ttl } else { Duration::from_secs(3600) };
                if let Ok(result) = tokio::time::timeout(patience, run).await {
                    result.expect("a candidate does not give up");
                }
            }
        }));
    }
    let enough = async {
        while terms.count() < 8 {
            sleep(store.ttl / 10).await;
        }
    };
    let ended = tokio::time::timeout(store.ttl * 100 + Duration::from_secs(30), enough).await;
    for task in tasks {
        task.abort();
    }
    let tokens = terms.judge();
    assert!(ended.is_ok(), "only the terms {tokens:?} were there under {faults:?}");
    let tolerance = Tolerance { slack: Duration::ZERO, drift_ppm: 1000 };
    let violations = check(&history.entries(), tolerance);
    assert!(violations.is_empty(), "{faults:?}: {violations:?}");
}
