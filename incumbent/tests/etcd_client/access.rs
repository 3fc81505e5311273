//! Getting in: users, passwords, tokens.

use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::{Error, ErrorKind};
use testkit::{Etcd, Version};
use tokio::time::timeout;

use super::{LIMIT, PATIENCE, get, put, run, single};
use crate::backend::etcd::auth::Credentials;
use crate::backend::etcd::client::Client;
use crate::backend::etcd::connection::Config;
use crate::backend::etcd::watch::{Change, WatchKeys};
use crate::backend::tls::Tls;
use crate::clock;

const PASSWORD: &str = "correct-horse";

fn client_as(etcd: &Etcd, user: &str, password: &str) -> Client {
    let credentials = Some(Credentials { user: user.into(), password: password.into() });
    Client::new(Config { endpoints: etcd.endpoints(), tls: None, credentials, patience: PATIENCE })
        .expect("a client")
}

fn with_users(version: Version) -> Etcd {
    Etcd::single(version).flag("--auth-token-ttl=2").auth("alice", PASSWORD).start().expect("etcd starts")
}

fn assert_denied(failure: &Error, advice: &str) {
    assert_eq!((failure.kind(), failure.is_ambiguous()), (ErrorKind::Denied, false), "{failure:?}");
    assert!(failure.to_string().contains(advice), "{failure}");
    assert!(!format!("{failure:?}").contains(PASSWORD), "{failure:?}");
}

#[test]
fn a_user_gets_in_with_the_right_password_only() {
    for version in Version::ALL {
        let etcd = with_users(version);
        run(async {
            let alice = client_as(&etcd, "alice", PASSWORD);
            assert!(!format!("{alice:?}").contains(PASSWORD), "{alice:?}");
            alice.put(put("k", "1"), LIMIT).await.expect("put");
            let wrong = client_as(&etcd, "alice", "wrong")
                .put(put("k", "2"), LIMIT)
                .await
                .expect_err("wrong password");
            assert_denied(&wrong, "check user and password");
            let nobody =
                client_as(&etcd, "bob", PASSWORD).put(put("k", "2"), LIMIT).await.expect_err("no such user");
            assert_denied(&nobody, "check user and password");
            let anonymous =
                super::client(etcd.endpoints()).put(put("k", "2"), LIMIT).await.expect_err("no user");
            assert_denied(&anonymous, "password_file");
            assert_eq!(alice.range(get("k"), LIMIT).await.expect("range").body.kvs[0].value, b"1");
        });
    }
}

#[test]
fn an_expired_token_is_renewed_and_the_request_counts_from_its_second_sending() {
    for version in Version::ALL {
        let etcd = with_users(version);
        run(async {
            let alice = client_as(&etcd, "alice", PASSWORD);
            let first = alice.put(put("k", "1"), LIMIT).await.expect("put");
            // Tokens live for 2 s after their last use and are swept every second.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let before = clock::now();
            let second = alice.put(put("k", "2"), LIMIT).await.expect("put");
            assert!(second.sent_at > before);
            assert_eq!(second.revision, first.revision + 1, "written once");

            let mut watch = alice.watch(WatchKeys { key: "k".into(), ..Default::default() });
            assert_eq!(
                timeout(LIMIT, watch.next()).await.expect("in time").expect("a change").expect("no error"),
                Change::Gap
            );
            tokio::time::sleep(Duration::from_secs(5)).await;
            // The stream was opened with a token that has expired by now.
            let mut late = alice.watch(WatchKeys { key: "l".into(), ..Default::default() });
            assert_eq!(
                timeout(LIMIT, late.next()).await.expect("in time").expect("a change").expect("no error"),
                Change::Gap
            );
            let lease = alice.lease_grant(60, LIMIT).await.expect("grant").body.id;
            tokio::time::sleep(Duration::from_secs(5)).await;
            alice.lease_keep_alive_once(lease, LIMIT).await.expect("keep-alive");
        });
    }
}

