//! The fence in PostgreSQL: parallel transactions of one leader, stale ones refused, frozen ones ended.
#![cfg(feature = "postgres")]

mod example;
mod postgres;

use std::time::Duration;

use incumbent::fence::sql::{self, Dialect, SqlFence};
use incumbent::{Authority, ErrorKind, FencingToken, HighWater};
use postgres::{PATIENCE, leader, refused, run, session, start};
use testkit::{Postgres, Proc, Signal, now, wait_until};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

fn fenced() -> Postgres {
    let postgres = start();
    postgres.psql("GRANT CREATE ON SCHEMA public TO app");
    as_app(&postgres, Dialect::Postgres.ddl(), &[]).expect("the functions are made");
    as_app(&postgres, "CREATE TABLE charge (customer int)", &[]).expect("a table");
    postgres
}

/// Runs SQL in a psql of its own as the application's user.
fn as_app(postgres: &Postgres, sql: &str, environment: &[(&str, &str)]) -> Result<String, String> {
    let mut psql = postgres.psql_command();
    psql.args(["-U", "app", "-d", "app", "-c", sql]).env("PGPASSWORD", "app-password");
    psql.envs(environment.iter().copied());
    let output = psql.output().expect("psql runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

async fn enter(client: &Client, token: i64) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("BEGIN; SELECT incumbent_fence_guard('billing', 'a', {token})")).await
}

async fn raise(client: &Client, token: i64) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("SELECT incumbent_fence_raise('billing', 'a', {token})")).await
}

#[test]
fn a_stale_token_is_refused_and_one_leader_s_transactions_run_beside_each_other() {
    run(async {
        let postgres = fenced();
        let (one, two) = (session(&postgres, "app").await, session(&postgres, "app").await);
        raise(&one, 1).await.expect("it is new");
        enter(&one, 1).await.expect("it was raised");
        enter(&two, 1).await.expect("beside the first");
        for client in [&one, &two] {
            client.batch_execute("INSERT INTO charge VALUES (1); COMMIT").await.expect("written");
        }
        enter(&two, 2).await.expect("a higher one raises it");
        two.batch_execute("COMMIT").await.expect("raised");
        assert_eq!(refused(enter(&one, 1).await), "FENCE");
        one.batch_execute("ROLLBACK").await.expect("over");
        assert_eq!(refused(raise(&one, 1).await), "FENCE");
        raise(&two, 2).await.expect("again");
        let other = one.batch_execute("SELECT incumbent_fence_guard('billing', 'b', 9)").await;
        assert_eq!(refused(other), "FENCE", "another authority");
        assert_eq!(postgres.psql("SELECT count(*) FROM charge"), "2");
    });
}

/// The one that a lock alone would let through: it has passed the check, and commits when the next leader works already.
#[test]
fn an_old_leader_that_is_frozen_inside_its_transaction_is_ended_and_commits_nothing() {
    run(async {
        let postgres = fenced();
        let (old, new) = (session(&postgres, "app").await, session(&postgres, "app").await);
        raise(&old, 1).await.expect("it is new");
        enter(&old, 1).await.expect("it was raised");
        old.batch_execute("INSERT INTO charge VALUES (1)").await.expect("not committed");
        let begin = now();
        timeout(PATIENCE, raise(&new, 2)).await.expect("in time").expect("raised");
        assert!(now().since(begin) >= Duration::from_millis(900), "a short transaction is waited for");
        refused(old.batch_execute("COMMIT").await);
        assert_eq!(postgres.psql("SELECT count(*) FROM charge"), "0");
    });
}

#[test]
fn a_transaction_that_ends_within_a_second_is_waited_for() {
    run(async {
        let postgres = fenced();
        let (old, new) = (session(&postgres, "app").await, session(&postgres, "app").await);
        raise(&old, 1).await.expect("it is new");
        enter(&old, 1).await.expect("it was raised");
        let commit = async {
            sleep(Duration::from_millis(200)).await;
            old.batch_execute("INSERT INTO charge VALUES (1); COMMIT").await.expect("it comes first");
        };
        let ((), raised) = tokio::join!(commit, raise(&new, 2));
        raised.expect("raised");
        assert_eq!(postgres.psql("SELECT count(*) FROM charge"), "1");
    });
}

#[test]
fn without_the_right_to_end_sessions_they_are_named() {
    run(async {
        let postgres = fenced();
        let (old, new) = (session(&postgres, "postgres").await, session(&postgres, "app").await);
        enter(&old, 1).await.expect("it is new");
        old.batch_execute("COMMIT").await.expect("raised");
        enter(&old, 1).await.expect("it was raised");
        let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.expect("a row").get(0);
        let failure =
            timeout(PATIENCE, raise(&new, 2)).await.expect("in time").expect_err("it has no right to");
        let failure = failure.as_db_error().expect("the server's");
        assert_eq!(failure.code().code(), "55P03");
        assert!(failure.message().contains(&format!("process {pid} of role postgres")), "{failure}");
        assert_eq!(failure.hint(), Some("end them, or run: GRANT pg_signal_backend TO app"));
        old.batch_execute("COMMIT").await.expect("it was spared");
    });
}

