//! What a server refuses, does not answer, or answers in another language: each is an error that says what to do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use incumbent::{Error, ErrorKind};
use testkit::{Direction, Redis, Relay, now};
use tokio::time::{sleep, timeout};

use super::support::{TTL, claim, redis, run, store, win};

/// The rights that the documentation names, and no more.
const RIGHTS: &str =
    "~app/* &app/* -@all +eval +hmget +hset +exists +del +time +info +publish +subscribe +unsubscribe";

async fn refusal(url: &str) -> Error {
    let store = store(url);
    let outcome = timeout(Duration::from_secs(30), store.try_acquire(&claim("a"))).await;
    outcome.expect("an answer in time").expect_err("a refusal")
}

#[test]
fn the_documented_rights_are_enough_and_each_is_needed() {
    let redis = Redis::single().user("app", "secret", RIGHTS).start().expect("redis starts");
    let url = format!("redis://app:secret@{}/app", redis.endpoint());
    run(async {
        let (one, me) = (store(&url), claim("a"));
        let grant = win(&one, &me).await;
        let mut hints = one.watch(&me.election, None).expect("hints");
        let _ = timeout(TTL / 4, futures_util::StreamExt::next(&mut hints)).await;
        one.release(&me, Some(&grant), None).await.expect("a release");
        timeout(TTL, futures_util::StreamExt::next(&mut hints)).await.expect("a hint in time");
        for right in ["eval", "hmget", "hset", "time", "info", "publish"] {
            redis.cli_ok(&["ACL", "SETUSER", "app", &format!("-{right}")]);
            let refused = refusal(&url).await;
            assert_eq!(refused.kind(), ErrorKind::Denied, "{right}: {refused}");
            let text = refused.to_string();
            assert!(text.contains("ACL SETUSER"), "{right}: {text}");
            assert!(!text.contains("secret"), "{text}");
            redis.cli_ok(&["ACL", "SETUSER", "app", &format!("+{right}")]);
        }
        // Another prefix than the one that was granted.
        let elsewhere = refusal(&format!("redis://app:secret@{}/other", redis.endpoint())).await;
        assert_eq!(elsewhere.kind(), ErrorKind::Denied, "{elsewhere}");
    });
}

/// Without the right to subscribe, changes are looked for.
#[test]
fn without_subscriptions_standbys_look_by_themselves() {
    let redis = Redis::single().user("app", "secret", &RIGHTS.replace("+subscribe", "-subscribe")).start();
    let redis = redis.expect("redis starts");
    let url = format!("redis://app:secret@{}/app", redis.endpoint());
    run(async {
        let (one, me) = (store(&url), claim("a"));
        let mut hints = one.watch(&me.election, None).expect("hints");
        for _ in 0..3 {
            timeout(TTL * 2, futures_util::StreamExt::next(&mut hints)).await.expect("a look in time");
        }
    });
}

#[test]
fn too_few_replicas_refuse_a_write_and_say_so() {
    let redis = Redis::single().flags(&["--min-replicas-to-write", "1"]).start().expect("redis starts");
    run(async {
        let refused = refusal(&redis.url()).await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(!refused.is_ambiguous());
        assert!(refused.to_string().contains("min-replicas-to-write"), "{refused}");
    });
}

#[test]
fn a_cluster_member_is_refused() {
    let redis = Redis::single().flags(&["--cluster-enabled", "yes"]).start().expect("redis starts");
    run(async {
        let refused = refusal(&redis.url()).await;
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
        assert!(refused.to_string().contains("Redis Cluster"), "{refused}");
    });
}

#[test]
fn databases_are_apart_and_one_that_is_not_there_is_refused() {
    let redis = redis();
    run(async {
        let (zero, five) = (store(&redis.url()), store(&format!("{}/5", redis.url())));
        win(&zero, &claim("a")).await;
        win(&five, &claim("b")).await;
        assert_eq!(redis.cli_ok(&["-n", "5", "EXISTS", "billing"]).trim(), "1");
        let refused = refusal(&format!("{}/99", redis.url())).await;
        assert!(refused.to_string().contains("99") || refused.to_string().contains("DB"), "{refused}");
    });
}

#[test]
fn a_server_that_is_not_there_or_has_no_name_is_unavailable() {
    let port = testkit::Port::reserve();
    run(async {
        let refused = refusal(&format!("redis://{}", port.addr())).await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(!refused.is_ambiguous());
        let refused = refusal("redis://no-such-host.invalid?tls=off").await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    });
}

/// It accepts and never answers: the call takes no longer than its caller lets it, and the next one works.
#[test]
fn a_server_that_never_answers_holds_nobody() {
    let redis = redis();
    let relay = Relay::to(&redis.endpoint());
    relay.hold(Direction::Answers);
    run(async {
        let (store, me) = (store(&format!("redis://{}", relay.addr())), claim("a"));
        let began = now();
        assert!(timeout(TTL / 6, store.try_acquire(&me)).await.is_err());
        assert!(now().since(began) < TTL * 2);
        relay.reset();
        relay.pass(Direction::Answers);
        win(&store, &me).await;
    });
}

/// Whatever answers, but is no Redis.
#[test]
fn garbage_is_no_answer() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x00\xff\xfe\r\n\r\n",
        b"",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                let _ = connection.read(&mut [0; 512]);
                let _ = connection.write_all(garbage);
            }
        });
        run(async {
            let refused = refusal(&format!("redis://{addr}")).await;
            assert!(matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Denied), "{refused:?}");
            assert!(!refused.is_ambiguous(), "nothing was asked: {refused:?}");
        });
    }
}

/// A server that was started a moment ago reads its file: it is waited for.
#[test]
fn a_server_that_loads_its_data_is_waited_for() {
    let delay = ["--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024"];
    let mut redis = Redis::single().flags(&delay).start().expect("redis starts");
    redis.cli_ok(&["EVAL", "for i = 1, 9000 do redis.call('SET', 'key-' .. i, 'x') end", "0"]);
    run(async {
        let (store, me) = (store(&redis.url()), claim("a"));
        let grant = win(&store, &me).await;
        store.release(&me, Some(&grant), None).await.expect("a release");
        redis.launch();
        let refused = loop {
            match store.observe(&me.election).await {
                Err(error) if error.to_string().contains("loading its data") => break Some(error),
                Err(_) => sleep(Duration::from_millis(5)).await,
                Ok(_) => break None,
            }
        };
        let refused = refused.expect("a refusal while it loads");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(win(&store, &claim("b")).await.token > grant.token);
    });
}
