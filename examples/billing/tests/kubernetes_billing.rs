//! The whole run on a real Kubernetes API server: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Kubernetes;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let server = Kubernetes::start().unwrap();
    script::exactly_once(&["--on", &server.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let server = Kubernetes::start().unwrap();
    script::twice(&["--on", &server.url()]);
}
