//! Getting in to a real Consul, or not: ACL tokens, and servers that are none.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use testkit::{Consul, Signal, Stream};

use harness::{SOON, World, ended, wait_leading, wait_standby};

const TTL: &str = "--ttl=5s";
const KEY: &str = "billing/.lock";
const JOB: &str = "echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";

fn consul() -> Consul {
    Consul::single().start().expect("Consul starts")
}

/// A server that is none: it answers every connection with `answer`, after it has read something; or never, without one.
fn impostor(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for mut connection in listener.incoming().flatten() {
            match answer {
                Some(answer) => {
                    let _ = connection.read(&mut [0; 4096]);
                    let _ = connection.write_all(answer.as_bytes());
                }
                None => silent.push(connection),
            }
        }
    });
    addr
}

/// k8s_44887 and its like: the first of two servers takes connections and never answers.
#[test]
fn a_silent_server_beside_a_good_one_costs_no_term() {
    let (world, consul) = (World::new(), consul());
    let url = format!("consul://{},{}", impostor(None), consul.endpoints()[0]);
    let a = world.run(&["--on", &url, "--id=a", TTL], JOB);
    wait_leading(&a, 1);
    std::thread::sleep(Duration::from_secs(7));
    assert!(!a.text(Stream::Err).contains("lost: "), "{}", a.transcript());
}

#[test]
fn a_server_that_is_none_is_told_of_and_asked_again() {
    let world = World::new();
    for (answer, hint) in [
        (None, "no answer"),
        (Some("SSH-2.0-OpenSSH_9.2\r\n"), "no answer that can be understood"),
        (Some("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), "is this Consul's HTTP address?"),
        (
            Some("HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nContent-Length: 5\r\n\r\nhello"),
            "is this Consul's HTTP address?",
        ),
        (Some("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops"), "502 Bad Gateway"),
    ] {
        let a = world.run(&["--on", &format!("consul://{}", impostor(answer)), TTL], JOB);
        let line = a.wait_line(|line| line.starts_with("warning: "), SOON);
        assert!(
            line.text.contains(hint) && line.text.ends_with("; trying again"),
            "{hint}: {}",
            a.transcript()
        );
        assert_eq!(a.try_wait(), None);
    }
    let a = world.run(&["--on", "consul://no.such.host.invalid?tls=off", TTL], JOB);
    a.wait_line(|line| line.starts_with("warning: ") && line.contains("no.such.host.invalid"), SOON);
}

/// One who speaks HTTP, but is no Consul.
#[test]
fn another_web_server_is_refused() {
    let world = World::new();
    let url = format!("consul://{}", impostor(Some("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")));
    let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("is this Consul's HTTP address?"), "{err}");
}

/// A ttl that the servers do not keep, as they are set.
#[test]
fn a_ttl_below_what_the_servers_keep_is_fatal_before_the_first_term() {
    let (world, consul) = (World::new(), consul());
    let url = consul.url();
    let (status, out, err) = ended(&world.run(&["--on", &url, "--ttl=500ms"], JOB));
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("raise ttl"), "{err}");
}

/// The token may do what the documentation says, and no more.
#[test]
fn the_smallest_rights_suffice_and_the_missing_one_is_named() {
    let (world, consul) = (World::new(), Consul::single().acl().start().expect("Consul starts"));
    let keys = "key_prefix \"team/\" { policy = \"write\" }";
    let session = "session \"incumbent\" { policy = \"write\" }";
    let node = "node \"incumbent\" { policy = \"write\" }";
    let url = |name: &str, token: &str| {
        let path = world.path(name);
        std::fs::write(&path, format!("{token}\n")).expect("a file");
        format!("{}/team?token_file={}", consul.url(), path.display())
    };
    let refused = |url: &str, right: &str| {
        let (status, out, err) = ended(&world.run(&["--on", url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{err}");
        assert!(err.contains(right), "{right} is not named: {err}");
    };
    refused(&format!("{}/team", consul.url()), "key:");
    refused(&url("unknown", "00000000-0000-0000-0000-000000000001"), "token_file=");
    let no_session = consul.token("no-session", keys);
    refused(&url("no-session", &no_session), "session:write on \"incumbent\"");
    let no_node = consul.token("no-node", &format!("{keys}\n{session}"));
    refused(&url("no-node", &no_node), "node:write on \"incumbent\"");
    let no_keys =
        consul.token("no-keys", &format!("{session}\n{node}\nkey_prefix \"team/\" {{ policy = \"read\" }}"));
    refused(&url("no-keys", &no_keys), "key:write on \"team/billing/.lock\"");
    let all = consul.token("all", &format!("{keys}\n{session}\n{node}"));
    let a = world.run(&["--on", &url("all", &all), "--id=a", TTL], JOB);
    wait_leading(&a, 1);
    // The node is there now, so that the right to make it is needed no longer.
    let b = world.run(&["--on", &url("no-node", &no_node), "--id=b", TTL], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
    for process in [&a, &b] {
        assert!(!process.transcript().contains(&all) && !process.transcript().contains(&no_node));
    }
}

/// The file is read again after the token in it was refused.
#[test]
fn a_token_that_was_renewed_in_its_file_is_used() {
    let (world, consul) = (World::new(), Consul::single().acl().start().expect("Consul starts"));
    let rules = "key_prefix \"\" { policy = \"write\" }\nsession_prefix \"\" { policy = \"write\" }\n\
                 node_prefix \"\" { policy = \"write\" }";
    let old = consul.token("old", rules);
    let new = consul.token("new", rules);
    let path = world.path("token");
    std::fs::write(&path, &old).expect("a file");
    let url = format!("{}?token_file={}", consul.url(), path.display());
    let a = world.run(&["--on", &url, "--id=a", TTL], JOB);
    wait_leading(&a, 1);
    std::fs::write(&path, &new).expect("a file");
    let tokens: serde_json::Value =
        serde_json::from_str(&consul.call("GET", "/v1/acl/tokens", "")).expect("JSON");
    let tokens = tokens.as_array().expect("a list");
    let named = |token: &&serde_json::Value| token["Policies"][0]["Name"] == "old";
    let accessor =
        tokens.iter().find(named).and_then(|token| token["AccessorID"].as_str()).expect("the token");
    consul.call("DELETE", &format!("/v1/acl/token/{accessor}"), "");
    let session = consul.holder(KEY).expect("a leads");
    let moved = || consul.holder(KEY).is_some_and(|now| now != session);
    assert!(testkit::wait_until(SOON, moved));
    std::thread::sleep(Duration::from_secs(6));
    assert!(!a.text(Stream::Err).contains("lost: "), "{}", a.transcript());
    assert!(!a.transcript().contains(&old) && !a.transcript().contains(&new));
}

#[test]
fn a_token_in_the_url_is_not_shown_and_warned_of() {
    let (world, consul) = (World::new(), Consul::single().acl().start().expect("Consul starts"));
    let token = consul.token("all", "key_prefix \"\" { policy = \"write\" }");
    let url = format!("{}?token={token}", consul.url());
    let (_, out, err) = world.output(&["status", "billing", "--on", &url]);
    assert!(err.contains("in --on can be read by every user"), "{err}");
    assert!(!out.contains(&token) && !err.contains(&token), "{out}{err}");
    let (_, out, err) = world.output(&["doctor", "--on", &url]);
    assert!(!out.contains(&token) && !err.contains(&token), "{out}{err}");
}
