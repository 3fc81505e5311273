//! The command on a real Consul: what holds on every server, and what destroys a session there.

mod scenarios;

use testkit::{Certificates, Consul};

use scenarios::harness::{World, wait_leading};
use scenarios::{Room, Store, ends_the_term, let_in, refused};

const KEY: &str = "billing/.lock";

impl Store for Consul {
    const TOUCHED_TTL: &str = "--ttl=4m";
    const BAD_URLS: &[(&str, &str)] = &[
        ("consul://", "needs a host"),
        ("consul://127.0.0.1:1?tsl=on", "did you mean tls?"),
        ("consul://127.0.0.1:1?ca=/no/such/file", "cannot read ca=/no/such/file"),
        ("consul://127.0.0.1:1?token_file=/no/such/file", "/no/such/file cannot be read"),
        ("consul://me@127.0.0.1:1", "has no users"),
        ("consul://127.0.0.1:1?token=hunter2&token_file=/t", "leave one out"),
        ("consul://127.0.0.1:1/a/../b", "may not have"),
    ];

    fn start() -> Consul {
        Consul::single().start().expect("Consul starts")
    }

    fn secured(_: &Consul) -> (Option<Consul>, String, &'static str) {
        let consul = Consul::single().acl().start().expect("Consul starts");
        let rules = "key_prefix \"\" { policy = \"write\" }\nsession_prefix \"\" { policy = \"write\" }\n\
                     node_prefix \"\" { policy = \"write\" }";
        let token: &'static str = consul.token("all", rules).leak();
        let on = format!("{}?token={token}", consul.url());
        (Some(consul), on, token)
    }

    fn url(&self) -> String {
        Consul::url(self)
    }

    fn pause(&mut self) {
        Consul::pause(self, 0);
    }

    fn resume(&mut self) {
        Consul::resume(self, 0);
    }

    fn stop(&mut self) {
        Consul::stop(self, 0);
    }

    fn restart(&mut self) {
        Consul::restart(self, 0);
    }
}

scenarios::run_on!(Consul);

/// consul_9788, consul_1290: the child of `consul lock` ran on for 90 s beside the new holder.
#[test]
fn consul_9788_a_session_that_is_destroyed_by_hand_kills_the_job_at_once() {
    ends_the_term::<Consul>(&[|consul| {
        let session = consul.holder(KEY).expect("a leads");
        consul.call("PUT", &format!("/v1/session/destroy/{session}"), "");
    }]);
}

/// consul_6793: a node that is deregistered takes its sessions with it; it is registered again.
#[test]
fn consul_6793_a_node_that_is_deregistered_kills_the_job_at_once() {
    ends_the_term::<Consul>(&[|consul| {
        consul.call("PUT", "/v1/catalog/deregister", "{\"Node\":\"incumbent\"}");
    }]);
}

#[test]
fn a_key_that_is_deleted_by_hand_kills_the_job_at_once() {
    ends_the_term::<Consul>(&[|consul| {
        consul.call("DELETE", "/v1/kv/billing?recurse", "");
    }]);
}

/// consul_6793, consul_20424: a session with a check, or on the node of an agent or a server, ends when those fail.
#[test]
fn consul_6793_a_session_has_no_check_and_its_node_no_agent() {
    let consul = Consul::start();
    let room = Room::of(&consul);
    let a = room.candidate("a");
    wait_leading(&a, 1);
    let sessions = consul.call("GET", "/v1/session/list", "");
    let sessions: serde_json::Value = serde_json::from_str(&sessions).expect("JSON");
    for session in sessions.as_array().expect("a list") {
        assert_eq!(session["Node"], "incumbent", "{session}");
        for checks in ["Checks", "NodeChecks", "ServiceChecks"] {
            assert!(session[checks].as_array().is_none_or(Vec::is_empty), "{session}");
        }
        assert_eq!(
            (&session["LockDelay"], &session["Behavior"]),
            (&0.into(), &"release".into()),
            "{session}"
        );
    }
    let checks = consul.call("GET", "/v1/health/node/incumbent", "");
    assert_eq!(checks, "[]", "nothing watches the node");
}

/// consul_1172: what a lost machine costs is said before it happens.
#[test]
fn consul_1172_doctor_says_what_a_crash_costs() {
    let (status, out, err) = World::new().output(&["doctor", "--on", &SHARED.url(), "--json"]);
    assert_eq!(status, 0, "{out}{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let consequences = answer["consequences"].as_array().expect("a list");
    let crash = consequences.iter().find(|figure| figure["key"] == "crash_failover_max").expect("the figure");
    // Twice the ttl of 15 s by itself, and as long again if the servers change their leader.
    assert!(crash["ms"].as_u64() >= Some(60_000), "{crash}");
}

#[test]
fn a_tls_mismatch_is_fatal_before_the_first_term() {
    let world = World::new();
    let consul = Consul::single().client_auth().start().expect("Consul starts");
    let_in::<Consul>(&world, &consul.url());
    let endpoint = &consul.endpoints()[0];
    let ca = consul.certificates().expect("certificates").ca.display().to_string();
    let other = Certificates::make(&world.path(""));
    for (url, hint) in [
        (format!("consul://{endpoint}"), "use tls=on"),
        (format!("consul://{endpoint}?tls=on&ca={}", other.ca.display()), "check ca="),
        (format!("consul://{endpoint}?tls=on&ca={ca}"), "check cert= and key="),
        (format!("consul://{}?tls=on&ca={ca}", SHARED.endpoints()[0]), "use tls=off"),
    ] {
        refused(&world, &url, hint);
    }
}
