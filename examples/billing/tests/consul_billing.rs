//! The whole run on a real Consul: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Consul;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let consul = Consul::single().start().unwrap();
    script::exactly_once(&["--on", &consul.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let consul = Consul::single().start().unwrap();
    script::twice(&["--on", &consul.url()]);
}
