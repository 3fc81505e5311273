//! The command on a real ZooKeeper: what holds on every server, lost sessions, refusals.

mod scenarios;

use testkit::zookeeper::{Hand, Version};
use testkit::{Certificates, Signal, Zookeeper};

use scenarios::harness::{SOON, World, code, ended};
use scenarios::{JOB, Room, Store, TTL, ends_the_term, let_in, refused};

impl Store for Zookeeper {
    const TOUCHED_TTL: &str = "--ttl=10s";
    // 20 ticks.
    const LONG_TTL: &str = "--ttl=10s";
    const LISTS_CANDIDATES: bool = true;
    const BAD_URLS: &[(&str, &str)] = &[
        ("zookeeper://", "needs a host"),
        ("zookeeper://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("zookeeper://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("zookeeper://127.0.0.1:1?password_file=/no/such/file", "password_file= needs a user"),
        ("zookeeper://me@127.0.0.1:1?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("zookeeper://me@127.0.0.1:1", "a user needs a password"),
        ("zookeeper://127.0.0.1:1/a/../b", "the prefix can hold no"),
    ];

    fn start() -> Zookeeper {
        Zookeeper::single(Version::V3_9).start().expect("ZooKeeper starts")
    }

    fn start_for(_: &'static str) -> Zookeeper {
        Zookeeper::single(Version::V3_9).tick_ms(2000).start().expect("ZooKeeper starts")
    }

    /// It lets everybody in; the nodes under `/secured` are this user's alone.
    fn secured(shared: &Zookeeper) -> (Option<Zookeeper>, String, &'static str) {
        (None, format!("zookeeper://me:hunter2@{}/secured", shared.endpoints()[0]), "hunter2")
    }

    fn url(&self) -> String {
        Zookeeper::url(self)
    }

    fn pause(&mut self) {
        Zookeeper::pause(self, 0);
    }

    fn resume(&mut self) {
        Zookeeper::resume(self, 0);
    }

    fn stop(&mut self) {
        Zookeeper::stop(self, 0);
    }

    fn restart(&mut self) {
        Zookeeper::restart(self, 0);
    }
}

scenarios::run_on!(Zookeeper);

/// Curator #692 (CURATOR-171): the leader's own node is deleted by an operator, or its session ended.
#[test]
fn curator_171_a_node_or_session_that_is_ended_by_hand_kills_the_job_at_once() {
    ends_the_term::<Zookeeper>(&[
        |zookeeper| zookeeper.hand().delete(&leader(zookeeper)),
        |zookeeper| {
            let owner = zookeeper.hand().get(&leader(zookeeper)).expect("somebody leads").owner;
            Hand::end_session(&zookeeper.endpoints()[0], owner);
        },
    ]);
}

/// The leader's node.
fn leader(zookeeper: &Zookeeper) -> String {
    let queue = zookeeper.hand().children("/billing");
    format!("/billing/{}", queue.first().expect("somebody leads"))
}

/// CURATOR-468: who was stopped while it led, or waited, complained of its own interruption.
#[test]
fn curator_468_a_leader_and_a_standby_that_are_stopped_complain_of_nothing() {
    let room = Room::apart(&*SHARED);
    let [a, b] = ["a", "b"].map(|id| {
        let candidate = room.run(&[&format!("--id={id}"), TTL, "-v"], JOB);
        candidate.wait_line(|line| line.starts_with("leading ") || line.starts_with("standby: "), SOON);
        candidate
    });
    for candidate in [&b, &a] {
        let told = candidate.lines().len();
        candidate.signal(Signal::TERM);
        code(candidate);
        let complains =
            |text: &str| ["warning: ", "error: ", " WARN ", "ERROR "].iter().any(|word| text.contains(word));
        assert!(
            !candidate.lines()[told..].iter().any(|line| complains(&line.text)),
            "{}",
            candidate.transcript()
        );
    }
}

/// ZooKeeper takes any password; the node that a user has created is closed to the others.
#[test]
fn a_missing_right_is_fatal_before_the_first_term_and_named() {
    let world = World::new();
    let endpoint = &SHARED.endpoints()[0];
    let_in::<Zookeeper>(&world, &format!("zookeeper://me:right@{endpoint}/rights"));
    for login in ["", "me:wrong@", "nobody:right@"] {
        refused(&world, &format!("zookeeper://{login}{endpoint}/rights"), "is missing");
    }
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let zookeeper = Zookeeper::single(Version::V3_9).client_auth().start().expect("ZooKeeper");
    let_in::<Zookeeper>(&world, &zookeeper.url());
    let other = Certificates::make(&world.path(""));
    let secure = zookeeper.url();
    let host = secure.split('?').next().expect("a URL");
    let ca = zookeeper.certificates().expect("certificates").ca.display().to_string();
    for (url, hint) in [
        (format!("{host}?tls=on&ca={}", other.ca.display()), "its certificate is not accepted"),
        (format!("{}?tls=on&ca={ca}", plain(&zookeeper)), "does not speak TLS"),
        (format!("{host}?tls=on&ca={ca}"), "refused the TLS connection"),
    ] {
        refused(&world, &url, hint);
    }
    // A server closes such a connection without a word, as it does for other reasons too.
    let a = world.run(&["--on", &format!("{host}?tls=off"), TTL], "true");
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("TLS"), SOON);
}

fn plain(zookeeper: &Zookeeper) -> String {
    format!("zookeeper://{}", zookeeper.endpoints()[0])
}

/// What is not a candidate stands beside the elections, also below a prefix of several parts.
#[test]
fn notes_stand_beside_the_elections() {
    let world = World::new();
    let on = format!("{}/team/a", plain(&SHARED));
    let put = world.run(&["--on", &on, TTL], "echo kept | \"$INCUMBENT\" checkpoint put");
    assert_eq!(code(&put), 0, "{}", put.transcript());
    let get = world.run(&["--on", &on, TTL], "\"$INCUMBENT\" checkpoint get");
    let (status, out, err) = ended(&get);
    assert_eq!((status, out.as_str()), (0, "kept\n"), "{err}");
    assert_eq!(SHARED.hand().children("/team/a/.incumbent").len(), 2);
}
