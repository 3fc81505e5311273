//! Which member is asked: one that works, and only of the same cluster.

use std::net::TcpListener;
use std::time::Duration;

use incumbent_core::ErrorKind;
use testkit::{Etcd, Version};

use super::{LIMIT, client, get, put, run, single};
use crate::clock;

#[test]
fn a_dead_endpoint_of_three_costs_nothing() {
    let mut etcd = Etcd::cluster(Version::V3_4, 3).start().expect("etcd starts");
    run(async {
        etcd.kill(0);
        etcd.wait_ready();
        etcd.leader_index();
        let client = client(etcd.endpoints());
        for round in 0..20 {
            client.put(put("k", &round.to_string()), LIMIT).await.expect("two members are a majority");
        }
    });
}

#[test]
fn an_endpoint_that_accepts_and_says_nothing_costs_once() {
    let etcd = single(Version::V3_5);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    run(async {
        let address = silent.local_addr().expect("an address").to_string();
        let client = client(vec![address, etcd.endpoints().remove(0)]);
        client.put(put("k", "0"), LIMIT).await.expect("the other endpoint works");
        let start = clock::now();
        for round in 0..20 {
            client.put(put("k", &round.to_string()), LIMIT).await.expect("put");
        }
        // Each would cost seconds if the silent one were waited for again.
        assert!(clock::now().since(start) < Duration::from_secs(20));
    });
}

#[test]
fn a_member_that_stops_answering_is_left_for_another() {
    let mut etcd = Etcd::cluster(Version::V3_5, 3).start().expect("etcd starts");
    run(async {
        let leader = etcd.leader_index();
        let follower = (leader + 1) % 3;
        let mut endpoints = etcd.endpoints();
        endpoints.swap(0, follower);
        let client = client(endpoints);
        client.put(put("k", "1"), LIMIT).await.expect("put");
        etcd.pause(follower);
        let failure = client.put(put("k", "2"), Duration::from_secs(1)).await.expect_err("frozen");
        assert_eq!((failure.kind(), failure.is_ambiguous()), (ErrorKind::TimedOut, true));
        client.put(put("k", "3"), LIMIT).await.expect("another member answers");
        etcd.resume(follower);
    });
}

#[test]
fn a_member_without_a_quorum_refuses_at_once_and_for_certain() {
    for version in Version::ALL {
        let mut etcd = Etcd::cluster(version, 3).start().expect("etcd starts");
        run(async {
            let client = client(etcd.endpoints());
            client.put(put("k", "1"), LIMIT).await.expect("put");
            etcd.kill(1);
            etcd.kill(2);
            // While the member still believes in a leader, a request may hang; then it says that there is none.
            let mut failure = client.put(put("k", "2"), Duration::from_secs(2)).await.expect_err("no quorum");
            for _ in 0..30 {
                assert!(failure.is_retryable(), "{failure:?}");
                if failure.to_string().contains("no leader") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
                failure = client.put(put("k", "2"), Duration::from_secs(2)).await.expect_err("no quorum");
            }
            assert!(failure.to_string().contains("no leader"), "{failure:?}");
            assert!(!failure.is_ambiguous(), "{failure:?}");
        });
    }
}

#[test]
fn another_cluster_is_not_taken_for_the_first() {
    let (mut first, second) = (single(Version::V3_5), single(Version::V3_5));
    run(async {
        let client = client(vec![first.endpoints().remove(0), second.endpoints().remove(0)]);
        client.put(put("k", "1"), LIMIT).await.expect("put");
        first.kill(0);
        let mut failure = client.put(put("k", "2"), LIMIT).await.expect_err("gone");
        if failure.kind() != ErrorKind::StoreRegressed {
            failure = client.put(put("k", "2"), LIMIT).await.expect_err("the other cluster");
        }
        assert!(failure.to_string().contains("belongs to cluster"), "{failure:?}");
        assert!(!failure.is_ambiguous());
        let there = super::client(second.endpoints()).range(get("k"), LIMIT).await.expect("range");
        assert_eq!(there.body.count, 0, "nothing was written into the other cluster");
    });
}
