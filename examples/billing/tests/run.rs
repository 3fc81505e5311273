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
    for (args, answer) in [(["--onn", "file:"], "usage: "), (["--on", "files:"], "no backend is called")] {
        let (run, status) = script::run(&args);
        assert!(!status.success());
        assert!(run.transcript().contains(answer), "{}", run.transcript());
    }
}
