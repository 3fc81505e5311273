//! Wrong usage and settings that cannot work: a clear answer at once, and the right exit code.

use crate::harness::{World, ended};

/// Exit code and stderr of `incumbent ARGUMENTS`.
fn refused(arguments: &[&str]) -> (i32, String) {
    let (code, out, err) = World::new().output(arguments);
    assert_eq!(out, "", "an error belongs on stderr");
    (code, err)
}

#[test]
fn names_that_no_store_could_keep_are_refused_with_the_rule() {
    let huge = "x".repeat(129);
    for name in ["", "a/b", "a b", "bücher", "-a", ".a", huge.as_str()] {
        for command in
            [&["status", "--on=memory:", "--", name][..], &["run", "--on=memory:", name, "--", "true"]]
        {
            // A leading dash is an option to the parser.
            if command[0] == "run" && name.starts_with('-') {
                continue;
            }
            let (code, err) = refused(command);
            assert_eq!(code, 2, "{name:?}: {err}");
            assert!(err.contains("a name is 1 to 128 of A-Z a-z 0-9 . _ -"), "{err}");
            assert_eq!(err.matches("invalid").count(), 1, "said twice: {err}");
        }
    }
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &["run"][..],
        &["run", "billing", "--on=memory:"],
        &["run", "billing", "--on=memory:", "--"],
        &["run", "billing", "--on=memory:", "--no-wait", "--wait-timeout=1s", "--", "true"],
        &["run", "billing", "--on=memory:", "--ttl=soon", "--", "true"],
        &["run", "billing", "--on=memory:", "--drain=-1s", "--", "true"],
        &["run", "billing", "--on=memory:", "--id=", "--", "true"],
        &["transfer", "billing", "--on=memory:"],
        &["status", "billing", "--on=memory:", "--ttl=3s"],
        &["observe", "billing", "--on=memory:", "--ttl=3s"],
        &["completions", "cobol"],
        &["man", "cobol"],
        &["cobol"],
    ] {
        let (code, err) = refused(arguments);
        assert_eq!(code, 2, "{arguments:?}: {err}");
    }
}

#[test]
fn an_address_that_would_break_a_line_is_refused_with_the_rule() {
    let huge = "x".repeat(513);
    for address in ["", " ", "10.0.0.7 8080", "a\nb", "a\u{1b}[31m", "a\u{a0}b", huge.as_str()] {
        let address = format!("--advertise={address}");
        let (code, err) = refused(&["run", "billing", "--on=memory:", &address, "--", "true"]);
        assert_eq!(code, 2, "{address:?}: {err}");
        assert!(err.contains("an address is 1 to 512 bytes without spaces and control characters"), "{err}");
    }
    let world = World::new();
    let address = format!("--advertise=[::1]:80/ä{}", &huge[..500]);
    assert_eq!(world.output(&["run", "billing", "--on=file:store", &address, "--", "true"]).0, 0);
}

#[test]
fn a_command_that_is_empty_is_called_so() {
    let (code, err) = refused(&["run", "billing", "--on=memory:", "--", ""]);
    assert_eq!((code, err.as_str()), (127, "error: the command is empty\n"));
}

#[test]
fn an_unknown_scheme_names_the_known_ones() {
    for command in
        [&["run", "billing", "--on=etdc://h", "--", "true"][..], &["status", "billing", "--on=etdc://h"]]
    {
        let (code, err) = refused(command);
        assert_eq!(code, 125);
        assert!(err.contains("no backend is called \"etdc\"") && err.contains("memory"), "{err}");
        assert!(err.contains("did you mean etcd:?"), "{err}");
    }
    for url in ["http://10.0.0.1:2379", "10.0.0.1:2379", "db-1:2379/prefix"] {
        let (code, err) = refused(&["status", "billing", "--on", url]);
        assert_eq!(code, 125, "{url}");
        assert!(err.contains("the scheme names the kind of store, as in etcd://"), "{url}: {err}");
    }
}