/// Overlapping transactions would keep a row share-locked for ever.
#[test]
fn a_busy_old_leader_does_not_keep_the_next_one_out() {
    run(async {
        let postgres = fenced();
        let clients = [session(&postgres, "app").await, session(&postgres, "app").await];
        raise(&clients[0], 1).await.expect("it is new");
        let writing = clients.map(|client| {
            tokio::spawn(async move {
                let mut written = 0;
                while enter(&client, 1).await.is_ok() {
                    sleep(Duration::from_millis(20)).await;
                    if client.batch_execute("COMMIT").await.is_err() {
                        break;
                    }
                    written += 1;
                }
                written
            })
        });
        let new = session(&postgres, "app").await;
        sleep(Duration::from_millis(200)).await;
        timeout(PATIENCE, raise(&new, 2)).await.expect("in time").expect("raised");
        for one in writing {
            assert!(timeout(PATIENCE, one).await.expect("it was refused").expect("no panic") > 0);
        }
    });
}

/// The session's settings come from the environment, so a program needs no change.
#[test]
fn a_trigger_fences_programs_that_cannot_be_changed() {
    let postgres = fenced();
    let trigger = "CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON charge \
                   FOR EACH STATEMENT EXECUTE FUNCTION incumbent_fence_trigger('billing')";
    as_app(&postgres, trigger, &[]).expect("a trigger");
    let write = |options: &str| as_app(&postgres, "INSERT INTO charge VALUES (1)", &[("PGOPTIONS", options)]);
    write("-c incumbent.authority=postgres:1/app/incumbent -c incumbent.token=7").expect("it is new");
    write("-c incumbent.authority=postgres:1/app/incumbent -c incumbent.token=8").expect("the next leader");
    let stale =
        write("-c incumbent.authority=postgres:1/app/incumbent -c incumbent.token=7").expect_err("stale");
    assert!(stale.contains("token 7 is older than 8"), "{stale}");
    for without in ["", "-c incumbent.token=9"] {
        assert!(write(without).expect_err("no token").contains("is shown no token"), "{without}");
    }
    assert_eq!(postgres.psql("SELECT count(*) FROM charge"), "2");
}

#[test]
fn an_operator_adopts_another_authority() {
    let postgres = fenced();
    let fence = SqlFence::new(Dialect::Postgres, "o'bil\\ling $2 ");
    let mark = |authority: &str, token| HighWater {
        authority: Authority::new(authority),
        token: FencingToken(token),
    };
    let text = fence.adopt_text(&mark("new\\'", 3)).expect("it fits");
    as_app(&postgres, &text, &[]).expect("adopted");
    assert_eq!(
        postgres.psql("SELECT name, authority, token FROM incumbent_fence"),
        "o'bil\\ling $2 |new\\'|3"
    );
}

/// As a driver of one's own runs them, and judges.
#[test]
fn the_statements_of_the_dialect_can_be_judged() {
    run(async {
        let postgres = fenced();
        let client = session(&postgres, "app").await;
        let mark = |token| HighWater { authority: Authority::new("a"), token: FencingToken(token) };
        for (token, kind) in [(5, None), (7, None), (6, Some(ErrorKind::Fenced)), (7, None)] {
            client.batch_execute("BEGIN").await.expect("begun");
            let raise: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&"billing", &"a", &(token as i64)];
            client.execute(Dialect::Postgres.raise(), raise).await.expect("no error of the driver");
            let row = client.query_opt(Dialect::Postgres.read(), &[&"billing"]).await.expect("a row");
            let judged = sql::judge(row.map(|row| (row.get(0), row.get(1))), &mark(token));
            assert_eq!(judged.map_err(|error| error.kind()).err(), kind, "{token}");
            client.batch_execute("COMMIT").await.expect("over");
        }
    });
}

#[test]
fn the_server_ends_statements_and_idle_transactions_when_the_lease_is_over() {
    run(async {
        let postgres = fenced();
        let client = session(&postgres, "app").await;
        let begin = "BEGIN; SELECT incumbent_fence_guard('billing', 'a', 1, 300)";
        client.batch_execute(begin).await.expect("it is new");
        assert_eq!(
            refused(timeout(PATIENCE, client.batch_execute("SELECT pg_sleep(600)")).await.expect("ended")),
            "57014"
        );
        client.batch_execute("ROLLBACK").await.expect("over");
        client.batch_execute(begin).await.expect("it is new");
        client.batch_execute("INSERT INTO charge VALUES (1)").await.expect("written");
        assert!(wait_until(PATIENCE, || client.is_closed()), "the server ends it");
        assert_eq!(postgres.psql("SELECT count(*) FROM charge"), "0");
        assert_eq!(postgres.psql("SHOW statement_timeout"), "0", "only that transaction");
    });
}

