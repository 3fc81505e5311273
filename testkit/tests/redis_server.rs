//! Redis servers as the tests start them.

use testkit::Redis;

#[test]
fn a_server_keeps_its_data_over_a_kill_and_a_freeze() {
    let mut redis = Redis::single().start().expect("redis starts");
    redis.cli_ok(&["SET", "key", "value"]);
    redis.restart();
    redis.pause();
    redis.resume();
    assert_eq!(redis.cli_ok(&["GET", "key"]).trim(), "value");
    redis.stop();
}

#[test]
fn a_server_without_a_file_forgets() {
    let mut redis = Redis::single().volatile().start().expect("redis starts");
    redis.cli_ok(&["SET", "key", "value"]);
    redis.restart();
    assert_eq!(redis.cli_ok(&["GET", "key"]).trim(), "");
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let primary = Redis::single().start().expect("redis starts");
    let replica = Redis::single().start().expect("redis starts");
    primary.cli_ok(&["SET", "key", "value"]);
    replica.replicate(&primary);
    assert_eq!(replica.cli_ok(&["GET", "key"]).trim(), "value");
    assert!(replica.cli(&["SET", "key", "other"]).is_err(), "a replica took a write");
    replica.promote();
    replica.cli_ok(&["SET", "key", "other"]);
}

#[test]
fn tls_and_a_user_are_there_when_they_are_asked_for() {
    let redis =
        Redis::single().client_auth().user("app", "secret", "~* &* +@all").start().expect("redis starts");
    assert_eq!(redis.cli_ok(&["--user", "app", "--pass", "secret", "ACL", "WHOAMI"]).trim(), "app");
}
