//! What a restart or a change of the primary does to terms and tokens.

use incumbent::{ErrorKind, LossReason};
use incumbent_core::Renewed;
use testkit::{Redis, now};

use super::support::{TTL, candidate, claim, elected, lost, redis, renew, run, store, win};

fn pair() -> (Redis, Redis) {
    let (primary, replica) = (redis(), redis());
    replica.replicate(&primary);
    (primary, replica)
}

fn both(one: &Redis, other: &Redis) -> String {
    format!("redis://{},{}", one.endpoint(), other.endpoint())
}

/// The replica has not heard of the latest grant when it is promoted. Its successor there has a greater token all the same,
/// since a clock made both.
#[test]
fn redis_a_failover_that_loses_a_grant_keeps_the_order_of_tokens() {
    let (primary, replica) = pair();
    run(async {
        let (old, me) = (store(&primary.url()), claim("a"));
        let grant = win(&old, &me).await;
        old.release(&me, Some(&grant), None).await.expect("a release");
        // The link is cut: what comes now is acknowledged and lost.
        primary.cli_ok(&["WAIT", "1", "10000"]);
        replica.cli_ok(&["CONFIG", "SET", "repl-timeout", "3600"]);
        replica.cli_ok(&["REPLICAOF", "127.0.0.1", "1"]);
        let late = claim("b");
        let unseen = win(&old, &late).await;
        assert!(unseen.token > grant.token);
        replica.promote();
        let (new, other) = (store(&replica.url()), claim("c"));
        let asked_at = now();
        let next = win(&new, &other).await;
        assert!(next.token > unseen.token, "{:?} after {:?}", next.token, unseen.token);
        // What the new primary shows is of another history: a later grant may have been lost, and so it was.
        assert!(now().since(asked_at) > TTL, "it did not wait for the grant that was lost");
        assert_eq!(next.authority, unseen.authority, "a fence would refuse it");
    });
}

/// Even a promotion that loses nothing ends the term, since nobody can tell.
#[test]
fn redis_a_failover_ends_the_term() {
    let (primary, replica) = pair();
    run(async {
        let mut one = candidate(&both(&primary, &replica), "one").await;
        let first = elected(&mut one).await;
        primary.cli_ok(&["WAIT", "1", "10000"]);
        replica.promote();
        primary.replicate(&replica);
        assert!(matches!(lost(&mut one).await, LossReason::Superseded(_)));
        assert!(!first.is_valid());
        let second = elected(&mut one).await;
        assert!(second.token() > first.token());
    });
}

/// A primary that was made a replica and a primary again over connections that stayed open: its history is another one.
#[test]
fn redis_a_promotion_under_an_open_connection_is_noticed() {
    let (primary, replica) = pair();
    run(async {
        let (store, me) = (store(&primary.url()), claim("a"));
        let grant = win(&store, &me).await;
        replica.promote();
        primary.replicate(&replica);
        primary.promote();
        let renewed = renew(&store, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
    });
}

#[test]
fn a_replica_is_no_place_for_an_election() {
    let (primary, replica) = pair();
    run(async {
        let refused = store(&replica.url()).try_acquire(&claim("a")).await.expect_err("a refusal");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        assert!(refused.to_string().contains("it is a replica"), "{refused}");
        // With both in the URL the primary is found, whichever stands first.
        let (one, other) = (store(&both(&replica, &primary)), store(&both(&primary, &replica)));
        let me = claim("a");
        let grant = win(&one, &me).await;
        assert!(matches!(renew(&one, &me, &grant).await, Ok(Renewed::Extended { .. })));
        let seen = other.observe(&me.election).await.expect("an answer").leader.expect("a leader");
        assert_eq!(seen.contender.id, "a");
    });
}

/// Killed and started again on an append-only file: nothing is forgotten, and still the term ends, since a file that was cut
/// short looks the same.
#[test]
fn a_restart_ends_the_term_and_keeps_the_order_of_tokens() {
    let mut redis = redis();
    run(async {
        let (store, me) = (store(&redis.url()), claim("a"));
        let grant = win(&store, &me).await;
        redis.restart();
        let renewed = renew(&store, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
        assert!(win(&store, &claim("b")).await.token > grant.token);
    });
}

/// A restart that forgets everything: an absent record is waited for, and the tokens go on rising.
#[test]
fn a_restart_that_forgets_everything_keeps_the_order_of_tokens() {
    let mut redis = Redis::single().volatile().start().expect("redis starts");
    run(async {
        let (store, me) = (store(&redis.url()), claim("a"));
        let grant = win(&store, &me).await;
        redis.restart();
        let began = now();
        let renewed = renew(&store, &me, &grant).await;
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
        let next = win(&store, &claim("b")).await;
        assert!(now().since(began) > TTL, "it did not wait for a holder that nobody knows");
        assert!(next.token > grant.token);
        assert_eq!(next.authority, grant.authority, "a fence would refuse it");
    });
}

/// The first host of the URL is dead: it costs neither the start nor the term.
#[test]
fn one_dead_host_does_not_cost_the_term() {
    let (mut first, mut second) = (redis(), redis());
    first.kill();
    run(async {
        let mut one = candidate(&both(&first, &second), "one").await;
        let leadership = elected(&mut one).await;
        tokio::time::sleep(TTL * 2).await;
        assert!(leadership.is_valid());
        second.kill();
        lost(&mut one).await;
        assert!(!leadership.is_valid());
    });
}
