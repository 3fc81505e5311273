//! What proves a renewal, and what does not.

use std::time::Duration;

use incumbent::{LossReason, StopReason};
use incumbent_core::{Acquired, Renewed};
use testkit::{Direction, Redis, Relay, now};
use tokio::time::{sleep, timeout};

use super::support::{TTL, candidate, claim, elected, lost, redis, renew, run, store, win};

/// A renewal that was sent while the server stood still is answered late and in full: the deadline counts from the send.
#[test]
fn k8s_44887_a_renewal_that_is_answered_late_counts_from_its_send() {
    let redis = redis();
    run(async {
        let (store, me) = (store(&redis.url()), claim("a"));
        let grant = win(&store, &me).await;
        redis.pause();
        let sent_before = now();
        let late = async {
            sleep(TTL / 4).await;
            redis.resume();
            now()
        };
        let (renewed, resumed_at) = tokio::join!(store.renew(&me, &grant), late);
        match renewed {
            Ok(Renewed::Extended { sent_at, .. }) => {
                assert!(sent_at < resumed_at, "it counts from the answer");
                assert!(sent_at >= sent_before || sent_at >= grant.sent_at);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// With its way cut off, the leader ends its term by itself before the other begins.
#[test]
fn client_go_e7_a_leader_that_is_cut_off_is_invalid_before_the_next_one_begins() {
    let redis = redis();
    let relay = Relay::to(&redis.endpoint());
    run(async {
        let mut one = candidate(&format!("redis://{}", relay.addr()), "one").await;
        let first = elected(&mut one).await;
        let mut two = candidate(&redis.url(), "two").await;
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
    let redis = redis();
    let relay = Relay::to(&redis.endpoint());
    run(async {
        let (direct, store) = (store(&redis.url()), store(&format!("redis://{}", relay.addr())));
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
    let redis = redis();
    let relay = Relay::to(&redis.endpoint());
    run(async {
        let (store, me) = (store(&format!("redis://{}", relay.addr())), claim("a"));
        let grant = win(&store, &me).await;
        relay.hold(Direction::Answers);
        assert!(timeout(TTL / 10, store.renew(&me, &grant)).await.is_err());
        // Longer than an answer is waited for that nobody wants; the old connection is gone then.
        sleep(TTL / 2).await;
        relay.pass(Direction::Answers);
        let left = async {
            while relay.open() > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TTL * 4, left).await.expect("the connection is closed");
        for _ in 0..3 {
            let renewed = renew(&store, &me, &grant).await;
            assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
        }
    });
}

/// Another client's write, whatever it is, ends the term; nobody else's record is extended.
#[test]
fn curator_692_a_record_that_is_deleted_or_overwritten_is_lost() {
    let redis = redis();
    for by_hand in [
        &["DEL", "billing"][..],
        &["SET", "billing", "mine"],
        &["HSET", "billing", "version", "garbage"],
        &["HSET", "billing", "token", "99999999999999999999999"],
        &["HDEL", "billing", "version"],
        &["FLUSHALL"],
        &["RENAME", "billing", "elsewhere"],
    ] {
        run(async {
            let (store, me) = (store(&redis.url()), claim("a"));
            let grant = win(&store, &me).await;
            redis.cli_ok(by_hand);
            let renewed = renew(&store, &me, &grant).await;
            assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{by_hand:?}: {renewed:?}");
            let next = claim("b");
            match store.try_acquire(&next).await.expect("an answer") {
                Acquired::Held { try_again, .. } => {
                    let wait = try_again.since(now());
                    assert!(wait > TTL / 2, "{by_hand:?}: an unknown holder is waited for {wait:?} only");
                }
                Acquired::Granted(grant) => panic!("{by_hand:?}: {grant:?}"),
            }
            let grant_of_next = win(&store, &next).await;
            assert!(grant_of_next.token > grant.token, "{by_hand:?}: tokens do not rise");
            assert_eq!(grant_of_next.authority, grant.authority, "{by_hand:?}: a fence would refuse it");
            store.release(&next, Some(&grant_of_next), None).await.expect("a release");
        });
    }
}

/// At the limit of memory a leader goes on leading.
#[test]
fn a_full_memory_does_not_end_a_term() {
    let redis = Redis::single().flags(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]).start();
    let redis = redis.expect("redis starts");
    run(async {
        let (store, me) = (store(&redis.url()), claim("a"));
        let grant = win(&store, &me).await;
        let filler = "x".repeat(50_000);
        let mut filled = 0;
        while redis.cli(&["SET", &format!("filler-{filled}"), &filler]).is_ok() {
            filled += 1;
            assert!(filled < 1_000, "the memory does not fill");
        }
        let renewed = renew(&store, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
        store.release(&me, Some(&grant), None).await.expect("a release");
        let next = claim("b");
        assert!(win(&store, &next).await.token > grant.token);
    });
}

/// A policy that evicts anything takes the record too: the leader notices, and the tokens go on rising.
#[test]
fn an_evicted_record_ends_the_term_and_not_the_order_of_tokens() {
    let redis =
        Redis::single().flags(&["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random"]).start();
    let redis = redis.expect("redis starts");
    run(async {
        let mut one = candidate(&redis.url(), "one").await;
        let first = elected(&mut one).await;
        let filler = "x".repeat(20_000);
        let mut filled = 0;
        while redis.cli_ok(&["EXISTS", "billing"]).trim() == "1" {
            redis.cli_ok(&["SET", &format!("filler-{filled}"), &filler]);
            filled += 1;
            assert!(filled < 20_000, "nothing is evicted");
        }
        assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
        assert!(!first.is_valid());
        redis.cli_ok(&["CONFIG", "SET", "maxmemory", "0"]);
        let second = elected(&mut one).await;
        assert!(second.token() > first.token());
        one.stop(StopReason::Shutdown);
    });
}

/// Eight campaigns see one released record at the same moment: one of them gets it.
#[test]
fn kube_leader_election_one_of_many_takes_a_free_record() {
    let redis = redis();
    run(async {
        let first = claim("first");
        let all: Vec<_> = (0..8).map(|_| store(&redis.url())).collect();
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
