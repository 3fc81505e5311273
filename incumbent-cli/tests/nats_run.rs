//! The command on a real NATS: what holds on every server, lost records and buckets, refusals.

mod scenarios;

use serde_json::{Value, json};
use testkit::{Certificates, Nats, NatsVersion};

use scenarios::harness::{SOON, World, lives, pid_in, wait_leading};
use scenarios::{Room, Store, ends_the_term, let_in, refused};

impl Store for Nats {
    const WAITS_FOR_NEW_RECORDS: Option<&str> = Some("--ttl=1s");
    const BAD_URLS: &[(&str, &str)] = &[
        ("nats://", "needs a host and a bucket"),
        ("nats://127.0.0.1:1", "needs a bucket"),
        ("nats://127.0.0.1:1/a.b", "no bucket of NATS"),
        ("nats://127.0.0.1:1/b/c..d", "no prefix"),
        ("nats://127.0.0.1:1/b?tsl=on", "did you mean tls?"),
        ("nats://127.0.0.1:1/b?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("nats://127.0.0.1:1/b?token_file=/no/such/file", "cannot read token_file=/no/such/file"),
        ("nats://127.0.0.1:1/b?creds_file=/etc/hostname", "holds no JWT of a user with its seed"),
        ("nats://127.0.0.1:1/b?token_file=/etc/hostname&nkey_file=/etc/hostname", "one login is enough"),
        ("nats://me@127.0.0.1:1/b?password_file=/no/such/file", "/no/such/file cannot be read"),
        ("nats://s3cr3t@127.0.0.1:1/b", "token_file="),
    ];

    fn start() -> Nats {
        Nats::single(NatsVersion::V2_10).start().expect("nats starts")
    }

    fn secured(_: &Nats) -> (Option<Nats>, String, &'static str) {
        let nats = Nats::single(NatsVersion::V2_10).user("me", "hunter2", "").start().expect("nats starts");
        let on = nats.url();
        (Some(nats), on, "hunter2")
    }

    fn url(&self) -> String {
        Nats::url(self)
    }

    fn pause(&mut self) {
        Nats::pause(self, 0);
    }

    fn resume(&mut self) {
        Nats::resume(self, 0);
    }

    fn stop(&mut self) {
        Nats::stop(self, 0);
    }

    fn restart(&mut self) {
        Nats::restart(self, 0);
    }
}

scenarios::run_on!(Nats);

/// Deleted, purged, removed from the stream or overwritten: whatever it was, the next term has a greater token.
#[test]
fn a_record_that_is_meddled_with_kills_the_job_at_the_next_renewal() {
    ends_the_term::<Nats>(&[
        |nats| nats.delete(Nats::BUCKET, "billing"),
        |nats| {
            nats.put(Nats::BUCKET, "billing", &[("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")], b"");
        },
        |nats| drop(nats.api(&format!("STREAM.PURGE.KV_{}", Nats::BUCKET), &Value::Null)),
        |nats| {
            nats.put(Nats::BUCKET, "billing", &[], b"mine");
        },
    ]);
}

/// The token order of the old bucket is void, and nobody says that it is not.
#[test]
fn a_bucket_that_is_made_anew_ends_the_term() {
    let nats = Nats::start();
    let room = Room::of(&nats);
    let a = room.candidate("a");
    wait_leading(&a, 1);
    let job = pid_in(&room.world.path("pid-a"));
    nats.api(&format!("STREAM.DELETE.KV_{}", Nats::BUCKET), &Value::Null);
    nats.make_bucket(Nats::BUCKET, &json!({})).expect("a bucket");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    wait_leading(&a, 2);
}

#[test]
fn doctor_says_what_a_bucket_with_one_replica_means() {
    let (status, out, err) = World::new().output(&["doctor", "--on", &SHARED.url()]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(format!("{out}{err}").contains("the bucket elections has one replica"), "{out}{err}");
}

/// nats-server #3653, #4162: the server lets records expire at uneven times. A bucket in which they do, or that forgets in another
/// way, or that nobody made, is refused with the reason.
#[test]
fn nats_3653_a_bucket_that_cannot_hold_elections_is_refused_before_the_first_term() {
    let world = World::new();
    let nats = Nats::start();
    let buckets = [
        ("memory", json!({"storage": "memory"}), "kept in memory"),
        ("ageing", json!({"max_age": 60_000_000_000_u64, "duplicate_window": 60_000_000_000_u64}), "max_age"),
        ("rolling", json!({"max_bytes": 100_000, "discard": "old"}), "throws old records away"),
        ("mirror", json!({"mirror": {"name": "KV_elections"}, "subjects": []}), "is a mirror"),
    ];
    for (bucket, changes, _) in &buckets {
        nats.make_bucket(bucket, changes).expect("a bucket");
    }
    let missing = ("missing", Value::Null, "nats kv add missing");
    for (bucket, _, hint) in [missing].iter().chain(&buckets) {
        let url = format!("nats://{}/{bucket}", nats.endpoints()[0]);
        refused(&world, &url, hint);
    }
}

/// nats-server #4320: 2.9.10 acknowledges up to eight writes of one revision, if the bucket has replicas.
#[test]
fn nats_4320_an_old_server_is_refused_with_replicas_and_taken_without() {
    let world = World::new();
    let nats = Nats::cluster(&[NatsVersion::V2_9; 3]).start().expect("nats starts");
    refused(&world, &nats.url(), "2.9.10");
    refused(&world, &nats.url(), "upgrade every server to 2.10.27");
    drop(nats);
    let single = Nats::single(NatsVersion::V2_9).start().expect("nats starts");
    let_in::<Nats>(&world, &single.url());
}

/// One member that was not upgraded is enough to be refused, whichever of them one is connected to.
#[test]
fn nats_4320_one_old_member_is_enough_to_be_refused() {
    let versions = [NatsVersion::V2_10, NatsVersion::V2_10, NatsVersion::V2_9];
    let nats = Nats::cluster(&versions).start().expect("nats starts");
    let url = nats.url_of(&nats.endpoints()[..1]);
    refused(&World::new(), &url, "the server n2 is nats-server 2.9.10");
}

#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let world = World::new();
    let nats = Nats::single(NatsVersion::V2_10).user("me", "right", "").start().expect("nats");
    let endpoint = &nats.endpoints()[0];
    for (login, hint) in [
        ("", "password_file="),
        ("me:wrong@", "check user and password"),
        ("nobody:right@", "check user and password"),
    ] {
        let url = format!("nats://{login}{endpoint}/{}", Nats::BUCKET);
        refused(&world, &url, hint);
    }
    let_in::<Nats>(&world, &nats.url());
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let secured = Nats::single(NatsVersion::V2_10).tls().start().expect("nats");
    let_in::<Nats>(&world, &secured.url());
    let named = format!("{}&server_name=localhost", secured.url());
    let_in::<Nats>(&world, &named);
    let endpoint = format!("{}/{}", secured.endpoints()[0], Nats::BUCKET);
    let other = Certificates::make(&world.path(""));
    let plain = Nats::start();
    for (url, hint) in [
        (format!("nats://{endpoint}"), "it speaks TLS only"),
        (format!("nats://{endpoint}?ca={}", other.ca.display()), "check ca="),
        (format!("{}&server_name=elsewhere.example", secured.url()), "server_name="),
        (format!("{}?tls=on", plain.url()), "does not speak TLS"),
    ] {
        refused(&world, &url, hint);
    }
    let strict = Nats::single(NatsVersion::V2_10).client_auth().start().expect("nats");
    let_in::<Nats>(&world, &strict.url());
    let without = strict.url().split("&cert=").next().expect("a URL").to_owned();
    refused(&world, &without, "check cert= and key=");
}
