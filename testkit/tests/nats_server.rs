//! NATS servers as the tests start them.

use serde_json::{Value, json};
use testkit::{Nats, NatsVersion};

#[test]
fn a_server_keeps_its_data_over_a_kill_and_a_freeze() {
    for version in [NatsVersion::V2_9, NatsVersion::V2_10] {
        let mut nats = Nats::single(version).start().expect("nats starts");
        let first = nats.put(Nats::BUCKET, "key", &[], b"value");
        nats.kill(0);
        nats.restart(0);
        nats.pause(0);
        nats.resume(0);
        assert_eq!(nats.put(Nats::BUCKET, "key", &[], b"value"), first + 1);
        nats.stop(0);
    }
}

#[test]
fn a_cluster_replicates_the_bucket_and_chooses_another_leader() {
    let mut nats = Nats::cluster(&[NatsVersion::V2_10; 3]).start().expect("nats starts");
    let info = nats.api(&format!("STREAM.INFO.KV_{}", Nats::BUCKET), &Value::Null);
    assert_eq!(info["config"]["num_replicas"], 3);
    assert_eq!(info["cluster"]["replicas"].as_array().map(Vec::len), Some(2), "{info}");
    let first = nats.put(Nats::BUCKET, "key", &[], b"value");
    let leader = nats.leader_index();
    nats.kill(leader);
    assert_ne!(nats.leader_index(), leader);
    assert_eq!(nats.put(Nats::BUCKET, "key", &[], b"value"), first + 1);
}

#[test]
fn a_write_over_a_revision_that_is_gone_is_refused() {
    let nats = Nats::single(NatsVersion::V2_10).start().expect("nats starts");
    let first = nats.put(Nats::BUCKET, "key", &[], b"value").to_string();
    let mut operator = nats.operator();
    let mut expecting = |revision: &str| -> Value {
        let headers = [("Nats-Expected-Last-Subject-Sequence", revision)];
        let subject = format!("$KV.{}.key", Nats::BUCKET);
        let answer = operator.request(&subject, &headers, b"other").expect("an answer");
        serde_json::from_slice(&answer).expect("json")
    };
    assert!(expecting(&first)["error"].is_null());
    assert_eq!(expecting(&first)["error"]["err_code"], 10071);
}

/// Why the backend sends no message id: a repeated one is acknowledged and not written.
#[test]
fn a_repeated_message_id_is_acknowledged_and_not_written() {
    let nats = Nats::single(NatsVersion::V2_10).start().expect("nats starts");
    let mut operator = nats.operator();
    let mut write = || -> Value {
        let subject = format!("$KV.{}.key", Nats::BUCKET);
        let answer = operator.request(&subject, &[("Nats-Msg-Id", "one")], b"other").expect("an answer");
        serde_json::from_slice(&answer).expect("json")
    };
    let (first, second) = (write(), write());
    assert_eq!(second["seq"], first["seq"]);
    assert_eq!(second["duplicate"], true);
}

#[test]
fn users_and_other_buckets_are_there_when_they_are_asked_for() {
    let nats = Nats::single(NatsVersion::V2_10).user("app", "secret", "").start().expect("nats starts");
    nats.make_bucket("other", &json!({"storage": "memory"})).expect("a bucket");
    let login = json!({"user": "app", "pass": "secret"});
    testkit::nats::Wire::connect(&nats.endpoints()[0], &login).expect("it is let in");
    assert!(testkit::nats::Wire::connect(&nats.endpoints()[0], &Value::Null).is_err());
}
