//! The whole run on a real MariaDB: with the fence nobody is charged twice, without it somebody is.

mod script;

use testkit::Mysql;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    let mysql = Mysql::options().start().unwrap();
    script::exactly_once(&["--on", &mysql.url()]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    let mysql = Mysql::options().start().unwrap();
    script::twice(&["--on", &mysql.url()]);
}
