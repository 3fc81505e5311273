//! The command on a real MariaDB: what holds on every server, interference by hand, refusals.

mod scenarios;

use testkit::{Certificates, Mysql, Signal};

use scenarios::harness::{World, ended, wait_leading, wait_standby};
use scenarios::{Room, Store, TTL, ends_the_term, let_in, refused};

impl Store for Mysql {
    const WAITS_FOR_NEW_RECORDS: Option<&str> = Some("--ttl=1s");
    const BAD_URLS: &[(&str, &str)] = &[
        ("mysql://", "needs a host"),
        ("mysql://127.0.0.1/d", "needs a user"),
        ("mysql://u@127.0.0.1", "one database"),
        ("mysql://u@127.0.0.1/a/b", "one database"),
        ("mysql://u@127.0.0.1/d?ssl-mode=PREFERRED", "VERIFY_IDENTITY or DISABLED"),
        ("mysql://u@127.0.0.1/d?ssl-mode=REQUIRED&tls=on", "leave one out"),
        ("mariadb://u@127.0.0.1/d?ssl-mod=x", "did you mean ssl-mode?"),
    ];

    fn start() -> Mysql {
        Mysql::options().start().expect("MariaDB starts")
    }

    fn secured(shared: &Mysql) -> (Option<Mysql>, String, &'static str) {
        (None, shared.room("secured"), "app-password")
    }

    fn url(&self) -> String {
        Mysql::url(self)
    }

    fn room(&self, name: &str) -> String {
        self.sql(&format!("CREATE DATABASE IF NOT EXISTS `{name}`; GRANT ALL ON `{name}`.* TO app"));
        let url = self.url();
        let (front, _) = url.rsplit_once('/').expect("a database");
        format!("{front}/{name}")
    }

    fn pause(&mut self) {
        Mysql::pause(self);
    }

    fn resume(&mut self) {
        Mysql::resume(self);
    }

    fn stop(&mut self) {
        Mysql::stop(self);
    }

    fn restart(&mut self) {
        Mysql::restart(self);
    }
}

scenarios::run_on!(Mysql);

/// CURATOR-171: a record that is deleted or overwritten by hand ends the term; another is waited for.
#[test]
fn curator_171_a_record_that_is_touched_by_hand_kills_the_job() {
    ends_the_term::<Mysql>(&[
        |mysql| drop(mysql.sql("DELETE FROM incumbent_record")),
        |mysql| drop(mysql.sql("UPDATE incumbent_record SET body = 'something'")),
        |mysql| drop(mysql.sql("UPDATE incumbent_record SET token = token + 1000000")),
        |mysql| drop(mysql.sql("TRUNCATE incumbent_record")),
    ]);
}

#[test]
fn wrong_credentials_are_fatal_before_the_first_term() {
    let (world, addr) = (World::new(), SHARED.addr());
    for (login, hint) in [
        ("app:hunter2", "check user and password"),
        ("nobody:hunter2", "check user and password"),
        ("app", "it wants a password"),
    ] {
        refused(&world, &format!("mysql://{login}@{addr}/app"), hint);
    }
    refused(&world, &format!("{}x", SHARED.url()), "check that the database is there");
    SHARED.sql("CREATE USER IF NOT EXISTS lord IDENTIFIED BY 'app-password'; GRANT ALL ON *.* TO lord");
    let url = SHARED.url().replace("app:app-password@", "lord:app-password@");
    refused(&world, &format!("{url}x"), "Unknown database 'appx'; create it");
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let mysql = Mysql::options().tls().start().expect("MariaDB starts");
    let_in::<Mysql>(&world, &mysql.url());
    let url = mysql.url();
    let (plain, _) = url.split_once('?').expect("parameters");
    let certificates = mysql.certificates().expect("it has them");
    let other = Certificates::make(&world.path(""));
    refused(&world, &format!("{plain}?tls=off"), "use tls=on");
    refused(&world, &format!("{plain}?tls=on&ca={}", other.ca.display()), "its certificate is not accepted");
    let named = format!("{plain}?ca={}&server_name=elsewhere", certificates.ca.display());
    refused(&world, &named, "its certificate is not accepted");
    let_in::<Mysql>(&world, &named.replace("elsewhere", "localhost"));
    let url = format!("{}?tls=on&ca={}", SHARED.url(), other.ca.display());
    refused(&world, &url, "it does not speak TLS");

    mysql.sql("ALTER USER app REQUIRE X509");
    let (cert, key) = (certificates.client_cert.display(), certificates.client_key.display());
    refused(&world, &mysql.url(), "check user and password");
    let_in::<Mysql>(&world, &format!("{}&cert={cert}&key={key}", mysql.url()));
}

/// Those who may not make tables run on what an administrator made for them, with no other right.
#[test]
fn the_printed_schema_and_its_rights_are_enough() {
    let world = World::new();
    let owner = SHARED.room("ops");
    SHARED.sql("CREATE USER clerk IDENTIFIED BY 'app-password'");
    let url = owner.replace("app:app-password@", "clerk:app-password@");
    let (status, _, err) = ended(&world.run(&["--on", &url, TTL], "exit 0"));
    assert_eq!(status, 125);
    assert!(err.contains("`incumbent doctor --print-schema`"), "{err}");
    for _ in 0..2 {
        let (status, schema, err) = world.output(&["doctor", "--print-schema", "--on", &url]);
        assert_eq!(status, 0, "{err}");
        SHARED.sql(&format!("USE ops; {schema}"));
    }
    let room = Room::at::<Mysql>(url);
    let a = room.candidate("a");
    let first = wait_leading(&a, 1);
    let b = room.candidate("b");
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
}
