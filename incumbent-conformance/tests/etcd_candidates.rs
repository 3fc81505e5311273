//! Real candidates on etcd, three members, with faults before it: no two lead at once, and somebody leads again.

mod play;

use std::time::Duration;

use incumbent_conformance::{Faults, Hints};
use testkit::{Etcd, Version};

use play::Store;

const TTL: Duration = Duration::from_secs(2);

async fn play(version: Version, faults: Faults) {
    let etcd = Etcd::cluster(version, 3).start().expect("etcd starts");
    let store = Store { url: etcd.url(), ttl: TTL, wrap: |right| right };
    play::play(&store, faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_watch() {
    play(Version::V3_4, Faults { seed: 1, hints: Hints::Absent, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_answers_that_are_lost_and_late() {
    play(Version::V3_4, Faults { seed: 2, lost: 20, late: 20, delay: TTL / 2, ..Faults::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_of_it() {
    let faults = Faults { seed: 3, lost: 15, doubled: 15, late: 15, delay: TTL, hints: Hints::Broken };
    play(Version::V3_5, faults).await;
}
