//! The command on three Consul servers, some of which die.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use testkit::{Consul, Proc, Stream};

use harness::{SOON, World};

const KEY: &str = "billing/.lock";
const JOB: &str = "echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";

fn candidate(world: &World, consul: &Consul, id: &str) -> Proc {
    world.run(&["--on", &consul.url(), &format!("--id={id}"), "--ttl=10s"], JOB)
}

fn is_leading(line: &str) -> bool {
    line.starts_with("leading ")
}

#[track_caller]
fn still_renewed(a: &Proc, consul: &Consul) {
    let session = consul.holder(KEY).expect("a leads");
    let moved = || consul.holder(KEY).is_some_and(|now| now != session);
    assert!(testkit::wait_until(SOON, moved), "it is not renewed any more; {}", a.transcript());
    assert!(!a.text(Stream::Err).contains("lost: "), "{}", a.transcript());
}

/// consul_6793: the servers remove a dead one by themselves, and with it went the sessions on its node.
#[test]
fn consul_6793_a_server_that_dies_and_is_removed_costs_no_term() {
    let (world, mut consul) = (World::new(), Consul::cluster(3).start().expect("Consul starts"));
    let a = candidate(&world, &consul, "a");
    a.wait_line(is_leading, SOON);
    let follower = (0..3).find(|i| *i != consul.leader_index()).expect("a follower");
    consul.kill(follower);
    let name = format!("\"n{follower}\"");
    let removed = || !consul.call("GET", "/v1/catalog/nodes", "").contains(&name);
    assert!(testkit::wait_until(Duration::from_secs(90), removed), "the dead server is not removed");
    still_renewed(&a, &consul);
}

/// Its successor gives every session its whole time again.
#[test]
fn a_leading_server_that_is_killed_or_frozen_costs_no_term() {
    let (world, mut consul) = (World::new(), Consul::cluster(3).start().expect("Consul starts"));
    let a = candidate(&world, &consul, "a");
    a.wait_line(is_leading, SOON);
    let leader = consul.leader_index();
    consul.kill(leader);
    assert_ne!(consul.leader_index(), leader);
    still_renewed(&a, &consul);
    consul.restart(leader);
    let leader = consul.leader_index();
    consul.pause(leader);
    still_renewed(&a, &consul);
    consul.resume(leader);
    consul.wait_ready();
    still_renewed(&a, &consul);
}
