//! The fence in MariaDB: parallel transactions of one leader, stale ones refused, frozen ones ended.

mod example;

use std::time::Duration;

use incumbent::fence::sql::{self, Dialect, SqlFence};
use incumbent::{Authority, Campaign, CampaignEvent, ErrorKind, FencingToken, HighWater, Leadership};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder};
use testkit::{Mysql, Proc, Signal, now, wait_until};
use tokio::time::{sleep, timeout};

/// How long anything may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test)
}

/// A server with the fence and a table that it protects, in the database `app`.
async fn fenced() -> Mysql {
    let server = Mysql::options().start().expect("MariaDB starts");
    let mut app = session(&server, "app").await;
    app.query_drop(Dialect::Mysql.ddl()).await.expect("the procedures are made");
    // As an upgrade finds them.
    app.query_drop(Dialect::Mysql.ddl()).await.expect("they are made again");
    app.query_drop("CREATE TABLE charge (customer INT)").await.expect("a table");
    server
}

async fn session(server: &Mysql, user: &str) -> Conn {
    let opts = Opts::from_url(&server.url()).expect("a URL");
    let mut opts = OptsBuilder::from_opts(opts).user(Some(user)).db_name(Some("app")).prefer_socket(false);
    if user == "root" {
        opts = opts.pass(None::<String>);
    }
    Conn::new(opts).await.expect("it lets us in")
}

async fn enter(conn: &mut Conn, token: i64) -> Result<(), Error> {
    conn.query_drop(format!("START TRANSACTION; CALL incumbent_fence_guard('billing', 'a', {token}, NULL)"))
        .await
}

async fn raise(conn: &mut Conn, token: i64) -> Result<(), Error> {
    conn.query_drop(format!("CALL incumbent_fence_raise('billing', 'a', {token})")).await
}

/// The SQLSTATE with which the server refused something.
fn refused<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Server(error)) => error.state,
        Err(error) => panic!("not the server's: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn charge(conn: &mut Conn) -> Result<(), Error> {
    conn.query_drop("INSERT INTO charge VALUES (1); COMMIT").await
}

fn charged(server: &Mysql) -> String {
    server.sql("SELECT COUNT(*) FROM charge").trim().to_owned()
}

/// One that leads, on an authority of its own.
async fn leader(name: &str) -> (Campaign, Leadership) {
    let url = format!("memory:{name}?ttl=30s");
    let election = incumbent::connect(&url).await.expect("a connection").election("billing");
    let mut campaign = election.candidate("one").campaign().expect("a campaign");
    loop {
        if let CampaignEvent::Elected(term) = campaign.next().await.expect("it goes on") {
            return (campaign, term);
        }
    }
}

#[test]
fn a_stale_token_is_refused_and_one_leader_s_transactions_run_beside_each_other() {
    run(async {
        let server = fenced().await;
        let (mut one, mut two) = (session(&server, "app").await, session(&server, "app").await);
        raise(&mut one, 1).await.expect("it is new");
        enter(&mut one, 1).await.expect("it was raised");
        timeout(PATIENCE, enter(&mut two, 1)).await.expect("beside the first").expect("it was raised");
        charge(&mut one).await.expect("written");
        charge(&mut two).await.expect("written");
        enter(&mut two, 2).await.expect("a higher one raises it");
        two.query_drop("COMMIT").await.expect("raised");
        assert_eq!(refused(enter(&mut one, 1).await), "FENCE");
        one.query_drop("ROLLBACK").await.expect("over");
        assert_eq!(refused(raise(&mut one, 1).await), "FENCE");
        raise(&mut two, 2).await.expect("again");
        let other = one.query_drop("CALL incumbent_fence_guard('billing', 'b', 9, NULL)").await;
        assert_eq!(refused(other), "FENCE", "another authority");
        let none = one.query_drop("CALL incumbent_fence_guard('billing', 'a', NULL, NULL)").await;
        assert_eq!(refused(none), "FENCE", "no token");
        assert_eq!(charged(&server), "2");
    });
}

