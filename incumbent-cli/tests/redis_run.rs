//! The command on a real Redis: what holds on every server, lost records, refusals.

mod scenarios;

use testkit::{Certificates, Redis};

use scenarios::harness::World;
use scenarios::{Store, ends_the_term, let_in, refused};

impl Store for Redis {
    const WAITS_FOR_NEW_RECORDS: Option<&str> = Some("--ttl=1s");
    const RESTART_ENDS_TERMS: bool = true;
    const BAD_URLS: &[(&str, &str)] = &[
        ("redis://", "needs a host"),
        ("redis://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("rediss://127.0.0.1:1?tls=off", "means TLS"),
        ("redis://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("redis://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("redis://me@127.0.0.1:1", "a user needs a password"),
    ];

    fn start() -> Redis {
        Redis::single().start().expect("redis starts")
    }

    fn secured(_: &Redis) -> (Option<Redis>, String, &'static str) {
        let redis = Redis::single().user("me", "hunter2", "~* &* +@all").start().expect("redis starts");
        let on = redis.url();
        (Some(redis), on, "hunter2")
    }

    fn url(&self) -> String {
        Redis::url(self)
    }

    fn pause(&mut self) {
        Redis::pause(self);
    }

    fn resume(&mut self) {
        Redis::resume(self);
    }

    fn stop(&mut self) {
        Redis::stop(self);
    }

    fn restart(&mut self) {
        Redis::restart(self);
    }
}

scenarios::run_on!(Redis);

#[test]
fn a_record_that_is_deleted_by_hand_kills_the_job_at_the_next_renewal() {
    ends_the_term::<Redis>(&[
        |redis| drop(redis.cli_ok(&["DEL", "billing"])),
        |redis| drop(redis.cli_ok(&["FLUSHALL"])),
        |redis| drop(redis.cli_ok(&["SET", "billing", "mine"])),
    ]);
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let world = World::new();
    let redis = Redis::single()
        .flags(&["--requirepass", "right"])
        .user("me", "right", "~* &* +@all")
        .start()
        .expect("redis");
    let endpoint = redis.endpoint();
    for (login, hint) in [
        ("", "password_file="),
        ("me:wrong@", "check user and password"),
        ("nobody:right@", "check user and password"),
        (":wrong@", "check user and password"),
    ] {
        let url = format!("redis://{login}{endpoint}");
        refused(&world, &url, hint);
    }
    let_in::<Redis>(&world, &format!("redis://:right@{endpoint}"));
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let redis = Redis::single().tls().start().expect("redis");
    let_in::<Redis>(&world, &redis.url());
    let endpoint = redis.endpoint();
    let other = Certificates::make(&world.path(""));
    let plain = Redis::single().start().expect("redis");
    for (url, hint) in [
        (format!("redis://{endpoint}"), "it speaks TLS only"),
        (format!("rediss://{endpoint}?ca={}", other.ca.display()), "check ca="),
        (format!("rediss://{}", plain.endpoint()), "does not speak TLS"),
    ] {
        refused(&world, &url, hint);
    }
    let strict = Redis::single().client_auth().start().expect("redis");
    let_in::<Redis>(&world, &strict.url());
    let without = strict.url().split("&cert=").next().expect("a URL").to_owned();
    refused(&world, &without, "check cert= and key=");
}