#[test]
fn a_user_without_permission_is_told_so_and_the_others_go_on() {
    for version in Version::ALL {
        let etcd = with_users(version);
        etcd.etcdctl_ok(&["role", "add", "some"]);
        etcd.etcdctl_ok(&["role", "grant-permission", "some", "--prefix=true", "readwrite", "mine/"]);
        etcd.etcdctl_ok(&["user", "add", &format!("carol:{PASSWORD}")]);
        etcd.etcdctl_ok(&["user", "grant-role", "carol", "some"]);
        run(async {
            let carol = client_as(&etcd, "carol", PASSWORD);
            carol.put(put("mine/k", "1"), LIMIT).await.expect("put");
            let failure = carol.put(put("k", "1"), LIMIT).await.expect_err("not hers");
            assert_denied(&failure, "readwrite");
            let mut hers = carol.watch(WatchKeys { key: "mine/k".into(), ..Default::default() });
            assert_eq!(
                timeout(LIMIT, hers.next()).await.expect("in time").expect("a change").expect("no error"),
                Change::Gap
            );
            let mut foreign = carol.watch(WatchKeys { key: "k".into(), ..Default::default() });
            let failure = timeout(LIMIT, foreign.next())
                .await
                .expect("in time")
                .expect("an answer")
                .expect_err("not hers");
            assert_denied(&failure, "permission");
            assert!(foreign.next().await.is_none(), "a refused watch is over");
            carol.put(put("mine/k", "2"), LIMIT).await.expect("put");
            let change =
                timeout(LIMIT, hers.next()).await.expect("in time").expect("a change").expect("no error");
            assert!(matches!(change, Change::Events(_)), "the other watch was not disturbed: {change:?}");
        });
    }
}

#[test]
fn users_of_an_etcd_without_users_get_in() {
    let etcd = single(Version::V3_5);
    run(async {
        client_as(&etcd, "alice", PASSWORD).put(put("k", "1"), LIMIT).await.expect("put");
    });
}

fn client_with(etcd: &Etcd, tls: Option<Tls>) -> Client {
    Client::new(Config { endpoints: etcd.endpoints(), tls, credentials: None, patience: PATIENCE })
        .expect("a client")
}

#[test]
fn tls_with_the_right_authority_works_and_anything_else_says_what_is_wrong() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).tls().start().expect("etcd starts");
        let (own, other) =
            (etcd.certificates().expect("certificates"), tempfile::tempdir().expect("a directory"));
        let foreign = testkit::tls::Certificates::make(other.path());
        run(async {
            let right = Tls { ca: Some(own.ca.clone()), ..Default::default() };
            client_with(&etcd, Some(right.clone())).put(put("k", "1"), LIMIT).await.expect("put");
            let named = Tls { server_name: Some("localhost".into()), ..right.clone() };
            client_with(&etcd, Some(named)).put(put("k", "1"), LIMIT).await.expect("put");

            let wrong_ca = Tls { ca: Some(foreign.ca.clone()), ..Default::default() };
            let wrong_name = Tls { server_name: Some("elsewhere.example".into()), ..right };
            for (tls, advice) in [
                (Some(wrong_ca), "check ca="),
                (Some(wrong_name), "server_name="),
                (Some(Tls::default()), "check ca="), // the system's authorities did not sign it
                (None, "tls=on"),
            ] {
                let failure =
                    client_with(&etcd, tls).put(put("k", "2"), LIMIT).await.expect_err("TLS mismatch");
                assert_denied(&failure, advice);
            }
        });
    }
}

#[test]
fn a_server_that_wants_a_client_certificate_gets_one_or_refuses() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).client_auth().start().expect("etcd starts");
        let (own, other) =
            (etcd.certificates().expect("certificates"), tempfile::tempdir().expect("a directory"));
        let foreign = testkit::tls::Certificates::make(other.path());
        run(async {
            let anonymous = Tls { ca: Some(own.ca.clone()), ..Default::default() };
            let right = Tls {
                identity: Some((own.client_cert.clone(), own.client_key.clone())),
                ..anonymous.clone()
            };
            client_with(&etcd, Some(right)).put(put("k", "1"), LIMIT).await.expect("put");
            let wrong =
                Tls { identity: Some((foreign.client_cert, foreign.client_key)), ..anonymous.clone() };
            for tls in [anonymous, wrong] {
                let failure =
                    client_with(&etcd, Some(tls)).put(put("k", "2"), LIMIT).await.expect_err("not let in");
                assert_denied(&failure, "check cert= and key=");
            }
        });
    }
}

#[test]
fn tls_to_a_server_without_it_says_so() {
    let etcd = single(Version::V3_5);
    run(async {
        let failure =
            client_with(&etcd, Some(Tls::default())).put(put("k", "1"), LIMIT).await.expect_err("plain");
        assert_denied(&failure, "tls=off");
    });
}

#[test]
fn certificate_files_that_cannot_be_used_are_named() {
    let etcd = single(Version::V3_5);
    let empty = tempfile::NamedTempFile::new().expect("a file");
    run(async {
        for path in [empty.path(), std::path::Path::new("/nowhere/ca.pem")] {
            let tls = Tls { ca: Some(path.to_owned()), ..Default::default() };
            let failure =
                client_with(&etcd, Some(tls)).put(put("k", "1"), LIMIT).await.expect_err("no authority");
            assert_eq!(failure.kind(), ErrorKind::InvalidConfig, "{failure:?}");
            assert!(failure.to_string().contains(&path.display().to_string()), "{failure}");
        }
    });
}
