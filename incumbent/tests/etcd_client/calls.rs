//! Calls: what they do, when they say they were sent, and which failures leave their outcome open.

use std::time::Duration;

use incumbent_core::ErrorKind;
use testkit::Version;

use super::{LIMIT, client, get, put, run, single};
use crate::backend::etcd::proto::compare::{CompareResult, TargetUnion};
use crate::backend::etcd::proto::response_op::Response;
use crate::backend::etcd::proto::{Compare, DeleteRangeRequest, PutRequest, TxnRequest, prefix_end};
use crate::clock;

/// Long enough for a frozen server to be noticed, and for nothing else.
const SHORT: Duration = Duration::from_millis(500);

#[test]
fn a_transaction_compares_a_whole_range() {
    for version in Version::ALL {
        let etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let mine = client.put(put("e/2", "b"), LIMIT).await.expect("put").revision;
            // True as long as nobody below e/ was created before me.
            let lead = || TxnRequest {
                compare: vec![
                    Compare::equal("e/2", TargetUnion::CreateRevision(mine)),
                    Compare::equal("e/", TargetUnion::CreateRevision(mine - 1))
                        .but(CompareResult::Greater)
                        .for_all_until(prefix_end(b"e/")),
                ],
                success: vec![DeleteRangeRequest { key: "none".into(), ..Default::default() }.into()],
                failure: vec![get("e/2").into()],
            };
            let reply = client.txn(lead(), LIMIT).await.expect("txn");
            assert!(reply.body.succeeded);
            assert_ne!((reply.raft_term, reply.cluster_id), (0, 0));
            client.put(put("e/3", "c"), LIMIT).await.expect("put");
            assert!(
                client.txn(lead(), LIMIT).await.expect("txn").body.succeeded,
                "a later key does not matter"
            );

            client
                .delete(DeleteRangeRequest { key: "e/2".into(), ..Default::default() }, LIMIT)
                .await
                .expect("delete");
            client.put(put("e/2", "again"), LIMIT).await.expect("put");
            let reply = client.txn(lead(), LIMIT).await.expect("txn");
            assert!(!reply.body.succeeded, "the key that was re-created is not mine");
            let [answer] = &reply.body.responses[..] else { panic!("one answer: {reply:?}") };
            let Some(Response::ResponseRange(range)) = &answer.response else {
                panic!("a range: {answer:?}")
            };
            assert_eq!(range.kvs[0].value, b"again");
        });
    }
}

#[test]
fn nested_transactions_fail_one_by_one() {
    let etcd = single(Version::V3_4);
    run(async {
        let client = client(etcd.endpoints());
        let lease = client.lease_grant(60, LIMIT).await.expect("grant").body.id;
        let attached = PutRequest { lease, ..put("a", "1") };
        let created = client.put(attached, LIMIT).await.expect("put").revision;
        let guard = |key: &str, lease| TxnRequest {
            compare: vec![
                Compare::equal(key, TargetUnion::CreateRevision(created)),
                Compare::equal(key, TargetUnion::Lease(lease)),
            ],
            success: vec![DeleteRangeRequest { key: "none".into(), ..Default::default() }.into()],
            failure: vec![get(key).into()],
        };
        let all = vec![guard("a", lease).into(), guard("a", lease + 1).into(), guard("b", lease).into()];
        let reply = client.txn(TxnRequest { success: all, ..Default::default() }, LIMIT).await.expect("txn");
        let outcomes: Vec<bool> = reply
            .body
            .responses
            .iter()
            .map(|answer| match &answer.response {
                Some(Response::ResponseTxn(txn)) => txn.succeeded,
                other => panic!("a transaction: {other:?}"),
            })
            .collect();
        assert_eq!(outcomes, [true, false, false]);
        assert_eq!(reply.revision, created, "proving wrote nothing");
    });
}

#[test]
fn a_lease_lives_as_long_as_it_is_kept_alive() {
    for version in Version::ALL {
        let etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let before = clock::now();
            let grant = client.lease_grant(30, LIMIT).await.expect("grant");
            assert!(grant.body.ttl >= 30 && grant.body.id != 0 && grant.sent_at >= before);
            let alive = client.lease_keep_alive_once(grant.body.id, LIMIT).await.expect("keep-alive");
            assert_eq!(alive.body.ttl, grant.body.ttl);
            assert!(alive.sent_at > grant.sent_at && alive.sent_at <= clock::now());
            assert_eq!(alive.raft_term, grant.raft_term);
            client.put(PutRequest { lease: grant.body.id, ..put("k", "v") }, LIMIT).await.expect("put");

            client.lease_revoke(grant.body.id, LIMIT).await.expect("revoke");
            assert_eq!(client.range(get("k"), LIMIT).await.expect("range").body.count, 0);
            for failure in [
                client.lease_revoke(grant.body.id, LIMIT).await.expect_err("revoked"),
                client.lease_keep_alive_once(grant.body.id, LIMIT).await.expect_err("revoked"),
                client
                    .put(PutRequest { lease: grant.body.id, ..put("k", "v") }, LIMIT)
                    .await
                    .expect_err("revoked"),
            ] {
                assert_eq!(failure.kind(), ErrorKind::NotFound, "{failure:?}");
                assert!(!failure.is_ambiguous(), "{failure:?}");
            }
        });
    }
}

