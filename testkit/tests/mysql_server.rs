//! MariaDB and its replicas, as the tests use them.

use std::time::Duration;

use testkit::{Mysql, wait_until};

#[test]
fn a_server_keeps_its_data_over_a_crash() {
    let mut mysql = Mysql::options().start().expect("it starts");
    mysql.sql("CREATE TABLE t AS SELECT 7 AS n");
    mysql.restart();
    assert_eq!(mysql.sql("SELECT n FROM t"), "7");
    mysql.pause();
    mysql.resume();
    assert_eq!(mysql.sql("SELECT n FROM t"), "7");
    mysql.stop();
    mysql.restart();
    assert_eq!(mysql.sql("SELECT n FROM t"), "7");
    assert!(mysql.try_sql("SELECT nonsense").is_err());
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let mysql = Mysql::options().setting("log-bin=log").start().expect("it starts");
    mysql.sql("CREATE TABLE t AS SELECT 7 AS n");
    let mut replica = mysql.replica().expect("a replica");
    assert!(wait_until(Duration::from_secs(30), || replica.try_sql("SELECT n FROM t").is_ok()));
    assert_eq!(replica.sql("SELECT @@read_only"), "1");
    replica.promote();
    replica.sql("INSERT INTO t VALUES (8)");
}

#[test]
fn its_users_come_in_by_tls() {
    let mysql = Mysql::options().tls().start().expect("it starts");
    let ca = &mysql.certificates().expect("it has them").ca;
    let ask = |tls: &[String]| {
        let mut client = mysql.client_command();
        client.args(["-u", "app", "-papp-password", "-N", "-B", "-e", "SHOW STATUS LIKE 'Ssl_version'"]);
        client.args(tls).output().expect("the client runs")
    };
    let answer = ask(&[format!("--ssl-ca={}", ca.display()), "--ssl-verify-server-cert".to_owned()]);
    assert!(String::from_utf8_lossy(&answer.stdout).contains("TLSv1"), "{answer:?}");
    assert!(!ask(&["--skip-ssl".to_owned()]).status.success(), "plain text is refused");
}
