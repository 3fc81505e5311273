//! The command on a real PostgreSQL: what holds on every server, poolers, interference by hand, refusals.

mod scenarios;

use testkit::{Certificates, PgBouncer, PoolMode, Postgres, Signal, Stream};

use scenarios::harness::{World, wait_leading, wait_standby};
use scenarios::{Room, Store, ends_the_term, let_in, refused};

impl Store for Postgres {
    const WAITS_FOR_NEW_RECORDS: Option<&str> = Some("--ttl=1s");
    const BAD_URLS: &[(&str, &str)] = &[
        ("postgres://", "needs a host"),
        ("postgres://127.0.0.1", "needs a user"),
        ("postgres://u@127.0.0.1/a/b", "schema="),
        ("postgres://u@127.0.0.1?sslmode=prefer", "verify-full or disable"),
        ("postgres://u@127.0.0.1?sslmode=require&tls=on", "leave one out"),
        ("postgresql://u@127.0.0.1?schma=x", "did you mean schema?"),
    ];

    fn start() -> Postgres {
        Postgres::options().start().expect("PostgreSQL starts")
    }

    fn secured(shared: &Postgres) -> (Option<Postgres>, String, &'static str) {
        (None, shared.room("secured"), "app-password")
    }

    fn url(&self) -> String {
        Postgres::url(self)
    }

    fn room(&self, name: &str) -> String {
        format!("{}?schema={name}", self.url())
    }

    fn pause(&mut self) {
        Postgres::pause(self);
    }

    fn resume(&mut self) {
        Postgres::resume(self);
    }

    fn stop(&mut self) {
        Postgres::stop(self);
    }

    fn restart(&mut self) {
        Postgres::restart(self);
    }
}

scenarios::run_on!(Postgres);

/// A pooler that gives each statement another session.
#[test]
fn through_a_transaction_pooler_a_standby_takes_over_at_once() {
    let bouncer = PgBouncer::start(&SHARED, PoolMode::Transaction).expect("PgBouncer starts");
    scenarios::told_to_stop::<Postgres>(&Room::at::<Postgres>(SHARED.url_at(&bouncer.addr())));
}

/// CURATOR-171: a record that is deleted or overwritten by hand ends the term; another is waited for.
#[test]
fn curator_171_a_record_that_is_touched_by_hand_kills_the_job() {
    ends_the_term::<Postgres>(&[
        |postgres| drop(postgres.psql("DELETE FROM incumbent.record")),
        |postgres| drop(postgres.psql("UPDATE incumbent.record SET body = 'something'")),
        |postgres| drop(postgres.psql("UPDATE incumbent.record SET token = token + 1000000")),
        |postgres| drop(postgres.psql("TRUNCATE incumbent.record")),
    ]);
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let (world, addr) = (World::new(), SHARED.addr());
    for (login, hint) in [
        ("app:hunter2", "check user and password"),
        ("nobody:hunter2", "check user and password"),
        ("app", "it wants a password"),
    ] {
        let url = format!("postgres://{login}@{addr}/app");
        refused(&world, &url, hint);
    }
    refused(&world, &format!("{}x", SHARED.url()), "database \"appx\" does not exist; create it");
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let postgres = Postgres::options().tls().start().expect("PostgreSQL starts");
    let_in::<Postgres>(&world, &postgres.url());
    let url = postgres.url();
    let (plain, _) = url.split_once('?').expect("parameters");
    let other = Certificates::make(&world.path(""));
    for (url, hint) in [
        (format!("{plain}?tls=off"), "use tls=on"),
        (format!("{plain}?tls=on&ca={}", other.ca.display()), "its certificate is not accepted"),
    ] {
        refused(&world, &url, hint);
    }
    let url = format!("{}?tls=on&ca={}", SHARED.url(), other.ca.display());
    refused(&world, &url, "it does not speak TLS");
}

/// Those who may not make tables run on what an administrator made for them, with no other right.
#[test]
fn the_printed_schema_and_its_rights_are_enough() {
    let (world, postgres) = (World::new(), Postgres::start());
    postgres.psql("CREATE ROLE clerk LOGIN PASSWORD 'app-password'; REVOKE ALL ON DATABASE app FROM PUBLIC");
    postgres.psql("GRANT CONNECT ON DATABASE app TO clerk; REVOKE ALL ON SCHEMA public FROM PUBLIC");
    let url = postgres.url().replace("app:app-password@", "clerk:app-password@") + "?schema=o%22ps";
    refused(&world, &url, "`incumbent doctor --print-schema`");
    for _ in 0..2 {
        let (status, schema, err) = world.output(&["doctor", "--print-schema", "--on", &url]);
        assert_eq!(status, 0, "{err}");
        postgres.psql(&schema);
    }
    let room = Room { world, on: url, place: Postgres::place };
    let a = room.candidate("a");
    let first = wait_leading(&a, 1);
    let b = room.candidate("b");
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert!(!b.text(Stream::Err).contains("notifications do not come through"), "{}", b.transcript());
}
