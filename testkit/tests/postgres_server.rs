//! PostgreSQL, its standbys and PgBouncer, as the tests use them.

use std::time::Duration;

use testkit::{PgBouncer, PoolMode, Postgres, wait_until};

#[test]
fn a_server_keeps_its_data_over_a_crash() {
    let mut postgres = Postgres::options().start().expect("it starts");
    postgres.psql("CREATE TABLE t AS SELECT 7 AS n");
    postgres.restart();
    assert_eq!(postgres.psql("SELECT n FROM t"), "7");
    postgres.pause();
    postgres.resume();
    assert_eq!(postgres.psql("SELECT n FROM t"), "7");
    assert!(postgres.try_psql("SELECT nonsense").is_err());
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let postgres = Postgres::options().start().expect("it starts");
    let standby = postgres.standby("s1").expect("a standby");
    postgres.psql("CREATE TABLE t AS SELECT 7 AS n");
    assert!(wait_until(Duration::from_secs(30), || standby.try_psql("SELECT n FROM t").is_ok()));
    assert!(standby.try_psql("INSERT INTO t VALUES (8)").is_err(), "it only reads");
    standby.promote();
    standby.psql("INSERT INTO t VALUES (8)");
}

#[test]
fn a_transaction_pooler_gives_one_session_to_two_clients() {
    let postgres = Postgres::options().start().expect("it starts");
    let bouncer = PgBouncer::start(&postgres, PoolMode::Transaction).expect("it starts");
    let port = bouncer.addr().rsplit_once(':').expect("a port").1.to_owned();
    let ask = || {
        let mut psql = postgres.psql_command();
        psql.args(["-p", &port, "-U", "app", "-d", "app", "-c", "SELECT pg_backend_pid()"]);
        let output = psql.env("PGPASSWORD", "app-password").output().expect("psql runs");
        assert!(output.status.success(), "{output:?}\n{}", bouncer.log());
        output.stdout
    };
    assert_eq!(ask(), ask());
}
