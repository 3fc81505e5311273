//! What a server refuses, does not answer, or answers in another language: each is an error that says what to do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::{Error, ErrorKind, Renewed};
use serde_json::json;
use testkit::{Direction, Nats, NatsVersion, Relay, now};
use tokio::time::timeout;

use super::support::{TTL, claim, nats, renew, run, store, through, win};

/// The rights that the documentation names, and no more.
const PUBLISH: [&str; 4] = [
    "$KV.elections.>",
    "$JS.API.STREAM.INFO.KV_elections",
    "$JS.API.STREAM.MSG.GET.KV_elections",
    "$JS.API.CONSUMER.CREATE.KV_elections",
];
const SUBSCRIBE: &str = "_INBOX.>";

fn with_rights(publish: &[&str], subscribe: &str) -> Nats {
    let publish: Vec<String> = publish.iter().map(|subject| format!("\"{subject}\"")).collect();
    let permissions = format!("publish: [{}], subscribe: [\"{subscribe}\"]", publish.join(", "));
    Nats::single(NatsVersion::V2_10).user("app", "secret", &permissions).start().expect("nats starts")
}

async fn refusal(url: &str) -> Error {
    let store = store(url);
    let outcome = timeout(Duration::from_secs(30), store.try_acquire(&claim("a"))).await;
    outcome.expect("an answer in time").expect_err("a refusal")
}

#[test]
fn the_documented_rights_are_enough() {
    let nats = with_rights(&PUBLISH, SUBSCRIBE);
    run(async {
        let (one, me) = (store(&nats.url()), claim("a"));
        let grant = win(&one, &me).await;
        let mut hints = one.watch(&me.election, None).expect("hints");
        let _ = timeout(TTL / 4, hints.next()).await;
        one.release(&me, Some(&grant), None).await.expect("a release");
        timeout(TTL, hints.next()).await.expect("a hint in time");
    });
}

#[test]
fn each_right_that_is_missing_is_named() {
    for (missing, subject) in PUBLISH.iter().enumerate().take(3) {
        let rights: Vec<&str> =
            PUBLISH.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, s)| *s).collect();
        let nats = with_rights(&rights, SUBSCRIBE);
        run(async {
            let refused = refusal(&nats.url()).await;
            assert_eq!(refused.kind(), ErrorKind::Denied, "{subject}: {refused}");
            assert!(refused.to_string().contains(subject), "{subject}: {refused}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
        });
    }
    let nats = with_rights(&PUBLISH, "nothing");
    run(async {
        let refused = refusal(&nats.url()).await;
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("_INBOX.>"), "{refused}");
    });
}

/// Without the right to make a consumer, changes are looked for.
#[test]
fn without_a_consumer_standbys_look_by_themselves() {
    let nats = with_rights(&PUBLISH[..3], SUBSCRIBE);
    run(async {
        let (one, me) = (store(&nats.url()), claim("a"));
        let mut hints = one.watch(&me.election, None).expect("hints");
        for _ in 0..3 {
            timeout(TTL * 2, hints.next()).await.expect("a look in time");
        }
    });
}

#[test]
fn a_token_or_an_nkey_lets_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let with_token = Nats::single(NatsVersion::V2_10).token("s3cr3t").start().expect("nats starts");
    let pair = nkeys::KeyPair::new_user();
    let with_nkey = Nats::single(NatsVersion::V2_10).nkey(&pair.public_key()).start().expect("nats starts");
    let other = nkeys::KeyPair::new_user().seed().expect("a seed");
    let seed = file("nkey", &pair.seed().expect("a seed"));
    run(async {
        for (url, hint) in [
            (format!("{}?token_file={}", with_token.url(), file("token", "s3cr3t\n")), ""),
            (format!("{}?nkey_file={seed}", with_nkey.url()), ""),
            (format!("{}?token_file={}", with_token.url(), file("wrong", "wr0ng")), "check the token"),
            (with_token.url(), "token_file="),
            (format!("{}?nkey_file={}", with_nkey.url(), file("other", &other)), "check the seed"),
            (format!("{}?nkey_file={}", with_nkey.url(), file("bad", "SUBAD")), "check the seed"),
            (with_nkey.url(), "nkey_file="),
        ] {
            if hint.is_empty() {
                win(&store(&url), &claim("a")).await;
                continue;
            }
            let refused = refusal(&url).await;
            assert_eq!(refused.kind(), ErrorKind::Denied, "{url}: {refused}");
            assert!(refused.to_string().contains(hint), "{url}: {refused}");
            let shown = format!("{refused:?}");
            assert!(
                !shown.contains("wr0ng") && !shown.contains(&other) && !shown.contains("SUBAD"),
                "{shown}"
            );
        }
    });
}

