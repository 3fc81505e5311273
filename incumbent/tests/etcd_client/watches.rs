//! Watches: many on one stream, over compaction and restart, and gone at the server when dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::StreamExt;
use testkit::{Etcd, Version, wait_until};
use tokio::time::timeout;

use super::{LIMIT, client, get, put, run, single};
use crate::backend::etcd::client::Client;
use crate::backend::etcd::proto::watch_create_request::FilterType;
use crate::backend::etcd::proto::{DeleteRangeRequest, Event, prefix_end};
use crate::backend::etcd::watch::{Change, Watch, WatchKeys};

async fn next(watch: &mut Watch) -> Change {
    timeout(LIMIT, watch.next())
        .await
        .expect("a change in time")
        .expect("the watch goes on")
        .expect("no error")
}

async fn events(watch: &mut Watch) -> Vec<Event> {
    match next(watch).await {
        Change::Events(events) => events,
        Change::Gap => panic!("no gap is due"),
    }
}

/// A watch of one key from the next revision on.
async fn follow(client: &Client, key: &str) -> Watch {
    let listed = client.range(get(key), LIMIT).await.expect("range").revision;
    client.watch(WatchKeys { key: key.into(), start_revision: listed + 1, ..Default::default() })
}

#[test]
fn a_watch_tells_each_change_once_and_in_order() {
    for version in Version::ALL {
        let etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let mut one = follow(&client, "e/1").await;
            let mut all = client.watch(WatchKeys {
                key: "e/".into(),
                range_end: prefix_end(b"e/"),
                without: vec![FilterType::Noput],
                ..Default::default()
            });
            assert_eq!(next(&mut all).await, Change::Gap, "a watch from now on says when now is");
            client.put(put("e/1", "a"), LIMIT).await.expect("put");
            client.put(put("e/2", "b"), LIMIT).await.expect("put");
            client.put(put("e/1", "c"), LIMIT).await.expect("put");
            for key in ["e/2", "e/1"] {
                client
                    .delete(DeleteRangeRequest { key: key.into(), ..Default::default() }, LIMIT)
                    .await
                    .expect("delete");
            }
            let mut seen = Vec::new();
            while seen.len() < 3 {
                seen.extend(events(&mut one).await.into_iter().map(|event| event.kv.expect("a key").value));
            }
            assert_eq!(seen, [&b"a"[..], b"c", b""]);
            let mut seen = Vec::new();
            while seen.len() < 2 {
                seen.extend(events(&mut all).await.into_iter().map(|event| event.kv.expect("a key").key));
            }
            assert_eq!(seen, [b"e/2", b"e/1"]);
        });
    }
}

#[test]
fn a_watch_over_compaction_has_a_gap_and_goes_on() {
    for version in Version::ALL {
        let etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            for value in ["a", "b", "c"] {
                client.put(put("k", value), LIMIT).await.expect("put");
            }
            let revision = client.range(get("k"), LIMIT).await.expect("range").revision;
            etcd.etcdctl_ok(&["compact", &revision.to_string()]);
            let mut watch =
                client.watch(WatchKeys { key: "k".into(), start_revision: 1, ..Default::default() });
            assert_eq!(next(&mut watch).await, Change::Gap);
            client.put(put("k", "d"), LIMIT).await.expect("put");
            assert_eq!(events(&mut watch).await[0].kv.as_ref().expect("a key").value, b"d");
        });
    }
}

#[test]
fn a_watch_survives_a_restart_with_a_gap() {
    for version in Version::ALL {
        let mut etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let mut watch = follow(&client, "k").await;
            client.put(put("k", "a"), LIMIT).await.expect("put");
            assert_eq!(events(&mut watch).await.len(), 1);
            etcd.kill(0);
            etcd.restart(0);
            assert_eq!(next(&mut watch).await, Change::Gap);
            client.put(put("k", "b"), LIMIT).await.expect("put");
            assert_eq!(events(&mut watch).await[0].kv.as_ref().expect("a key").value, b"b");
        });
    }
}

#[test]
fn a_watch_leaves_a_frozen_member_with_the_calls() {
    let mut etcd = Etcd::cluster(Version::V3_5, 3).start().expect("etcd starts");
    run(async {
        let leader = etcd.leader_index();
        let follower = (leader + 1) % 3;
        let mut endpoints = etcd.endpoints();
        endpoints.swap(0, follower);
        let client = client(endpoints);
        let mut watch = follow(&client, "k").await;
        client.put(put("k", "a"), LIMIT).await.expect("put");
        assert_eq!(events(&mut watch).await.len(), 1);
        etcd.pause(follower);
        client.put(put("k", "b"), Duration::from_millis(500)).await.expect_err("frozen");
        assert_eq!(next(&mut watch).await, Change::Gap);
        client.put(put("k", "c"), LIMIT).await.expect("put by another member");
        assert_eq!(events(&mut watch).await[0].kv.as_ref().expect("a key").value, b"c");
        etcd.resume(follower);
    });
}

#[test]
fn a_reader_who_does_not_read_gets_a_gap_and_holds_nobody_up() {
    let etcd = single(Version::V3_5);
    run(async {
        let client = client(etcd.endpoints());
        let mut slow = follow(&client, "k").await;
        let mut quick = follow(&client, "k").await;
        for round in 0..300 {
            client.put(put("k", &round.to_string()), LIMIT).await.expect("put");
            assert_eq!(events(&mut quick).await.len(), 1);
        }
        let mut held = 0;
        while next(&mut slow).await != Change::Gap {
            held += 1;
            assert!(held < 300, "nothing was left out");
        }
    });
}

#[test]
fn a_thousand_watches_use_one_stream_and_leave_nothing_behind() {
    for version in Version::ALL {
        let etcd = single(version);
        run(async {
            let client = client(etcd.endpoints());
            let idle = watchers(&etcd);
            let mut watches = Vec::new();
            for number in 0..1000 {
                watches.push(
                    client.watch(WatchKeys { key: format!("e/{number}").into(), ..Default::default() }),
                );
            }
            for watch in &mut watches {
                assert_eq!(next(watch).await, Change::Gap);
            }
            client.put(put("e/777", "x"), LIMIT).await.expect("put");
            assert_eq!(events(&mut watches[777]).await.len(), 1);
            assert_eq!(watchers(&etcd), (idle.0 + 1, idle.1 + 1000));
            watches.truncate(1);
            // Any answer shows that the server has taken in what was sent before on the connection.
            for _ in 0..1000 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if watchers(&etcd).1 == idle.1 + 1 {
                    break;
                }
            }
            assert_eq!(watchers(&etcd), (idle.0 + 1, idle.1 + 1));
            drop((watches, client));
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        });
        assert!(wait_until(LIMIT, || watchers(&etcd) == (0, 0)), "{:?} are left", watchers(&etcd));
    }
}

/// How many watch streams and watches the server has, by its own count.
fn watchers(etcd: &Etcd) -> (u64, u64) {
    let mut connection = TcpStream::connect(&etcd.endpoints()[0]).expect("a connection");
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("an answer");
    let read = |name: &str| {
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().expect("a number").parse().expect("a number")
    };
    (read("etcd_debugging_mvcc_watch_stream_total"), read("etcd_debugging_mvcc_watcher_total"))
}