#[test]
fn a_wrong_url_says_what_is_wrong_with_it() {
    for (url, hint) in [
        ("billing", "has no scheme"),
        ("memory:?tttl=3s", "did you mean ttl?"),
        ("memory:?ttl=3", "write a whole number with ms, s, m or h"),
        ("memory://host", "has no host"),
    ] {
        let (code, err) = refused(&["run", "billing", "--on", url, "--", "true"]);
        assert_eq!(code, 125, "{url}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn intervals_that_do_not_fit_are_refused_with_the_arithmetic() {
    let (code, err) = refused(&["run", "billing", "--on=memory:", "--grace=14s", "--", "true"]);
    assert_eq!(code, 125);
    assert!(
        err.contains("renew interval 5 s + retry 3 s + grace 14 s") && err.contains("less than ttl 15 s"),
        "{err}"
    );
    let (_, err) = refused(&["run", "billing", "--on=memory:", "--ttl=5s", "--grace=6s", "--", "true"]);
    assert!(err.contains("renew interval 1.67 s + retry 1 s + grace 6 s"), "{err}");
    assert!(err.trim_end().ends_with("raise ttl or lower grace"), "there is no --margin: {err}");
    let (_, err) = refused(&["run", "billing", "--on=memory:", "--ttl=9999999h", "--", "true"]);
    assert!(err.contains("ttl 9999999 h is above the longest allowed, 24 h"), "{err}");
    let (code, err) = refused(&["run", "billing", "--on=memory:", "--ttl=10ms", "--", "true"]);
    assert_eq!(code, 125);
    assert!(err.contains("ttl 10 ms is below the shortest that this backend can keep, "), "{err}");
}

#[test]
fn a_store_that_never_answered_is_not_said_to_answer_again() {
    let on = "--on=etcd://127.0.0.1:1";
    let (code, err) = refused(&["run", "billing", on, "--wait-timeout=1s", "--", "true"]);
    assert_eq!(code, 124, "{err}");
    assert!(err.contains("warning: ") && err.contains("billing was not won within 1 s"), "{err}");
    assert!(!err.contains("answers again"), "{err}");
}

#[test]
fn errors_are_events_where_json_is_asked_for() {
    let (code, err) = refused(&["run", "billing", "--on=etdc:", "--json", "--", "true"]);
    assert_eq!(code, 125);
    let event: serde_json::Value = serde_json::from_str(&err).expect("one line of JSON");
    assert_eq!(event["kind"], "unknown_scheme", "{err}");
    assert_eq!((&event["v"], &event["event"]), (&1.into(), &"error".into()), "{err}");
    assert!(event["id"].as_str().is_some_and(|id| id.contains(':')), "host and process: {err}");
}

#[test]
fn check_outside_of_a_job_is_an_error_also_as_an_event() {
    let (code, err) = refused(&["check", "--json"]);
    assert_eq!(code, 125);
    let event: serde_json::Value = serde_json::from_str(&err).expect("one line of JSON");
    assert_eq!(event["event"], "error", "{err}");
}

/// Behind `--on=` a shell leaves it as it is.
#[test]
fn a_tilde_is_no_folder() {
    let world = World::new();
    let (code, _, err) = world.output(&["run", "billing", "--on=file:~/state", "--", "true"]);
    assert_eq!(code, 125, "{err}");
    assert!(err.contains("write the path in full") && !world.path("~").exists(), "{err}");
}

#[test]
fn a_password_in_on_warns_and_is_never_shown() {
    let (code, err) = refused(&["run", "billing", "--on=nosuch://me:hunter2@h", "--", "true"]);
    assert_eq!(code, 125);
    assert!(err.contains("the password in --on can be read by every user"), "{err}");
    assert!(!err.contains("hunter2"), "{err}");
    let (_, err) = refused(&["status", "--on=etcd://127.0.0.1:99999", "billing"]);
    assert!(err.contains("a port of 1 to 65535") && !err.contains("password"), "{err}");
    // From the environment it is nobody else's to read.
    let world = World::new();
    let mut command = world.incumbent(&["run", "billing", "--", "true"]);
    command.env("INCUMBENT_ON", "nosuch://me:hunter2@h");
    let (_, _, err) = crate::harness::ended(&testkit::Proc::spawn(command));
    assert!(!err.contains("password") && !err.contains("hunter2"), "{err}");
}

#[test]
fn in_a_pod_nothing_runs_on_the_embedded_default() {
    let world = World::new();
    for arguments in [&["run", "billing", "--", "true"][..], &["status", "billing"]] {
        let mut command = world.incumbent(arguments);
        command.env("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        let (code, _, err) = crate::harness::ended(&testkit::Proc::spawn(command));
        assert_eq!(code, 125);
        assert!(err.contains("Kubernetes Pod") && err.contains("--on"), "{err}");
    }
}

/// It panicked with few, and with some more it won terms that it could not begin.
#[test]
fn a_limit_of_open_files_that_is_too_low_is_told_before_anything_begins() {
    for limit in [14, 20, 28, 40] {
        let world = World::new();
        let script =
            format!("ulimit -n {limit}; exec \"$INCUMBENT\" run billing --on=file:store -- echo led");
        let (code, out, err) = ended(&world.shell(&script));
        assert_eq!((code, out.as_str()), (125, ""), "{limit}: {err}");
        assert!(err.contains("raise the limit of open files") && !err.contains("panicked"), "{limit}: {err}");
        assert!(!world.path("store").exists(), "{limit}");
    }
}
