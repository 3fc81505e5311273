//! Candidates on a real MariaDB with every fault that is known to make two leaders, or none.
#![cfg(feature = "mysql")]

mod mysql;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use incumbent::{Campaign, CampaignEvent, ErrorKind, Settings, StopReason, backend};
use incumbent_core::{Acquired, Backend, Claim, Error, Grant, Nonce, Renewed};
use mysql::{PATIENCE, elected, leader, run, session, start, wait};
use testkit::{Direction, Mysql, Relay, wait_until};
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

/// renewal-proofs, MariaDB: a write that changes nothing is answered with success. Here the server cuts the new version down to the
/// old one, and says so in a warning.
#[test]
fn a_warning_beside_a_renewal_proves_nothing() {
    run(async {
        let mysql = start();
        mysql.sql("SET GLOBAL sql_mode = ''");
        let (backend, me) = (open(&mysql.url()), claim("billing", 1));
        let grant = win(&backend, &me).await;
        mysql.sql("SET sql_mode = ''; ALTER TABLE incumbent_record MODIFY version INT UNSIGNED NOT NULL");
        // The version that it knows is not there any more: it looks, and tries once more.
        let failure = timeout(PATIENCE, backend.renew(&me, &grant)).await.expect("in time");
        let failure = failure.expect_err("the version cannot rise");
        assert!(failure.is_retryable() && failure.is_ambiguous(), "{failure:?}");
        assert!(failure.to_string().contains("proves nothing, since it came with 1 warnings"), "{failure}");
        mysql.sql("ALTER TABLE incumbent_record MODIFY version BIGINT UNSIGNED NOT NULL");
        let renewed = timeout(PATIENCE, backend.renew(&me, &grant)).await.expect("in time");
        assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
    });
}

/// renewal-proofs, MariaDB: with innodb_flush_log_at_trx_commit=0 a crash took five acknowledged tokens back.
#[test]
fn a_server_whose_commits_do_not_last_is_refused() {
    run(async {
        let mysql = Mysql::options().setting("innodb-flush-log-at-trx-commit=0").start().expect("it starts");
        let refused = failure_of(&mysql.url()).await;
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("set innodb_flush_log_at_trx_commit to 1"), "{refused}");
        mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
        let (backend, me) = (open(&mysql.url()), claim("billing", 1));
        let grant = win(&backend, &me).await;
        backend.renew(&me, &grant).await.expect("it is renewed");
        mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0");
        let renewed = backend.renew(&me, &grant).await.expect_err("its commit does not last");
        assert!(renewed.is_retryable() && renewed.is_ambiguous(), "{renewed:?}");
        // A power failure would take some back: that is said, and no more.
        mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
        win(&backend, &me).await;
        let advice = backend.advice().await.expect("it answers").join("; ");
        assert!(advice.contains("innodb_flush_log_at_trx_commit is 2"), "{advice}");
    });
}

/// renewal-proofs, MariaDB: tokens that were acknowledged are there after a crash.
#[test]
fn an_acknowledged_grant_outlives_a_crash() {
    run(async {
        let mut mysql = start();
        let (backend, me) = (open(&mysql.url()), claim("billing", 1));
        win(&backend, &me).await;
        for _ in 0..5 {
            give_back(&backend, &me).await;
            let grant = win(&backend, &me).await;
            mysql.restart();
            let stored: u64 =
                mysql.sql("SELECT token FROM incumbent_record WHERE note = ''").parse().expect("a token");
            assert_eq!(Some(stored), grant.token.map(|token| token.0), "an acknowledged grant is gone");
        }
    });
}

/// A connection that a restart has broken is noticed by the call that uses it next.
async fn give_back(backend: &Arc<dyn Backend>, me: &Claim) {
    let releasing = async {
        while let Err(failure) = backend.release(me, None, None).await {
            assert!(failure.is_retryable(), "{failure:?}");
        }
    };
    timeout(PATIENCE, releasing).await.expect("released");
}