#[test]
fn a_credentials_file_lets_in() {
    let nats = Nats::single(NatsVersion::V2_10).operator().start().expect("nats starts");
    run(async {
        let creds = nats.creds();
        win(&store(&format!("{}?creds_file={}", nats.url(), creds.display())), &claim("a")).await;
        let refused = refusal(&nats.url()).await;
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("creds_file="), "{refused}");
        // A user of another operator's account.
        let other = Nats::single(NatsVersion::V2_10).operator().start().expect("nats starts");
        let foreign = format!("{}?creds_file={}", nats.url(), other.creds().display());
        let refused = refusal(&foreign).await;
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("check creds_file="), "{refused}");
    });
}

#[test]
fn a_server_without_jetstream_says_what_is_missing() {
    let dir = testkit::run_dir("plain-nats");
    let port = testkit::Port::reserve();
    let program = NatsVersion::V2_10.bundle().ensure().expect("nats-server").join("usr/sbin/nats-server");
    let mut command = std::process::Command::new(program);
    command.args(["-a", "127.0.0.1", "-p", &port.number().to_string()]).current_dir(dir);
    let server = testkit::Proc::spawn(command);
    server.wait_line(|line| line.contains("Server is ready"), Duration::from_secs(30));
    run(async {
        let refused = refusal(&format!("nats://{}/elections", port.addr())).await;
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains("start nats-server with -js"), "{refused}");
    });
}

/// A bucket at its limit takes no renewal either, since the server makes room for a write before it removes what that replaces.
/// It says so, and when there is room again the same grant goes on.
#[test]
fn a_full_bucket_says_so_and_goes_on_when_it_has_room() {
    let nats = Nats::single(NatsVersion::V2_10).without_bucket().start().expect("nats starts");
    nats.make_bucket(Nats::BUCKET, &json!({"max_bytes": 20_000})).expect("a bucket");
    run(async {
        let (one, me) = (store(&nats.url()), claim("a"));
        let grant = win(&one, &me).await;
        let mut operator = nats.operator();
        let mut key = 0;
        // Ever smaller ones, until nothing fits any more.
        for size in [1_000, 100, 1] {
            while key < 200 {
                key += 1;
                let subject = format!("$KV.elections.filler.{key}");
                let answer = operator.request(&subject, &[], &vec![b'x'; size]).expect("an answer");
                if String::from_utf8_lossy(&answer).contains("maximum bytes exceeded") {
                    break;
                }
            }
        }
        let refused = one.renew(&me, &grant).await.expect_err("a refusal");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        assert!(refused.to_string().contains("the limits of the bucket"), "{refused}");
        let advice = one.advice().await.expect("an answer");
        assert!(advice.iter().any(|line| line.contains("limited in size")), "{advice:?}");
        let fillers = json!({"filter": "$KV.elections.filler.>"});
        nats.api(&format!("STREAM.PURGE.KV_{}", Nats::BUCKET), &fillers);
        let renewed = renew(&one, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
    });
}

#[test]
fn a_server_that_is_not_there_or_has_no_name_is_unavailable() {
    let port = testkit::Port::reserve();
    run(async {
        let refused = refusal(&format!("nats://{}/elections", port.addr())).await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(!refused.is_ambiguous());
        let refused = refusal("nats://no-such-host.invalid/elections?tls=off").await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    });
}

/// It accepts and never answers: the call takes no longer than its caller lets it, and the next one works.
#[test]
fn a_server_that_never_answers_holds_nobody() {
    let nats = nats();
    let relay = Relay::to(&nats.endpoints()[0]);
    relay.hold(Direction::Answers);
    run(async {
        let (store, me) = (store(&through(&nats, &relay)), claim("a"));
        let began = now();
        assert!(timeout(TTL / 6, store.try_acquire(&me)).await.is_err());
        assert!(now().since(began) < TTL * 2);
        relay.reset();
        relay.pass(Direction::Answers);
        win(&store, &me).await;
    });
}

/// Whatever answers, but is no NATS.
#[test]
fn garbage_is_no_answer() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x00\xff\xfe\r\n\r\n",
        b"INFO {\r\n",
        b"INFO {}\r\nMSG nonsense\r\n",
        b"PONG\r\n",
        b"",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                let _ = connection.write_all(garbage);
                let _ = connection.read(&mut [0; 512]);
            }
        });
        run(async {
            let refused = refusal(&format!("nats://{addr}/elections")).await;
            assert!(matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Denied), "{refused:?}");
            assert!(!refused.is_ambiguous(), "nothing was asked: {refused:?}");
        });
    }
}

#[test]
fn a_name_that_nats_cannot_have_is_refused_with_the_rule() {
    let nats = nats();
    run(async {
        let mut claim = claim("a");
        claim.election = incumbent_core::ElectionName::new("billing..eu").expect("a name elsewhere");
        let refused = store(&nats.url()).try_acquire(&claim).await.expect_err("no key");
        assert_eq!(refused.kind(), ErrorKind::InvalidName);
        // The longest that there may be.
        claim.election = incumbent_core::ElectionName::new("a".repeat(128)).expect("a name");
        win(&store(&format!("{}/{}", nats.url(), "p".repeat(128))), &claim).await;
    });
}
