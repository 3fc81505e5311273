//! What a renewal proves on a real ZooKeeper, measured: the moment at which others see a node gone is never before the end of what
//! its owner was told.
#![cfg(feature = "zookeeper")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use incumbent::Settings;
use incumbent_core::{Acquired, Backend, BootInstant, Claim, ElectionName, ErrorKind, Grant, Nonce, Renewed};
use testkit::zookeeper::{Hand, Version};
use testkit::{Direction, Relay, Zookeeper, now, wait_until};

const TTL: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_secs(2);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

fn backend(url: &str, ttl: Duration) -> Arc<dyn Backend> {
    let settings = Settings { ttl, ..Settings::default() };
    incumbent::backend::factory(url, &settings).expect("a URL")().expect("a backend")
}

fn claim(election: &str, nonce: u128) -> Claim {
    Claim {
        election: ElectionName::new(election).expect("a name"),
        id: "a".parse().expect("an id"),
        nonce: Nonce(nonce),
        address: None,
        ttl: TTL,
    }
}

async fn win(backend: &Arc<dyn Backend>, claim: &Claim) -> Grant {
    let end = now() + TTL * 5;
    loop {
        match backend.try_acquire(claim).await {
            Ok(Acquired::Granted(grant)) => return grant,
            other => assert!(now() < end, "not elected: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A server that follows answers a write and dies before it has told the leader that it heard of the session. A renewal
/// that only wrote would count up to half a tick too much then; one that asks for its session on a new connection does not.
///
/// The leader ends sessions at whole ticks only. What a renewal counts too much shows if it comes soon after such a moment, and before
/// the leader, which asks its followers every half tick, has asked again.
#[test]
fn a_renewal_through_a_server_that_is_killed_counts_no_longer_than_the_node_lives() {
    let mut zookeeper =
        Zookeeper::ensemble(Version::V3_9, 3).tick_ms(TICK.as_millis() as u32).start().expect("ZooKeeper");
    let leads = zookeeper.leader_index();
    let (follower, other) = ((leads + 1) % 3, (leads + 2) % 3);
    let url = format!("zookeeper://{}", zookeeper.endpoints()[follower]);
    let hand = || Hand::connect(&zookeeper.endpoints()[other]);
    let mut clock = hand();
    clock.create_ephemeral("/clock", "");
    clock.vanish();
    let mut hand = hand();
    run(async {
        while hand.get("/clock").is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut soon_after = now() + Duration::from_millis(30);
        let mut held = Vec::new();
        for number in 0..5_u128 {
            let (backend, claim) = (backend(&url, TTL), claim(&format!("e{number}"), number + 1));
            let grant = win(&backend, &claim).await;
            held.push((backend, claim, grant));
        }
        // Not so soon after the grants that their proof is told again.
        while soon_after < now() + TTL / 5 {
            soon_after = soon_after + TICK;
        }
        tokio::time::sleep(soon_after.since(now())).await;
        let renewals = held.iter().map(|(backend, claim, grant)| backend.renew(claim, grant));
        let renewed = futures_util::future::join_all(renewals).await;
        zookeeper.kill(follower);
        let mut ends: Vec<(String, BootInstant)> = Vec::new();
        for ((_, claim, grant), renewed) in held.iter().zip(renewed) {
            match renewed {
                Ok(Renewed::Extended { sent_at, ttl }) => {
                    assert!(sent_at > grant.sent_at, "a proof of its own");
                    ends.push((format!("/{}", claim.election), sent_at + ttl));
                }
                other => panic!("not extended: {other:?}"),
            }
        }
        let begin = now();
        while !ends.is_empty() {
            let asked_at = now();
            ends.retain(|(path, end)| {
                let gone = hand.children(path).is_empty();
                assert!(
                    !gone || asked_at >= *end - Duration::from_millis(1),
                    "{path} went {:?} early",
                    end.since(asked_at)
                );
                !gone
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(now() < begin + TTL * 5, "they never go");
        }
    });
}

/// Curator #723: the node was created and nobody was told. It is found again, and nothing stands in the queue for nobody.
#[test]
fn curator_202_a_lost_answer_of_the_creation_leaves_no_orphan() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper");
    run(async {
        let relay = Relay::to(&zookeeper.endpoints()[0]);
        let backend = backend(&format!("zookeeper://{}", relay.addr()), TTL);
        // The connection and the election are there, so that the creation is what is not answered.
        let before = claim("billing", 1);
        let grant = win(&backend, &before).await;
        backend.release(&before, Some(&grant), None).await.expect("released");
        relay.hold(Direction::Answers);
        let claim = claim("billing", 2);
        let failure = backend.try_acquire(&claim).await.expect_err("no answer came");
        assert!(failure.is_ambiguous(), "{failure}");
        let children = zookeeper.hand().children("/billing");
        assert_eq!(children.len(), 1, "it was created: {children:?}");
        relay.reset();
        relay.pass(Direction::Answers);
        let grant = win(&backend, &claim).await;
        assert_eq!(zookeeper.hand().children("/billing"), children, "it is the one that was not told of");
        backend.release(&claim, Some(&grant), None).await.expect("released");
        assert!(zookeeper.hand().children("/billing").is_empty());
    });
}

/// The session lasts at most 20 ticks: what was granted counts, not what was asked for.
#[test]
fn the_time_that_the_server_grants_counts() {
    let zookeeper = Zookeeper::single(Version::V3_8).tick_ms(200).start().expect("ZooKeeper");
    run(async {
        let backend = backend(&zookeeper.url(), Duration::from_secs(60));
        let claim = Claim { ttl: Duration::from_secs(60), ..claim("billing", 1) };
        let grant = win(&backend, &claim).await;
        assert_eq!(grant.ttl, Duration::from_secs(4));
        let Ok(Renewed::Extended { ttl, .. }) = backend.renew(&claim, &grant).await else { panic!("lost") };
        assert_eq!(ttl, Duration::from_secs(4));
    });
}

/// Many elections of one process: one session, and a renewal of all of them in a few packets.
#[test]
fn many_elections_share_a_session_and_their_renewals() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper");
    run(async {
        let backend = backend(&zookeeper.url(), TTL);
        // Side by side: one after another could take longer than a ttl.
        let wins = (0..250_u128).map(|number| {
            let (backend, claim) = (&backend, claim(&format!("e{number}"), number + 1));
            async move {
                let grant = win(backend, &claim).await;
                (claim, grant)
            }
        });
        let led = futures_util::future::join_all(wins).await;
        let sessions = zookeeper.figure(0, "zk_global_sessions");
        assert_eq!(sessions, 1);
        let renew = async || {
            let renewals = led.iter().map(|(claim, grant)| backend.renew(claim, grant));
            for renewed in futures_util::future::join_all(renewals).await {
                assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
            }
        };
        renew().await;
        tokio::time::sleep(TTL / 4).await;
        let before = zookeeper.figure(0, "zk_packets_received");
        renew().await;
        let packets = zookeeper.figure(0, "zk_packets_received") - before;
        // A connect, three transactions, and what this count itself takes; a ping may come in between.
        assert!(packets <= 8, "{packets} packets");
    });
}

/// One of them was deleted by hand: it alone is lost, although all are written by one transaction.
#[test]
fn one_lost_node_does_not_fail_the_renewals_of_the_others() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper");
    run(async {
        let backend = backend(&zookeeper.url(), TTL);
        let mut led = Vec::new();
        for number in 0..5_u128 {
            let claim = claim(&format!("e{number}"), number + 1);
            let grant = win(&backend, &claim).await;
            led.push((claim, grant));
        }
        tokio::time::sleep(TTL / 4).await;
        let mut hand = zookeeper.hand();
        let child = hand.children("/e2").remove(0);
        hand.delete(&format!("/e2/{child}"));
        let renewals = led.iter().map(|(claim, grant)| backend.renew(claim, grant));
        for (number, renewed) in futures_util::future::join_all(renewals).await.into_iter().enumerate() {
            let lost = matches!(renewed, Ok(Renewed::Lost(_)));
            assert!(renewed.is_ok() && lost == (number == 2), "{number}: {renewed:?}");
        }
    });
}

/// Curator #583, a lock held across a wait: a stream of hints that nobody polls has a request under way: whoever made it may never ask for the answer.
#[test]
fn curator_62_hints_that_nobody_polls_keep_no_renewal_waiting() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper");
    run(async {
        let backend = backend(&zookeeper.url(), TTL);
        let claim = claim("billing", 1);
        let grant = win(&backend, &claim).await;
        let mut hints = backend.watch(&claim.election, Some(&claim)).expect("ZooKeeper can tell");
        assert!(hints.next().now_or_never().is_none(), "it has asked and was not answered");
        tokio::time::sleep(TTL / 4).await;
        match backend.renew(&claim, &grant).await {
            Ok(Renewed::Extended { sent_at, .. }) => assert!(sent_at > grant.sent_at, "a proof of its own"),
            other => panic!("not extended: {other:?}"),
        }
    });
}

/// Without a majority a server closes every connection, as one does that has seen less than its client. That is an outage and
/// not a store that went back, however long it lasts.
#[test]
fn servers_without_a_majority_are_not_taken_for_a_store_that_went_back() {
    let mut zookeeper = Zookeeper::ensemble(Version::V3_8, 3).tick_ms(200).start().expect("ZooKeeper");
    run(async {
        let ttl = TTL / 2;
        let backend = backend(&zookeeper.url(), ttl);
        let claim = Claim { ttl, ..claim("billing", 1) };
        win(&backend, &claim).await;
        (1..3).for_each(|i| zookeeper.kill(i));
        let end = now() + ttl * 3;
        while now() < end {
            if let Err(failure) = backend.observe(&claim.election).await {
                assert!(failure.is_retryable(), "{failure}");
            }
            tokio::time::sleep(ttl / 20).await;
        }
        assert!(backend.observe(&claim.election).await.is_err(), "one server of three serves");
        (1..3).for_each(|i| zookeeper.launch(i));
        zookeeper.wait_ready();
        let end = now() + TTL * 5;
        while backend.observe(&claim.election).await.is_err() {
            assert!(now() < end, "the store is back and not found");
            tokio::time::sleep(ttl / 20).await;
        }
    });
}

/// Each is told for what it is, within the time that a renewal leaves.
#[test]
fn servers_that_are_none_are_told_apart() {
    use std::io::Write;
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listen();
    let garbage = listen();
    let garbage_at = garbage.local_addr().expect("an address");
    std::thread::spawn(move || {
        for connection in garbage.incoming() {
            let _ = connection.expect("a connection").write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let closed = listen().local_addr().expect("an address");
    let silent_at = silent.local_addr().expect("an address");
    run(async {
        for (host, kind, hint) in [
            (closed.to_string(), ErrorKind::Unavailable, "cannot connect"),
            (silent_at.to_string(), ErrorKind::TimedOut, "no answer in time"),
            (garbage_at.to_string(), ErrorKind::Unavailable, "not ZooKeeper's protocol"),
            ("no-such-host.invalid:1".to_owned(), ErrorKind::Unavailable, "cannot connect"),
        ] {
            let began = now();
            let backend = backend(&format!("zookeeper://{host}?tls=off"), TTL);
            let failure = backend.observe(&claim("billing", 1).election).await.expect_err("no ZooKeeper");
            assert!(failure.to_string().contains(hint), "{host}: {failure}");
            assert_eq!(failure.kind(), kind, "{host}: {failure}");
            assert!(now() < began + TTL * 3, "{host}");
        }
    });
}

/// A session that nobody needs is ended politely, not left to run out.
#[test]
fn h_an_idle_session_is_ended() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().expect("ZooKeeper");
    run(async {
        let backend = backend(&zookeeper.url(), TTL);
        let claim = claim("billing", 1);
        let grant = win(&backend, &claim).await;
        backend.release(&claim, Some(&grant), None).await.expect("released");
        let end = now() + TTL;
        while zookeeper.figure(0, "zk_global_sessions") > 0 {
            assert!(now() < end, "the session is still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(wait_until(TTL, || zookeeper.hand().children("/billing").is_empty()));
}