/// renewal-proofs, MariaDB: behind an uncommitted takeover the renewal finds another version when it comes to its turn.
#[test]
fn a_renewal_that_queued_behind_a_takeover_has_lost() {
    run(async {
        let mysql = start();
        let (backend, me) = (open(&mysql.url()), claim("billing", 1));
        let grant = win(&backend, &me).await;
        let other = session(
            &mysql,
            "START TRANSACTION; UPDATE incumbent_record SET version = version + 1, token = token + 1; \
             SELECT 'locked'; SELECT SLEEP(0.5); COMMIT",
        );
        other.wait_line(|line| line == "locked", PATIENCE);
        let queued = backend.renew(&me, &grant).await;
        // Or it gave up its wait for the row, which proves nothing; the next one finds what was committed.
        let renewed = if queued.is_err() { backend.renew(&me, &grant).await } else { queued };
        assert!(matches!(renewed, Ok(Renewed::Lost(_))), "{renewed:?}");
    });
}

/// One row that somebody keeps locked delays no other election's renewal.
#[test]
fn a_locked_row_holds_up_its_own_election_only() {
    run(async {
        let mysql = start();
        let backend = open(&mysql.url());
        let claims: Vec<_> = (1..=20).map(|n| claim(&format!("e{n}"), n)).collect();
        let grants = futures_util::future::join_all(claims.iter().map(|claim| win(&backend, claim))).await;
        let other = session(
            &mysql,
            "START TRANSACTION; SELECT 'locked' FROM incumbent_record WHERE election = 'e7' FOR UPDATE; SELECT SLEEP(600)",
        );
        other.wait_line(|line| line == "locked", PATIENCE);
        let renew = async |claim: &Claim, grant: &Grant| loop {
            match backend.renew(claim, grant).await {
                // A busy machine may take long to connect.
                Err(failure) if claim.election.as_str() != "e7" && failure.is_retryable() => {
                    assert!(!failure.to_string().contains("locked"), "{}: {failure}", claim.election);
                }
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
fn a_thousand_renewals_are_a_few_transactions() {
    run(async {
        let mysql = start();
        let backend = open(&mysql.url());
        let claims: Vec<_> = (1..=1000).map(|n| claim(&format!("e{n}"), n)).collect();
        let grants = futures_util::future::join_all(claims.iter().map(|claim| win(&backend, claim))).await;
        let commits = || -> u64 {
            let shown = mysql.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'");
            shown.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count")
        };
        let before = commits();
        let renewals = claims.iter().zip(&grants).map(|(claim, grant)| backend.renew(claim, grant));
        for renewed in timeout(PATIENCE, futures_util::future::join_all(renewals)).await.expect("in time") {
            assert!(matches!(renewed, Ok(Renewed::Extended { .. })), "{renewed:?}");
        }
        let transactions = commits() - before;
        assert!((1..=10).contains(&transactions), "{transactions} transactions for a thousand renewals");
    });
}

/// wolverine #2602: the session is ended by an operator, again and again; the term is not.
#[test]
fn sessions_that_an_operator_ends_cost_no_term() {
    run(async {
        let mysql = start();
        let (_campaign, term) = leader(&mysql.url(), "a", Duration::from_secs(6)).await;
        for _ in 0..3 {
            let sessions =
                "SELECT CONCAT('KILL ', id, ';') FROM information_schema.processlist WHERE user = 'app'";
            // One may have ended by itself.
            for kill in mysql.sql(sessions).lines() {
                let _ = mysql.try_sql(kill);
            }
            let until = term.valid_until();
            timeout(PATIENCE, term.extended(until)).await.expect("it is renewed");
        }
        term.check().expect("it still leads");
    });
}

#[test]
fn a_replica_is_refused_and_the_primary_is_found_behind_a_dead_host() {
    run(async {
        let mysql = Mysql::options().setting("log-bin=log").start().expect("it starts");
        let replica = mysql.replica().expect("a replica");
        assert!(wait_until(PATIENCE, || replica
            .try_sql("SELECT 1 FROM mysql.user WHERE user = 'app'")
            .is_ok()));
        // Who may write in spite of it is refused, too.
        replica.sql("GRANT READ_ONLY ADMIN ON *.* TO 'app'@'%'");
        let alone = failure_of(&replica.url()).await;
        assert_eq!(alone.kind(), ErrorKind::ReadOnly, "{alone}");
        assert!(alone.to_string().contains("read_only is on"), "{alone}");
        let dead = testkit::Port::reserve();
        let hosts = format!("{},{},{}", dead.addr(), replica.addr(), mysql.addr());
        let (backend, me) = (open(&mysql.url_at(&hosts)), claim("billing", 1));
        let grant = win(&backend, &me).await;
        backend.renew(&me, &grant).await.expect("it is renewed");
        mysql.sql("SET GLOBAL read_only = ON");
        let read_only = backend.renew(&me, &grant).await.expect_err("nothing can be written");
        assert_eq!(read_only.kind(), ErrorKind::ReadOnly, "{read_only}");
        mysql.sql("SET GLOBAL read_only = OFF");
        win(&backend, &me).await;
    });
}

/// A failover that has lost nothing still ends the term, as nobody can tell; the next token is higher.
#[test]
fn a_failover_ends_the_term_and_the_next_token_is_higher() {
    run(async {
        let mut mysql = Mysql::options().setting("log-bin=log").start().expect("it starts");
        let mut replica = mysql.replica().expect("a replica");
        let url = mysql.url_at(&format!("{},{}", mysql.addr(), replica.addr()));
        let (mut campaign, term) = leader(&url, "a", Duration::from_secs(15)).await;
        let granted = "SELECT token FROM incumbent_record WHERE note = ''";
        let token = mysql.sql(granted);
        assert!(wait_until(PATIENCE, || replica.try_sql(granted).is_ok_and(|there| there.trim() == token)));
        let since = incumbent::clock::now();
        mysql.stop();
        replica.promote();
        wait(&mut campaign, |event| matches!(event, CampaignEvent::Lost(_)).then_some(())).await;
        let waited = incumbent::clock::now().since(since);
        assert!(waited < Duration::from_secs(13), "it was lost by a proof, not by the time: {waited:?}");
        let next = elected(&mut campaign).await;
        assert!(next.token() > term.token(), "{:?} after {:?}", next.token(), term.token());
        assert_eq!(next.authority(), term.authority(), "fences go on");
    });
}

async fn released(campaign: &mut Campaign) {
    campaign.stop(StopReason::Shutdown);
    wait(campaign, |event| matches!(event, CampaignEvent::Released { .. }).then_some(())).await;
}

/// A standby is told by the leader's lock, not by the lease's end; and whoever else holds that lock for ever only makes it slower.
#[test]
fn a_release_wakes_who_waits_whatever_becomes_of_the_lock() {
    run(async {
        let mysql = start();
        let ttl = Duration::from_secs(60);
        // A record that is new counts as held for its first candidate's ttl.
        let (mut first, _) = leader(&mysql.url(), "first", Duration::from_secs(1)).await;
        released(&mut first).await;
        let (mut a, _) = leader(&mysql.url(), "a", ttl).await;
        let b = mysql::connect(&mysql.url(), ttl).await.election("billing");
        let mut b = b.candidate("b").campaign().expect("a valid candidate");
        wait(&mut b, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
        sleep(Duration::from_millis(500)).await;
        let since = incumbent::clock::now();
        released(&mut a).await;
        elected(&mut b).await;
        let waited = incumbent::clock::now().since(since);
        // Without the lock it would look after 5 s, and be told of nothing before.
        assert!(waited < Duration::from_secs(3), "{waited:?}");

        let bell = mysql.sql("SELECT bell FROM incumbent_record WHERE note = ''");
        let c = mysql::connect(&mysql.url(), ttl).await.election("billing");
        let mut c = c.candidate("c").campaign().expect("a valid candidate");
        wait(&mut c, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(())).await;
        let holder = || mysql.sql(&format!("SELECT COALESCE(IS_USED_LOCK('incumbent.{bell}'), '')"));
        assert!(wait_until(PATIENCE, || !holder().is_empty()), "a leader holds its lock");
        let holder = holder();
        mysql.sql(&format!("KILL {holder}"));
        let stranger =
            session(&mysql, &format!("SELECT GET_LOCK('incumbent.{bell}', 60), 'held'; SELECT SLEEP(600)"));
        stranger.wait_line(|line| line.ends_with("held"), PATIENCE);
        released(&mut b).await;
        elected(&mut c).await;
    });
}

/// A leader that was killed leaves its lock free: those who wait for the lease's end do not spin on it.
#[test]
fn a_lock_that_nobody_holds_is_not_asked_for_all_the_time() {
    run(async {
        let mysql = start();
        let me = claim("billing", 1);
        // It never hears, so it does not hold a lock.
        win(&open(&mysql.url()), &me).await;
        mysql.sql("UPDATE incumbent_record SET bell = REPEAT('a', 32), body = REPLACE(body, '\"ttl_ms\":3000', '\"ttl_ms\":600000')");
        // Far away: an answer that takes long has not waited for the lock.
        let relay = Relay::to(&mysql.addr());
        relay.delay(Direction::Answers, Duration::from_millis(10));
        let standby = mysql::connect(&mysql.url_at(&relay.addr()), TTL).await.election("billing");
        let mut standby = standby.candidate("b").campaign().expect("a valid candidate");
        wait(&mut standby, |event| matches!(event, CampaignEvent::LeaderChanged(Some(_))).then_some(()))
            .await;
        let asked = || -> u64 {
            let shown = mysql.sql("SHOW GLOBAL STATUS LIKE 'Com_do'");
            shown.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count")
        };
        assert!(wait_until(PATIENCE, || asked() > 0), "it does not listen");
        let before = asked();
        sleep(Duration::from_secs(4)).await;
        let times = asked() - before;
        assert!((1..40).contains(&times), "it asked {times} times in 4 s");
    });
}

#[test]
fn who_may_not_make_the_table_is_told_what_to_do() {
    run(async {
        let mysql = start();
        mysql.sql("CREATE USER clerk IDENTIFIED BY 'app-password'; GRANT SELECT ON app.* TO clerk");
        let url = mysql.url().replace("app:app-password@", "clerk:app-password@");
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
                let _ = client.write_all(b"\x19\0\0\0HTTP/1.0 400 Bad Request");
                let _ = client.read(&mut [0; 64]);
            }
        });
        let failure = failure_of(&format!("mysql://u:hunter2@{garbage}/d")).await;
        assert!(failure.is_retryable() && failure.to_string().contains("MySQL"), "{failure:?}");
        // The kernel accepts, and nobody answers.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = listener.local_addr().expect("an address");
        let failure = failure_of(&format!("mysql://u:hunter2@{silent}/d")).await;
        assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
        let failure = failure_of("mysql://u:hunter2@no-such-host.invalid/d?tls=off").await;
        assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
        assert!(!format!("{failure:?}").contains("hunter2"));
    });
}

#[test]
fn the_longest_names_are_kept() {
    run(async {
        let mysql = start();
        let backend = open(&mysql.url());
        for name in ["n".repeat(128), "N".repeat(128), "a.B_c-9".to_owned(), "a.b_c-9".to_owned()] {
            win(&backend, &claim(&name, 1)).await;
        }
        assert_eq!(mysql.sql("SELECT COUNT(*) FROM incumbent_record WHERE note = ''"), "4");
    });
}