/// The one that a lock alone would let through: it has passed the check, and commits when the next leader works already.
#[test]
fn an_old_leader_that_is_frozen_inside_its_transaction_is_ended_and_commits_nothing() {
    run(async {
        let server = fenced().await;
        let (mut old, mut new) = (session(&server, "app").await, session(&server, "app").await);
        let mut bystander = session(&server, "app").await;
        raise(&mut old, 1).await.expect("it is new");
        enter(&mut old, 1).await.expect("it was raised");
        old.query_drop("INSERT INTO charge VALUES (1)").await.expect("not committed");
        let begin = now();
        timeout(PATIENCE, raise(&mut new, 2)).await.expect("in time").expect("raised");
        assert!(now().since(begin) >= Duration::from_millis(900), "a short transaction is waited for");
        assert!(old.query_drop("COMMIT").await.is_err(), "its session was ended");
        assert_eq!(charged(&server), "0");
        bystander.query_drop("SELECT 1").await.expect("who is not inside is left alone");
        let patience: Option<u32> =
            new.query_first("SELECT @@innodb_lock_wait_timeout").await.expect("a row");
        assert!(patience > Some(1), "as it was before: {patience:?}");
    });
}

/// A guard has raised the fence and not committed: nobody else sees the new token yet.
#[test]
fn one_that_is_frozen_while_it_raises_is_ended_too() {
    run(async {
        let server = fenced().await;
        let (mut old, mut new) = (session(&server, "app").await, session(&server, "app").await);
        enter(&mut old, 1).await.expect("it is new");
        timeout(PATIENCE, raise(&mut new, 2)).await.expect("in time").expect("raised");
        assert!(old.query_drop("COMMIT").await.is_err(), "its session was ended");
        let mut old = session(&server, "app").await;
        enter(&mut old, 3).await.expect("it raises");
        timeout(PATIENCE, raise(&mut new, 4)).await.expect("in time").expect("raised");
        assert!(old.query_drop("COMMIT").await.is_err(), "its session was ended");
    });
}

#[test]
fn a_transaction_that_ends_within_a_second_is_waited_for() {
    run(async {
        let server = fenced().await;
        let (mut old, mut new) = (session(&server, "app").await, session(&server, "app").await);
        raise(&mut old, 1).await.expect("it is new");
        enter(&mut old, 1).await.expect("it was raised");
        let commit = async {
            sleep(Duration::from_millis(200)).await;
            charge(&mut old).await.expect("it comes first");
        };
        let ((), raised) = tokio::join!(commit, raise(&mut new, 2));
        raised.expect("raised");
        assert_eq!(charged(&server), "1");
    });
}

/// Without PROCESS a user sees only its own sessions; with it, others' too, which it may still not end.
#[test]
fn without_the_right_to_end_sessions_they_are_named() {
    run(async {
        let server = fenced().await;
        let mut old = session(&server, "root").await;
        enter(&mut old, 1).await.expect("it is new");
        old.query_drop("COMMIT").await.expect("raised");
        enter(&mut old, 1).await.expect("it was raised");
        let mut new = session(&server, "app").await;
        let unseen = timeout(PATIENCE, raise(&mut new, 2)).await.expect("in time").expect_err("blocked");
        assert!(unseen.to_string().contains("grant PROCESS and CONNECTION ADMIN"), "{unseen}");
        let id: u64 = old.query_first("SELECT CONNECTION_ID()").await.expect("a row").expect("a number");
        server.sql("GRANT PROCESS ON *.* TO app");
        let mut new = session(&server, "app").await;
        let named = timeout(PATIENCE, raise(&mut new, 2)).await.expect("in time").expect_err("it may not");
        assert!(named.to_string().contains(&format!("connection {id} of root@")), "{named}");
        let Error::Server(named) = named else { panic!("the server's") };
        assert_eq!(named.code, 1205, "as a lock that is waited for");
        old.query_drop("COMMIT").await.expect("it was spared");
    });
}

/// Overlapping transactions would keep a row share-locked for ever.
#[test]
fn a_busy_old_leader_does_not_keep_the_next_one_out() {
    run(async {
        let server = fenced().await;
        let mut clients = [session(&server, "app").await, session(&server, "app").await];
        raise(&mut clients[0], 1).await.expect("it is new");
        let writing = clients.map(|mut conn| {
            tokio::spawn(async move {
                let mut written = 0;
                while enter(&mut conn, 1).await.is_ok() {
                    sleep(Duration::from_millis(20)).await;
                    if conn.query_drop("COMMIT").await.is_err() {
                        break;
                    }
                    written += 1;
                }
                written
            })
        });
        let mut new = session(&server, "app").await;
        sleep(Duration::from_millis(200)).await;
        timeout(PATIENCE, raise(&mut new, 2)).await.expect("in time").expect("raised");
        for one in writing {
            assert!(timeout(PATIENCE, one).await.expect("it was refused").expect("no panic") > 0);
        }
    });
}

