//! What proves a renewal, and what does not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use incumbent::LossReason;
use incumbent_core::{Acquired, Renewed};
use serde_json::Value;
use testkit::{Direction, Nats, Relay, now};
use tokio::time::{sleep, timeout};

use super::support::{TTL, candidate, claim, elected, lost, nats, renew, run, store, through, win};

/// A renewal that was sent while the server stood still is answered late and in full: the deadline counts from the send.
#[test]
fn k8s_44887_a_renewal_that_is_answered_late_counts_from_its_send() {
    let mut nats = nats();
    run(async {
        let (store, me) = (store(&nats.url()), claim("a"));
        let grant = win(&store, &me).await;
        nats.pause(0);
        let late = async {
            sleep(TTL / 4).await;
            nats.resume(0);
            now()
        };
        let (renewed, resumed_at) = tokio::join!(store.renew(&me, &grant), late);
        match renewed {
            Ok(Renewed::Extended { sent_at, .. }) => {
                assert!(sent_at < resumed_at, "it counts from the answer");
                assert!(sent_at >= grant.sent_at);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// A renewal that hung on its way until another led is refused when it arrives, and the record of the other stays.
#[test]
fn nats_a_renewal_that_was_queued_until_another_led_changes_nothing() {
    let nats = nats();
    let relay = Relay::to(&nats.endpoints()[0]);
    run(async {
        let (old, me) = (store(&through(&nats, &relay)), claim("a"));
        let grant = win(&old, &me).await;
        relay.hold(Direction::Requests);
        let queued = tokio::spawn({
            let (old, me, grant) = (old.clone(), me.clone(), grant.clone());
            async move { old.renew(&me, &grant).await }
        });
        let (new, other) = (store(&nats.url()), claim("b"));
        let next = win(&new, &other).await;
        assert!(next.token > grant.token);
        relay.pass(Direction::Requests);
        let outcome = queued.await.expect("no panic");
        assert!(!matches!(outcome, Ok(Renewed::Extended { .. })), "{outcome:?}");
        let renewed = renew(&old, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
        let renewed = renew(&new, &other, &next).await;
        assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
    });
}

/// With its way cut off, the leader ends its term by itself before the other begins.
#[test]
fn client_go_e7_a_leader_that_is_cut_off_is_invalid_before_the_next_one_begins() {
    let nats = nats();
    let relay = Relay::to(&nats.endpoints()[0]);
    run(async {
        let mut one = candidate(&through(&nats, &relay), "one").await;
        let first = elected(&mut one).await;
        let mut two = candidate(&nats.url(), "two").await;
        relay.hold(Direction::Requests);
        relay.hold(Direction::Answers);
        let (second, reason) = tokio::join!(elected(&mut two), lost(&mut one));
        assert!(!first.is_valid());
        assert!(second.token() > first.token());
        assert!(!matches!(reason, LossReason::Superseded(_)), "it heard of nobody: {reason:?}");
        relay.pass(Direction::Requests);
        relay.pass(Direction::Answers);
    });
}

/// The answer of the grant, and of a renewal, is lost: the next call adopts what was written, and only that call counts.
#[test]
fn curator_723_a_lost_answer_is_adopted_by_the_same_campaign() {
    let nats = nats();
    let relay = Relay::to(&nats.endpoints()[0]);
    run(async {
        let (direct, store) = (store(&nats.url()), store(&through(&nats, &relay)));
        let before = claim("before");
        let grant = win(&direct, &before).await;
        direct.release(&before, Some(&grant), None).await.expect("a release");
        let me = claim("a");
        assert!(store.observe(&me.election).await.is_ok(), "it is connected");
        relay.hold(Direction::Answers);
        let unheard = timeout(TTL / 6, store.try_acquire(&me)).await;
        assert!(unheard.is_err(), "{unheard:?}");
        relay.reset();
        relay.pass(Direction::Answers);
        let asked_at = now();
        let grant = win(&store, &me).await;
        assert!(grant.sent_at >= asked_at, "it counts from a call whose answer was lost");
        relay.hold(Direction::Answers);
        assert!(timeout(TTL / 6, store.renew(&me, &grant)).await.is_err());
        relay.reset();
        relay.pass(Direction::Answers);
        let renewed = renew(&store, &me, &grant).await;
        assert!(
            matches!(renewed, Ok(Renewed::Extended { sent_at, .. }) if sent_at > grant.sent_at),
            "{renewed:?}"
        );
    });
}

/// An answer that nobody waits for any more is not taken for that of the next call, and a connection that hangs is left.
#[test]
fn greptimedb_7670_an_abandoned_call_leaves_no_answer_for_the_next() {
    let nats = nats();
    let relay = Relay::to(&nats.endpoints()[0]);
    run(async {
        let (store, me) = (store(&through(&nats, &relay)), claim("a"));
        let grant = win(&store, &me).await;
        relay.hold(Direction::Answers);
        assert!(timeout(TTL / 10, store.renew(&me, &grant)).await.is_err());
        let accepted = relay.accepted();
        assert!(timeout(TTL / 10, store.renew(&me, &grant)).await.is_err());
        assert!(relay.accepted() > accepted, "it goes on with the connection that hangs");
        relay.pass(Direction::Answers);
        for _ in 0..3 {
            let renewed = renew(&store, &me, &grant).await;
            assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
        }
    });
}

/// Nothing that was meant for a connection is sent on the next one, as the client library would by itself: a call that was given
/// up must not win later.
#[test]
fn nats_what_was_given_up_is_not_sent_on_a_new_connection() {
    let mut nats = nats();
    run(async {
        let (old, me) = (store(&nats.url()), claim("a"));
        let grant = win(&old, &me).await;
        let latest = |nats: &Nats| {
            nats.api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null)["state"]["last_seq"].clone()
        };
        let before = latest(&nats);
        nats.kill(0);
        for _ in 0..3 {
            let renewed = timeout(TTL / 10, old.renew(&me, &grant)).await;
            assert!(!matches!(renewed, Ok(Ok(_))), "{renewed:?}");
        }
        nats.restart(0);
        sleep(TTL).await;
        assert_eq!(latest(&nats), before, "a renewal that nobody waits for was written");
    });
}

/// What an operator does.
type ByHand = fn(&Nats);

/// Another client's write, whatever it is, ends the term; nobody else's record is extended, and tokens go on rising.
#[test]
fn curator_692_a_record_that_is_deleted_or_overwritten_is_lost() {
    let nats = nats();
    let by_hand: [(&str, ByHand); 6] = [
        ("a delete", |nats| nats.delete(Nats::BUCKET, "billing")),
        ("a purge", |nats| {
            nats.put(Nats::BUCKET, "billing", &[("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")], b"");
        }),
        ("a purge of all", |nats| {
            nats.api(&format!("STREAM.PURGE.KV_{}", Nats::BUCKET), &Value::Null);
        }),
        ("a put", |nats| {
            nats.put(Nats::BUCKET, "billing", &[], b"mine");
        }),
        ("an empty put", |nats| {
            nats.put(Nats::BUCKET, "billing", &[], b"");
        }),
        ("a bad token", |nats| {
            nats.put(Nats::BUCKET, "billing", &[("Incumbent-Token", "-1")], b"{\"v\":1}");
        }),
    ];
    for (what, by_hand) in by_hand {
        run(async {
            let (store, me) = (store(&nats.url()), claim("a"));
            let grant = win(&store, &me).await;
            by_hand(&nats);
            let renewed = renew(&store, &me, &grant).await;
            assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{what}: {renewed:?}");
            let next = claim("b");
            match store.try_acquire(&next).await.expect("an answer") {
                Acquired::Held { try_again, .. } => {
                    let wait = try_again.since(now());
                    assert!(wait > TTL / 2, "{what}: an unknown holder is waited for {wait:?} only");
                }
                Acquired::Granted(grant) => panic!("{what}: {grant:?}"),
            }
            let grant_of_next = win(&store, &next).await;
            assert!(grant_of_next.token > grant.token, "{what}: tokens do not rise");
            assert_eq!(grant_of_next.authority, grant.authority, "{what}: a fence would refuse it");
            store.release(&next, Some(&grant_of_next), None).await.expect("a release");
        });
    }
}

/// Something on the way puts the same message id on each renewal: the server acknowledges the second one and does not write it.
#[test]
fn nats_an_acknowledged_duplicate_is_no_renewal() {
    let nats = nats();
    run(async {
        let through = nats.url_of(&[with_message_id(nats.endpoints()[0].clone())]);
        let (store, me) = (store(&through), claim("a"));
        let grant = win(&store, &me).await;
        let first = renew(&store, &me, &grant).await;
        assert!(matches!(first, Ok(Renewed::Extended { .. })), "{first:?}");
        let second = store.renew(&me, &grant).await.expect_err("no proof");
        assert!(second.to_string().contains("duplicate") && second.is_ambiguous(), "{second:?}");
    });
}

/// A way to the server on which each renewal gets a message id.
fn with_message_id(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let to = TcpStream::connect(&server).expect("the server");
            let (mut answers, mut back) =
                (to.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            std::thread::spawn(move || rewrite(BufReader::new(client), to));
        }
    });
    addr
}

/// Passes on what a client says; its end ends the connection.
fn rewrite(mut from: BufReader<TcpStream>, mut to: TcpStream) -> std::io::Result<()> {
    let mut line = String::new();
    while from.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let length = |back: usize| words[words.len() - back].parse::<usize>().expect("a length");
        let mut payload = match words.first() {
            Some(&("PUB" | "HPUB")) => vec![0; length(1) + 2],
            _ => Vec::new(),
        };
        from.read_exact(&mut payload)?;
        if words.first() == Some(&"HPUB")
            && String::from_utf8_lossy(&payload).contains("Incumbent-Renewed-By")
        {
            let (added, first_line) = (b"Nats-Msg-Id: one\r\n", "NATS/1.0\r\n".len());
            payload.splice(first_line..first_line, *added);
            let lengths = (length(2) + added.len(), length(1) + added.len());
            line = format!("HPUB {} {} {} {}\r\n", words[1], words[2], lengths.0, lengths.1);
        }
        to.write_all(line.as_bytes())?;
        to.write_all(&payload)?;
        line.clear();
    }
    to.shutdown(Shutdown::Both)
}

/// Eight campaigns see one released record at the same moment: one of them gets it.
#[test]
fn kube_leader_election_one_of_many_takes_a_free_record() {
    let nats = nats();
    run(async {
        let first = claim("first");
        let all: Vec<_> = (0..8).map(|_| store(&nats.url())).collect();
        let mut grant = win(&all[0], &first).await;
        let mut holder = (0, first);
        for round in 0..20 {
            all[holder.0].release(&holder.1, Some(&grant), None).await.expect("a release");
            let claims: Vec<_> = (0..8).map(|i| claim(&format!("c{round}-{i}"))).collect();
            let tries = all.iter().zip(&claims).map(|(store, claim)| store.try_acquire(claim));
            let outcomes = futures_util::future::join_all(tries).await;
            let winners: Vec<_> = outcomes
                .into_iter()
                .enumerate()
                .filter_map(|(i, outcome)| match outcome.expect("an answer") {
                    Acquired::Granted(grant) => Some((i, grant)),
                    Acquired::Held { .. } => None,
                })
                .collect();
            assert_eq!(winners.len(), 1, "{winners:?}");
            let (i, won) = winners.into_iter().next().expect("a winner");
            assert!(won.token > grant.token);
            (holder, grant) = ((i, claims[i].clone()), won);
        }
    });
}

/// The consumer that tells of changes is removed under the standby: it listens anew and hears of the release.
#[test]
fn nats_a_consumer_that_is_deleted_is_made_anew() {
    let nats = nats();
    run(async {
        let (store, me) = (store(&nats.url()), claim("a"));
        let grant = win(&store, &me).await;
        let mut hints = store.watch(&me.election, None).expect("hints");
        let consumers = async || {
            let subject = format!("CONSUMER.NAMES.KV_{}", Nats::BUCKET);
            loop {
                let names = nats.api(&subject, &Value::Null)["consumers"].clone();
                match names.as_array().filter(|names| !names.is_empty()) {
                    Some(names) => return names.clone(),
                    None => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        for name in consumers().await {
            let name = name.as_str().expect("a name");
            nats.api(&format!("CONSUMER.DELETE.KV_{}.{name}", Nats::BUCKET), &Value::Null);
        }
        consumers().await;
        store.release(&me, Some(&grant), None).await.expect("a release");
        timeout(TTL * 4, futures_util::StreamExt::next(&mut hints)).await.expect("a hint in time");
    });
}