/// A future that is dropped leaves the server at work.
#[test]
fn work_is_cancelled_on_the_server_when_the_term_ends() {
    run(async {
        let postgres = fenced();
        let (mut campaign, term) = leader(&postgres.url(), "a", Duration::from_secs(30)).await;
        let fence = SqlFence::new(Dialect::Postgres, "billing");
        let client = session(&postgres, "app").await;
        client.batch_execute(&fence.raise_text(&term).expect("it leads")).await.expect("raised");
        client.batch_execute(&fence.begin_text(&term).expect("it leads")).await.expect("begun");
        let sleeping = || {
            postgres.psql("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(500)'")
        };
        let token = client.cancel_token();
        let work = sql::guard(&term, client.batch_execute("SELECT pg_sleep(500)"), || {
            token.cancel_query(tokio_postgres::NoTls)
        });
        let end = async {
            assert!(wait_until(PATIENCE, || sleeping() == "1"));
            postgres.psql("UPDATE incumbent.record SET body = 'somebody else' WHERE note = ''");
            campaign_lost(&mut campaign).await;
        };
        let (done, ()) = tokio::join!(work, end);
        assert!(done.is_err(), "the term is over");
        assert!(wait_until(PATIENCE, || sleeping() == "0"), "the server is still at work");
        assert_eq!(fence.begin_text(&term).expect_err("it is over").kind(), ErrorKind::NotLeader);
    });
}

async fn campaign_lost(campaign: &mut incumbent::Campaign) {
    postgres::wait(campaign, |event| matches!(event, incumbent::CampaignEvent::Lost(_)).then_some(())).await;
}

/// Authority and data in one database: the commit itself shows that the term lasts. Renewals go on beside it.
#[test]
fn a_transaction_proves_the_term_and_writes_in_one_commit() {
    run(async {
        let postgres = fenced();
        let ttl = Duration::from_secs(4);
        let (campaign, term) = leader(&postgres.url(), "a", ttl).await;
        let client = session(&postgres, "app").await;
        client
            .batch_execute(&sql::begin_proven_text(&term, "incumbent").expect("it leads"))
            .await
            .expect("it leads");
        client
            .batch_execute("INSERT INTO charge VALUES (1); SET LOCAL idle_in_transaction_session_timeout = 0")
            .await
            .expect("written");
        let until = term.valid_until();
        assert!(timeout(PATIENCE, term.extended(until)).await.expect("it is renewed") > until);
        client.batch_execute("COMMIT").await.expect("it still leads");

        // Frozen inside the next one, for longer than its lease.
        client
            .batch_execute(&sql::begin_proven_text(&term, "incumbent").expect("it leads"))
            .await
            .expect("it leads");
        client
            .batch_execute("INSERT INTO charge VALUES (2); SET LOCAL idle_in_transaction_session_timeout = 0")
            .await
            .expect("written");
        drop(campaign);
        let (_next, newer) = leader(&postgres.url(), "b", ttl).await;
        assert!(newer.token() > term.token());
        refused(client.batch_execute("COMMIT").await);
        assert_eq!(postgres.psql("SELECT string_agg(customer::text, ',') FROM charge"), "1");
        let client = session(&postgres, "app").await;
        let stale = format!("SELECT incumbent.prove('billing', {})", term.token().expect("a token").0);
        assert_eq!(refused(client.batch_execute(&stale).await), "FENCE");
    });
}

#[test]
fn the_example_writes_under_one_token_after_the_other() {
    let postgres = fenced();
    as_app(&postgres, "DROP TABLE charge; CREATE TABLE charge (customer int, token bigint)", &[])
        .expect("a table");
    let folder = tempfile::tempdir().expect("a folder");
    let elections = format!("file:{}", folder.path().display());
    let start = || Proc::spawn(example::command("fenced_postgres", &[&postgres.url(), &elections]));
    let first = start();
    first.wait_line(|line| line == "charged customer 2", PATIENCE);
    let second = start();
    first.signal(Signal::INT);
    assert!(first.wait(PATIENCE).success(), "{}", first.transcript());
    second.wait_line(|line| line.starts_with("charged customer"), PATIENCE);
    second.signal(Signal::KILL);
    second.wait(PATIENCE);
    let once = "SELECT count(*) = count(DISTINCT customer) AND count(DISTINCT token) = 2 FROM charge";
    assert_eq!(postgres.psql(once), "t");
    let rising = "SELECT bool_and(token >= before) FROM (SELECT token, lag(token, 1, 0::bigint) OVER (ORDER BY customer) AS before FROM charge) c";
    assert_eq!(postgres.psql(rising), "t");
}
