//! The whole run on a real ZooKeeper: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Zookeeper;
use testkit::zookeeper::Version;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().unwrap();
    script::exactly_once(&["--on", &zookeeper.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let zookeeper = Zookeeper::single(Version::V3_9).start().unwrap();
    script::twice(&["--on", &zookeeper.url()]);
}
