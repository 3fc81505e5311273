//! The whole run on a real NATS: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::{Nats, NatsVersion};

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let nats = Nats::single(NatsVersion::V2_10).start().unwrap();
    script::exactly_once(&["--on", &nats.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let nats = Nats::single(NatsVersion::V2_10).start().unwrap();
    script::twice(&["--on", &nats.url()]);
}
