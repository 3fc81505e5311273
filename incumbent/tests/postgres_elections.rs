//! Candidates on a real PostgreSQL with every fault that is known to make two leaders, or none.
#![cfg(feature = "postgres")]

#[expect(dead_code, reason = "the other tests use more of it")]
mod postgres;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use incumbent::{CampaignEvent, ErrorKind, Settings, backend};
use incumbent_core::{Acquired, Backend, Claim, Error, Grant, Nonce, Renewed};
use postgres::{PATIENCE, elected, leader, run, start, wait};
use testkit::{Postgres, wait_until};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(3);

fn open(url: &str) -> Arc<dyn Backend> {
    let settings = Settings { ttl: TTL, ..Settings::default() };
    backend::factory(url, &settings).expect("a valid URL")().expect("a backend")
}

fn claim(election: &str, nonce: u128) -> Claim {
    let election = election.parse().expect("a valid name");
    Claim { election, id: "a".parse().expect("a valid id"), nonce: Nonce(nonce), address: None, ttl: TTL }
}

async fn win(backend: &Arc<dyn Backend>, claim: &Claim) -> Grant {
    let trying = async {
        loop {
            match backend.try_acquire(claim).await {
                Ok(Acquired::Granted(grant)) => return grant,
                Ok(Acquired::Held { .. }) => {}
                Err(failure) => assert!(failure.is_retryable(), "{failure:?}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, trying).await.expect("it wins")
}

async fn failure_of(url: &str) -> Error {
    timeout(PATIENCE, open(url).try_acquire(&claim("billing", 1)))
        .await
        .expect("in time")
        .expect_err("it cannot work")
}

/// renewal-proofs, PostgreSQL: a cancelled wait for a standby is answered with the row, as success, and a WARNING beside it.
#[test]
fn a_warning_beside_a_renewal_proves_nothing() {
    run(async {
        let postgres = start();
        let (backend, me) = (open(&postgres.url()), claim("billing", 1));
        let grant = win(&backend, &me).await;
        postgres.psql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        postgres.psql("SELECT pg_reload_conf()");
        assert!(wait_until(PATIENCE, || postgres.psql("SHOW synchronous_standby_names") == "nobody"));
        let cancel = async {
            let cancelled = "SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            for _ in 0..200 {
                if postgres.psql(cancelled) == "t" {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
            panic!("no renewal waits for the standby");
        };
        let (renewed, ()) = tokio::join!(timeout(PATIENCE, backend.renew(&me, &grant)), cancel);
        let failure = renewed.expect("in time").expect_err("its commit was not replicated");
        assert!(failure.is_retryable() && failure.is_ambiguous(), "{failure:?}");
        assert!(
            failure.to_string().contains("proves nothing, since it came with a WARNING: canceling wait"),
            "{failure}"
        );
        postgres.psql("ALTER SYSTEM SET synchronous_standby_names = ''");
        postgres.psql("SELECT pg_reload_conf()");
        let again = async {
            loop {
                match backend.renew(&me, &grant).await {
                    Ok(Renewed::Extended { .. }) => return,
                    Ok(Renewed::Lost(seen)) => panic!("lost: {seen:?}"),
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(PATIENCE, again).await.expect("it goes on");
    });
}

/// renewal-proofs, PostgreSQL: with synchronous_commit=off a crash took three acknowledged tokens back.
#[test]
fn a_role_s_synchronous_commit_off_does_not_count() {
    run(async {
        let mut postgres = start();
        postgres.psql("ALTER ROLE app SET synchronous_commit = off");
        let (backend, me) = (open(&postgres.url()), claim("billing", 1));
        win(&backend, &me).await;
        for _ in 0..5 {
            backend.release(&me, None, None).await.expect("released");
            let grant = win(&backend, &me).await;
            postgres.restart();
            let stored: u64 =
                postgres.psql("SELECT token FROM incumbent.record WHERE note = ''").parse().expect("a token");
            assert_eq!(Some(stored), grant.token.map(|token| token.0), "an acknowledged grant is gone");
        }
    });
}

/// renewal-proofs, PostgreSQL: behind an uncommitted takeover the renewal finds another version when it comes to its turn.
#[test]
fn a_renewal_that_queued_behind_a_takeover_has_lost() {
    run(async {
        let postgres = start();
        let (backend, me) = (open(&postgres.url()), claim("billing", 1));
        let grant = win(&backend, &me).await;
        let other = postgres::session(&postgres, "app").await;
        other
            .batch_execute("BEGIN; UPDATE incumbent.record SET version = version + 1, token = token + 1")
            .await
            .expect("not committed");
        let commit = async {
            sleep(Duration::from_millis(500)).await;
            other.batch_execute("COMMIT").await.expect("taken over");
        };
        let (queued, ()) = tokio::join!(backend.renew(&me, &grant), commit);
        // Or it gave up its wait for the row, which proves nothing; the next one finds what was committed.
        let renewed = if queued.is_err() { backend.renew(&me, &grant).await } else { queued };
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
    });
}

/// One row that somebody keeps locked delays no other election's renewal.
#[test]
fn a_locked_row_holds_up_its_own_election_only() {
    run(async {
        let postgres = start();
        let backend = open(&postgres.url());
        let claims: Vec<_> = (1..=20).map(|n| claim(&format!("e{n}"), n)).collect();
        let grants = futures_util::future::join_all(claims.iter().map(|claim| win(&backend, claim))).await;
        let other = postgres::session(&postgres, "app").await;
        other
            .batch_execute("BEGIN; SELECT 1 FROM incumbent.record WHERE election = 'e7' FOR UPDATE")
            .await
            .expect("locked");
        let renew = async |claim: &Claim, grant: &Grant| loop {
            match backend.renew(claim, grant).await {
                // A busy machine may take long to connect.
                Err(failure) if claim.election.as_str() != "e7" && failure.is_retryable() => {}
                renewed => return renewed,
            }
        };
        let renewals = claims.iter().zip(&grants).map(|(claim, grant)| renew(claim, grant));
        let renewed = timeout(PATIENCE, futures_util::future::join_all(renewals)).await.expect("in time");
        for (claim, renewed) in claims.iter().zip(renewed) {
            match (claim.election.as_str(), renewed) {
                ("e7", Err(failure)) => assert!(failure.is_retryable(), "{failure:?}"),
                ("e7", other) => panic!("it was not proven: {other:?}"),
                (_, Ok(Renewed::Extended { .. })) => {}
                (name, other) => panic!("{name}: {other:?}"),
            }
        }
    });
}

#[test]
fn a_thousand_renewals_are_a_few_statements() {
    run(async {
        let postgres = Postgres::options().setting("log_duration=on").start().expect("PostgreSQL starts");
        let backend = open(&postgres.url());
        let claims: Vec<_> = (1..=1000).map(|n| claim(&format!("e{n}"), n)).collect();
        let grants = futures_util::future::join_all(claims.iter().map(|claim| win(&backend, claim))).await;
        let executed = || postgres.log().matches(" duration: ").count() / 3;
        let before = executed();
        let renewals = claims.iter().zip(&grants).map(|(claim, grant)| backend.renew(claim, grant));
        for renewed in timeout(PATIENCE, futures_util::future::join_all(renewals)).await.expect("in time") {
            assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
        }
        let statements = executed() - before;
        assert!((1..=10).contains(&statements), "{statements} statements for a thousand renewals");
    });
}

/// wolverine #2602: the session is ended by an operator, again and again; the term is not.
#[test]
fn sessions_that_an_operator_ends_cost_no_term() {
    run(async {
        let postgres = start();
        let (_campaign, term) = leader(&postgres.url(), "a", Duration::from_secs(6)).await;
        for _ in 0..3 {
            postgres.psql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'incumbent'",
            );
            let until = term.valid_until();
            timeout(PATIENCE, term.extended(until)).await.expect("it is renewed");
        }
        term.check().expect("it still leads");
    });
}

#[test]
fn a_standby_is_refused_and_the_primary_is_found_behind_a_dead_host() {
    run(async {
        let postgres = start();
        let standby = postgres.standby("s1").expect("a standby");
        let alone = failure_of(&standby.url()).await;
        assert_eq!(alone.kind(), ErrorKind::ReadOnly, "{alone}");
        assert!(alone.to_string().contains("it is a standby"), "{alone}");
        let dead = testkit::Port::reserve();
        let hosts = format!("{},{},{}", dead.addr(), standby.addr(), postgres.addr());
        let url = postgres.url_at(&hosts);
        win(&open(&url), &claim("billing", 1)).await;
        postgres.psql("ALTER DATABASE app SET default_transaction_read_only = on");
        let read_only = failure_of(&postgres.url()).await;
        assert_eq!(read_only.kind(), ErrorKind::ReadOnly, "{read_only}");
    });
}

/// A failover that has lost nothing still ends the term, as nobody can tell; the next token is higher, also where the new primary
/// had not heard of the last grant.
#[test]
fn a_failover_ends_the_term_and_the_next_token_is_higher() {
    run(async {
        let mut postgres = start();
        let standby = postgres.standby("s1").expect("a standby");
        let url = postgres.url_at(&format!("{},{}", postgres.addr(), standby.addr()));
        // The standby hears of the table and nothing of the grant.
        open(&url).observe(&"billing".parse().expect("a name")).await.expect("it answers");
        let there = "SELECT count(*) FROM pg_tables WHERE tablename = 'record'";
        assert!(wait_until(PATIENCE, || standby.psql(there) == "1"));
        standby.psql("SELECT pg_wal_replay_pause()");
        let (mut campaign, term) = leader(&url, "a", TTL).await;
        standby.psql("SELECT pg_wal_replay_resume()");
        postgres.stop();
        standby.promote();
        wait(&mut campaign, |event| matches!(event, CampaignEvent::Lost(_)).then_some(())).await;
        let next = elected(&mut campaign).await;
        assert!(next.token() > term.token(), "{:?} after {:?}", next.token(), term.token());
        assert_eq!(next.authority(), term.authority(), "fences go on");
    });
}

/// renewal-proofs, PostgreSQL: the old primary goes on answering. Who has seen the new one believes it no more.
#[test]
fn an_old_primary_that_lives_on_is_refused_by_who_has_seen_the_new_one() {
    run(async {
        let postgres = start();
        let standby = postgres.standby("s1").expect("a standby");
        let relay = testkit::Relay::to(&postgres.addr());
        let url = postgres.url_at(&format!("{},{}", relay.addr(), standby.addr()));
        let (backend, me) = (open(&url), claim("billing", 1));
        let grant = win(&backend, &me).await;
        standby.promote();
        relay.cut();
        let lost = async {
            loop {
                match backend.renew(&me, &grant).await {
                    Ok(Renewed::Lost(_)) => return,
                    Ok(Renewed::Extended { .. }) => panic!("it does not outlive the failover"),
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(PATIENCE, lost).await.expect("the new primary answers");
        relay.heal();
        standby.pause();
        for _ in 0..5 {
            let outcome = timeout(Duration::from_secs(8), backend.try_acquire(&me)).await;
            assert!(!matches!(outcome, Ok(Ok(_))), "the old primary was believed: {outcome:?}");
        }
        standby.resume();
        win(&backend, &me).await;
    });
}

#[test]
fn who_may_not_make_the_table_is_told_what_to_do() {
    run(async {
        let postgres = start();
        postgres.psql("CREATE ROLE clerk LOGIN PASSWORD 'app-password'; REVOKE ALL ON DATABASE app FROM PUBLIC; GRANT CONNECT ON DATABASE app TO clerk");
        let url = postgres.url().replace("app:app-password@", "clerk:app-password@");
        let refused = failure_of(&url).await;
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("incumbent doctor --print-schema"), "{refused}");
    });
}

#[test]
fn garbage_and_silence_are_errors_in_time() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let garbage = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut client = client;
                let _ = client.read(&mut [0; 64]);
                let _ = client.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
            }
        });
        let failure = failure_of(&format!("postgres://u:hunter2@{garbage}/d")).await;
        assert!(failure.is_retryable() && failure.to_string().contains("PostgreSQL"), "{failure:?}");
        // The kernel accepts, and nobody answers.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = listener.local_addr().expect("an address");
        let failure = failure_of(&format!("postgres://u:hunter2@{silent}/d")).await;
        assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
        let failure = failure_of("postgres://u:hunter2@no-such-host.invalid/d?tls=off").await;
        assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
        assert!(!format!("{failure:?}").contains("hunter2"));
    });
}

#[test]
fn the_longest_names_are_kept() {
    run(async {
        let postgres = start();
        let name = "n".repeat(128);
        let backend = open(&format!("{}?schema={}", postgres.url(), "s%22x".to_owned() + &"s".repeat(60)));
        win(&backend, &claim(&name, 1)).await;
        let refused =
            backend::factory(&format!("{}?schema={}", postgres.url(), "s".repeat(64)), &Settings::default());
        assert!(refused.is_err(), "PostgreSQL would cut it off");
    });
}