#[test]
fn a_late_answer_to_a_keep_alive_is_not_taken_for_that_of_the_next() {
    for version in Version::ALL {
        let mut etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let lease = client.lease_grant(60, LIMIT).await.expect("grant").body.id;
            client.lease_keep_alive_once(lease, LIMIT).await.expect("keep-alive");
            etcd.pause(0);
            let failure = client.lease_keep_alive_once(lease, SHORT).await.expect_err("frozen");
            assert_eq!(failure.kind(), ErrorKind::TimedOut);
            assert!(failure.is_ambiguous());
            etcd.resume(0);
            // The server now answers the first one, when the lease still is; then the lease is gone.
            etcd.etcdctl_ok(&["lease", "revoke", &format!("{lease:x}")]);
            let failure = client.lease_keep_alive_once(lease, LIMIT).await.expect_err("revoked");
            assert_eq!(failure.kind(), ErrorKind::NotFound);
        });
    }
}

#[test]
fn a_frozen_server_leaves_a_write_in_doubt_and_a_read_not() {
    let mut etcd = single(Version::V3_5);
    run(async {
        let client = client(etcd.endpoints());
        client.put(put("k", "1"), LIMIT).await.expect("put");
        etcd.pause(0);
        let write = client.put(put("k", "2"), SHORT).await.expect_err("frozen");
        assert_eq!((write.kind(), write.is_ambiguous()), (ErrorKind::TimedOut, true), "{write:?}");
        // The next call finds no connection in time, so nothing was sent.
        let unsent = client.put(put("k", "3"), SHORT).await.expect_err("frozen");
        assert_eq!((unsent.kind(), unsent.is_ambiguous()), (ErrorKind::Unavailable, false), "{unsent:?}");
        etcd.resume(0);
        client.range(get("k"), LIMIT).await.expect("range");
        etcd.pause(0);
        let read = client.range(get("k"), SHORT).await.expect_err("frozen");
        assert_eq!((read.kind(), read.is_ambiguous()), (ErrorKind::TimedOut, false), "{read:?}");
        etcd.resume(0);
        let value = client.range(get("k"), LIMIT).await.expect("range").body.kvs.remove(0).value;
        assert_ne!(value, b"3", "what was never sent cannot have been written");
    });
}

#[test]
fn a_server_that_is_not_there_has_no_effect() {
    let mut etcd = single(Version::V3_5);
    run(async {
        let client = client(etcd.endpoints());
        client.put(put("k", "1"), LIMIT).await.expect("put");
        etcd.kill(0);
        // The first may still go out on a connection whose end was not yet noticed.
        client.put(put("k", "1"), LIMIT).await.expect_err("no server");
        for _ in 0..3 {
            let failure = client.put(put("k", "2"), LIMIT).await.expect_err("no server");
            assert_eq!(failure.kind(), ErrorKind::Unavailable);
            assert!(!failure.is_ambiguous() && failure.is_retryable(), "{failure:?}");
            assert!(failure.to_string().contains(&etcd.endpoints()[0]), "{failure}");
        }
        etcd.restart(0);
        assert_eq!(client.range(get("k"), LIMIT).await.expect("range").body.kvs[0].value, b"1");
    });
}

#[test]
fn a_request_that_etcd_cannot_take_is_refused_for_certain() {
    let etcd = single(Version::V3_5);
    run(async {
        let client = client(etcd.endpoints());
        let too_many = (0..200).map(|i| put(&format!("k{i}"), "").into()).collect();
        let failure = client.txn(TxnRequest { success: too_many, ..Default::default() }, LIMIT).await;
        let failure = failure.expect_err("more than 128 operations");
        assert_eq!(failure.kind(), ErrorKind::InvalidConfig, "{failure:?}");
        assert!(!failure.is_ambiguous());
        let failure = client.put(put("", ""), LIMIT).await.expect_err("no key");
        assert_eq!(
            (failure.kind(), failure.is_ambiguous()),
            (ErrorKind::InvalidConfig, false),
            "{failure:?}"
        );
    });
}

#[test]
fn a_full_store_is_read_only() {
    for version in Version::ALL {
        let etcd =
            testkit::Etcd::single(version).flag("--quota-backend-bytes=100000").start().expect("etcd starts");
        run(async {
            let client = client(etcd.endpoints());
            let mut outcome = Ok(());
            for round in 0..1000 {
                // The server learns its size with each commit to disk, ten times a second.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let big = PutRequest { value: vec![b'x'; 20_000], ..put(&format!("k{round}"), "") };
                outcome = client.put(big, LIMIT).await.map(drop);
                if outcome.is_err() {
                    break;
                }
            }
            let failure = outcome.expect_err("the quota is crossed");
            assert_eq!(failure.kind(), ErrorKind::ReadOnly, "{failure:?}");
            assert!(failure.to_string().contains("quota"), "{failure}");
        });
    }
}
