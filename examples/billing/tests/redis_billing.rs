//! The whole run on a real Redis: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Redis;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let redis = Redis::single().start().unwrap();
    script::exactly_once(&["--on", &redis.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let redis = Redis::single().start().unwrap();
    script::twice(&["--on", &redis.url()]);
}
