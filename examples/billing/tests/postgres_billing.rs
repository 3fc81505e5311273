//! The whole run on a real PostgreSQL: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Postgres;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let postgres = Postgres::options().start().unwrap();
    script::exactly_once(&["--on", &postgres.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let postgres = Postgres::options().start().unwrap();
    script::twice(&["--on", &postgres.url()]);
}
