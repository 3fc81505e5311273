//! The command on a real etcd: what holds on every server, lost leases, refusals, and clients of another kind.

mod scenarios;

use testkit::{Certificates, Etcd, Proc, Signal, Version};

use scenarios::harness::{SOON, World, wait_leading, wait_standby};
use scenarios::{Room, Store, ends_the_term, let_in, refused};

impl Store for Etcd {
    const TOUCHED_TTL: &str = "--ttl=4m";
    const LISTS_CANDIDATES: bool = true;
    const BAD_URLS: &[(&str, &str)] = &[
        ("etcd://", "needs a host"),
        ("etcd://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("etcd://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("etcd://127.0.0.1:1?password_file=/no/such/file", "password_file= needs a user"),
        ("etcd://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("etcd://me@127.0.0.1:1", "a user needs a password"),
    ];

    fn start() -> Etcd {
        Etcd::single(Version::V3_5).fast().start().expect("etcd starts")
    }

    fn secured(_: &Etcd) -> (Option<Etcd>, String, &'static str) {
        let etcd = Etcd::single(Version::V3_5).fast().auth("me", "hunter2").start().expect("etcd starts");
        let on = etcd.url();
        (Some(etcd), on, "hunter2")
    }

    fn url(&self) -> String {
        Etcd::url(self)
    }

    fn pause(&mut self) {
        Etcd::pause(self, 0);
    }

    fn resume(&mut self) {
        Etcd::resume(self, 0);
    }

    fn stop(&mut self) {
        Etcd::stop(self, 0);
    }

    fn restart(&mut self) {
        Etcd::restart(self, 0);
    }
}

scenarios::run_on!(Etcd);

/// etcd E3: the child of `etcdctl lock` ran on for six seconds and more beside the new holder.
#[test]
fn etcd_e3_a_lease_that_is_revoked_by_hand_kills_the_job_at_once() {
    ends_the_term::<Etcd>(&[|etcd| {
        for lease in etcd.etcdctl_ok(&["lease", "list"]).lines().skip(1) {
            etcd.etcdctl_ok(&["lease", "revoke", lease.trim()]);
        }
    }]);
}

#[test]
fn a_key_that_is_deleted_by_hand_kills_the_job_at_once() {
    ends_the_term::<Etcd>(&[|etcd| {
        etcd.etcdctl_ok(&["del", "--prefix", "billing/"]);
    }]);
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let etcd = Etcd::single(Version::V3_5).fast().auth("me", "right").start().expect("etcd");
    let endpoint = &etcd.endpoints()[0];
    for login in ["", "me:wrong@", "nobody:right@"] {
        refused(&World::new(), &format!("etcd://{login}{endpoint}"), "error: ");
    }
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let etcd = Etcd::single(Version::V3_5).fast().tls().start().expect("etcd");
    let_in::<Etcd>(&world, &etcd.url());
    let endpoint = &etcd.endpoints()[0];
    let other = Certificates::make(&world.path(""));
    for url in [format!("etcd://{endpoint}"), format!("etcd://{endpoint}?tls=on&ca={}", other.ca.display())] {
        refused(&world, &url, "error: ");
    }
}

/// `etcdctl elect` shares the election; it obeys nobody.
#[test]
fn clients_of_another_kind_are_shown_and_cannot_be_asked() {
    let etcd = Etcd::start();
    let room = Room::of(&etcd);
    let mut elect = etcd.etcdctl_command();
    elect.args(["elect", "billing", "foreign-1"]);
    let foreign = Proc::spawn(elect);
    foreign.wait_line(|line| line == "foreign-1", SOON);
    let a = room.candidate("a");
    a.wait_line(
        |line| line.starts_with("standby: billing is led by foreign-1 (a client of another kind"),
        SOON,
    );
    let out = room.ask_ok("status", &[]);
    assert!(out.contains("leader      foreign-1 (a client of another kind)"), "{out}");
    for (command, options) in [("resign", &[][..]), ("transfer", &["--to=a"])] {
        let (status, _, err) = room.ask(command, options);
        assert_eq!(status, 1);
        assert!(err.contains("cannot be asked to go"), "{err}");
    }
    foreign.signal(Signal::INT);
    wait_leading(&a, 1);

    let mut elect = etcd.etcdctl_command();
    elect.args(["elect", "billing", "foreign-2"]);
    let foreign = Proc::spawn(elect);
    let queued =
        || etcd.etcdctl_ok(&["get", "--prefix", "billing/", "--print-value-only"]).contains("foreign-2");
    assert!(testkit::wait_until(SOON, queued));
    let b = room.candidate("b");
    wait_standby(&b);
    let (status, _, err) = room.ask("transfer", &["--to=b"]);
    assert_eq!(status, 1);
    assert!(err.contains("before b stand clients of another kind") && err.contains("foreign-2"), "{err}");
    drop(foreign);
}