/// The successor reads what the old leader wrote last, although it began to wait before that was committed.
#[test]
fn what_was_committed_while_the_guard_waited_is_seen() {
    run(async {
        let server = fenced().await;
        let (mut old, mut new) = (session(&server, "app").await, session(&server, "app").await);
        raise(&mut old, 1).await.expect("it is new");
        enter(&mut old, 1).await.expect("it was raised");
        let commit = async {
            sleep(Duration::from_millis(300)).await;
            charge(&mut old).await.expect("it comes first");
        };
        // Without a raise before.
        let ((), entered) = tokio::join!(commit, enter(&mut new, 2));
        entered.expect("it waits");
        let seen: Option<u32> = new.query_first("SELECT COUNT(*) FROM charge").await.expect("a row");
        assert_eq!(seen, Some(1));
    });
}

/// The session's variables come from whatever the program's driver runs first, so the program needs no change.
#[test]
fn triggers_fence_programs_that_cannot_be_changed() {
    run(async {
        let server = fenced().await;
        let mut owner = session(&server, "app").await;
        for event in ["INSERT", "UPDATE", "DELETE"] {
            let trigger = format!(
                "CREATE TRIGGER fenced_{event} BEFORE {event} ON charge FOR EACH ROW CALL incumbent_fence_trigger('billing')"
            );
            owner.query_drop(trigger).await.expect("a trigger");
        }
        // Knows nothing of the fence, and has no right on it.
        server.sql("CREATE USER legacy@'127.0.0.1'; GRANT SELECT, INSERT, UPDATE, DELETE ON app.charge TO legacy@'127.0.0.1'");
        let write = async |setting: &str, sql: &str| {
            let opts = Opts::from_url(&server.url()).expect("a URL");
            let opts =
                OptsBuilder::from_opts(opts).user(Some("legacy")).pass(None::<String>).prefer_socket(false);
            let mut conn = Conn::new(opts.init(vec![setting])).await.expect("it lets us in");
            conn.query_drop(sql).await
        };
        let insert = "INSERT INTO charge VALUES (1), (2)";
        write("SET @incumbent_authority = 'a', @incumbent_token = '7'", insert).await.expect("it is new");
        let eighth = "SET @incumbent_authority = 'a', @incumbent_token = 8";
        write(eighth, "UPDATE charge SET customer = 3").await.expect("the next leader");
        for stale in [insert, "UPDATE charge SET customer = 4", "DELETE FROM charge"] {
            let refused = write("SET @incumbent_authority = 'a', @incumbent_token = '7'", stale).await;
            let refused = refused.expect_err("stale").to_string();
            assert!(refused.contains("token 7 is older than 8"), "{refused}");
        }
        for without in [
            "SET @x = 1",
            "SET @incumbent_token = 9",
            "SET @incumbent_authority = 'a', @incumbent_token = ''",
        ] {
            let refused = write(without, insert).await.expect_err("no token").to_string();
            assert!(refused.contains("is shown no token"), "{refused}");
        }
        write(eighth, "DELETE FROM charge WHERE customer = 3").await.expect("it leads");
        assert_eq!(charged(&server), "0");
    });
}

#[test]
fn an_operator_adopts_another_authority() {
    let server = run(fenced());
    let fence = SqlFence::new(Dialect::Mysql, "o'bil\\ling ? 1");
    let mark = |authority: &str, token| HighWater {
        authority: Authority::new(authority),
        token: FencingToken(token),
    };
    for (authority, token) in [("old", 9), ("new\\'", 3)] {
        server.sql(&fence.adopt_text(&mark(authority, token)).expect("it fits"));
    }
    let stored = server.sql("SELECT HEX(name), authority = 'new\\\\\\'', token FROM incumbent_fence");
    let name: String = "o'bil\\ling ? 1".bytes().map(|byte| format!("{byte:02X}")).collect();
    assert_eq!(stored.trim(), format!("{name}\t1\t3"));
}

