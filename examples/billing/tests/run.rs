//! The whole run on the file backend: with the fence nobody is charged twice, without it somebody is.

mod script;

#[test]
fn with_the_fence_everyone_is_charged_exactly_once() {
    script::exactly_once(&[]);
}

#[test]
fn without_the_fence_a_leader_that_wakes_up_charges_twice() {
    script::twice(&[]);
}

#[test]
fn what_it_does_not_understand_it_does_not_run() {
    let (run, status) = script::run(&["--onn", "file:"]);
    assert!(!status.success());
    assert!(run.transcript().contains("usage: "), "{}", run.transcript());
}
