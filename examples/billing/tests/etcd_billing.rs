//! The whole run on a real etcd: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::{Etcd, Version};

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let etcd = Etcd::single(Version::V3_5).start().unwrap();
    script::exactly_once(&["--on", &etcd.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let etcd = Etcd::single(Version::V3_5).start().unwrap();
    script::twice(&["--on", &etcd.url()]);
}