/// As a driver of one's own runs them, and judges.
#[test]
fn the_statements_of_the_dialect_can_be_judged() {
    run(async {
        let server = fenced().await;
        let mut conn = session(&server, "app").await;
        let mark = |token| HighWater { authority: Authority::new("a"), token: FencingToken(token) };
        for (token, kind) in [(5, None), (7, None), (6, Some(ErrorKind::Fenced)), (7, None)] {
            conn.query_drop("START TRANSACTION").await.expect("begun");
            conn.exec_drop(Dialect::Mysql.raise(), ("billing", "a", token))
                .await
                .expect("no error of the driver");
            let row: Option<(String, i64)> =
                conn.exec_first(Dialect::Mysql.read(), ("billing",)).await.expect("a row");
            let judged = sql::judge(row, &mark(token));
            assert_eq!(judged.map_err(|error| error.kind()).err(), kind, "{token}");
            conn.query_drop("COMMIT").await.expect("over");
        }
    });
}

#[test]
fn the_server_ends_statements_and_idle_transactions_when_the_lease_is_over() {
    run(async {
        let server = fenced().await;
        let mut conn = session(&server, "app").await;
        let begin = "START TRANSACTION; CALL incumbent_fence_guard('billing', 'a', 1, 300)";
        conn.query_drop(begin).await.expect("it is new");
        let slow = timeout(
            PATIENCE,
            conn.query_drop("SELECT SLEEP(600) FROM charge RIGHT JOIN (SELECT 1) one ON TRUE"),
        );
        assert_eq!(refused(slow.await.expect("ended")), "70100");
        conn.query_drop("ROLLBACK").await.expect("over");
        conn.query_drop(begin).await.expect("it is new");
        conn.query_drop("INSERT INTO charge VALUES (1)").await.expect("written");
        let id = conn.id();
        let gone =
            || server.sql(&format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {id}"));
        assert!(wait_until(PATIENCE, || gone().trim() == "0"), "the server ends it");
        assert_eq!(charged(&server), "0");
    });
}

/// A future that is dropped leaves the server at work.
#[test]
fn work_is_cancelled_on_the_server_when_the_term_ends() {
    run(async {
        let server = fenced().await;
        let (campaign, term) = leader("cancelled").await;
        let fence = SqlFence::new(Dialect::Mysql, "billing");
        let mut conn = session(&server, "app").await;
        conn.query_drop(fence.raise_text(&term).expect("it leads")).await.expect("raised");
        conn.query_drop(fence.begin_text(&term).expect("it leads")).await.expect("begun");
        let sleeping = || {
            server.sql(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP(500)%'",
            )
        };
        let (id, mut other) = (conn.id(), session(&server, "app").await);
        let cancel = || async move { other.query_drop(format!("KILL QUERY {id}")).await };
        let work = sql::guard(&term, conn.query_drop("SELECT SLEEP(500)"), cancel);
        let end = async {
            while sleeping().trim() != "1" {
                sleep(Duration::from_millis(20)).await;
            }
            drop(campaign);
        };
        let (done, ()) = timeout(PATIENCE, async { tokio::join!(work, end) }).await.expect("in time");
        assert!(done.is_err(), "the term is over");
        assert!(wait_until(PATIENCE, || sleeping().trim() == "0"), "the server is still at work");
        assert_eq!(fence.begin_text(&term).expect_err("it is over").kind(), ErrorKind::NotLeader);
    });
}

#[test]
fn the_example_writes_under_one_token_after_the_other() {
    let server = run(fenced());
    server.sql("DROP TABLE charge; CREATE TABLE charge (customer INT, token BIGINT)");
    let folder = tempfile::tempdir().expect("a folder");
    let elections = format!("file:{}", folder.path().display());
    let start = || Proc::spawn(example::command("fenced_mysql", &[&server.url(), &elections]));
    let first = start();
    first.wait_line(|line| line == "charged customer 2", PATIENCE);
    let second = start();
    first.signal(Signal::INT);
    assert!(first.wait(PATIENCE).success(), "{}", first.transcript());
    second.wait_line(|line| line.starts_with("charged customer"), PATIENCE);
    second.signal(Signal::KILL);
    second.wait(PATIENCE);
    let once = "SELECT COUNT(*) = COUNT(DISTINCT customer) AND COUNT(DISTINCT token) = 2 FROM charge";
    assert_eq!(server.sql(once), "1");
    let falling =
        "SELECT COUNT(*) FROM charge a JOIN charge b ON a.customer < b.customer AND a.token > b.token";
    assert_eq!(server.sql(falling), "0");
}
