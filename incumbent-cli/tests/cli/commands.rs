//! The commands that ask a store.

use testkit::{Proc, Signal};

use crate::harness::{SOON, World};

#[test]
fn status_of_an_election_that_nobody_leads_is_a_no() {
    let world = World::new();
    let (code, out, _) = world.output(&["status", "billing", "--on=memory:"]);
    assert_eq!(code, 1);
    assert!(out.contains("leader      nobody"), "{out}");
    let (code, out, _) = world.output(&["status", "billing", "--on=memory:", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["leader"]), (1, &serde_json::Value::Null));
}

/// Whoever only looks makes no directory: it may be one with a typing error.
#[test]
fn looking_makes_no_directory() {
    let world = World::new();
    std::fs::create_dir(world.path("empty")).expect("a folder");
    let looking = |on: &str| {
        let on = format!("--on=file:{on}");
        for (arguments, wanted) in [
            (&["status", "billing"][..], 1),
            (&["resign", "billing"], 1),
            (&["transfer", "billing", "--to=b"], 1),
            (&["checkpoint", "get", "billing"], 1),
            (&["doctor"], 0),
            (&["doctor", "billing"], 0),
        ] {
            let (code, out, err) = world.output(&[arguments, &[&on]].concat());
            assert_eq!(code, wanted, "{arguments:?}: {out}{err}");
            let told = out + &err;
            assert_eq!(told.contains("there is no directory"), on.ends_with("typo/er"), "{told}");
        }
        // In a job it would raise a token there.
        let mut command = world.incumbent(&["checkpoint", "get", &on]);
        command.env("INCUMBENT_ELECTION", "billing").env("INCUMBENT_TOKEN", "7");
        let (_, out, _) = crate::harness::ended(&Proc::spawn(command));
        assert_eq!(out, "");
        let observer = Proc::spawn(world.incumbent(&["observe", "billing", &on]));
        observer.wait_line(|line| line == "nobody leads billing", SOON);
        observer
    };
    looking("empty").signal(Signal::KILL);
    let observer = looking("typo/er");
    assert!(!world.path("typo").exists());
    // The first candidate makes it, and is seen by who looked before.
    let (code, _, err) = world.output(&["run", "billing", "--on=file:typo/er", "--id=a", "--", "sleep", "1"]);
    assert_eq!(code, 0, "{err}");
    observer.wait_line(|line| line.starts_with("billing is led by a (token "), SOON);
    observer.signal(Signal::KILL);
}

/// As `observe … | head -1`: it ended with the next event, which may be far.
#[test]
fn observe_ends_when_nobody_reads_it_any_more() {
    let world = World::new();
    for options in ["", " --json"] {
        let script = format!(
            "{{ \"$INCUMBENT\" observe billing --on=file:store{options}; echo \"ended $?\" >&2; }} | head -c1 >/dev/null"
        );
        let process = world.shell(&script);
        process.wait_line(|line| line == "ended 0", SOON);
    }
    // A file is read later.
    let observer = world.shell("exec \"$INCUMBENT\" observe billing --on=file:store > seen");
    assert!(testkit::wait_until(SOON, || !world.read("seen").is_empty()));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(observer.try_wait(), None);
    observer.signal(Signal::KILL);
}

/// It does not end, so its message is no error.
#[test]
fn observe_says_that_it_tries_again() {
    let port = testkit::Port::reserve();
    let url = format!("--on=etcd://{}?tls=off", port.addr());
    let observer = Proc::spawn(World::new().incumbent(&["observe", "billing", &url]));
    let told = observer.wait_line(|line| line.contains("cannot connect"), SOON).text;
    assert!(told.starts_with("warning: etcd at ") && told.ends_with("; trying again"), "{told}");
    assert_eq!(observer.try_wait(), None);
    observer.signal(Signal::KILL);
}

#[test]
fn nobody_can_be_asked_to_go_where_nobody_leads() {
    let world = World::new();
    for arguments in
        [&["resign", "billing", "--on=memory:"][..], &["transfer", "billing", "--on=memory:", "--to=b"]]
    {
        let (code, _, err) = world.output(arguments);
        assert_eq!(code, 1);
        assert!(err.contains("nobody leads billing"), "{err}");
    }
}

#[test]
fn a_checkpoint_is_written_in_a_job_only() {
    let world = World::new();
    let (code, _, err) = world.output(&["checkpoint", "put", "--on=memory:"]);
    assert_eq!(code, 125);
    assert!(err.contains("only in a command that incumbent run started"), "{err}");
    let (code, out, _) = world.output(&["checkpoint", "get", "billing", "--on=memory:"]);
    assert_eq!((code, out.as_str()), (1, ""), "there is none");
}

#[test]
fn the_registry_is_what_backends_lists() {
    let world = World::new();
    let (code, out, _) = world.output(&["backends"]);
    assert_eq!(code, 0);
    assert!(out.contains("memory:"), "{out}");
    let (_, json, _) = world.output(&["backends", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let schemes = answer["backends"].as_array().expect("a list");
    assert_eq!(schemes[0]["guarantees"]["ttl_min_ms"], 500, "names carry their unit");
    let (_, markdown, _) = world.output(&["backends", "--markdown"]);
    assert_eq!(markdown.lines().count(), schemes.len() + 2, "{markdown}");
}

#[test]
fn doctor_shows_what_is_in_force_and_what_follows() {
    let world = World::new();
    let (code, out, _) = world.output(&["doctor", "--on=memory:?ttl=6s", "--grace=1s", "--json"]);
    assert_eq!(code, 0, "{out}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let setting = |name: &str| {
        let settings = answer["settings"].as_array().expect("a list");
        let found = settings.iter().find(|setting| setting["name"] == name).expect("the setting");
        (found["value"].as_str().expect("text").to_owned(), found["from"].as_str().expect("text").to_owned())
    };
    assert_eq!(setting("ttl"), ("6 s".into(), "backend URL".into()));
    assert_eq!(setting("grace"), ("1 s".into(), "flag".into()));
    assert_eq!(setting("backend").1, "flag");
    let figure = |name: &str| {
        let figures = answer["consequences"].as_array().expect("a list");
        figures.iter().find(|figure| figure["name"] == name).expect("the figure")["ms"].as_u64().expect("ms")
    };
    assert_eq!(figure("a lease is renewed every"), 2000);
    // 6 s less drift (6 ms), margin (600 ms) and grace (1 s).
    assert_eq!(figure("without a renewal, the command is told to stop after"), 4394);
    assert!(figure("fail-over after a crash, at most") >= 6000);
    let (_, out, _) = world.output(&["doctor", "--on=memory:", "--ttl=20s"]);
    assert!(out.contains("ttl          20 s") && out.contains("a lease is renewed every"), "{out}");
}

#[test]
fn doctor_says_no_where_run_would_fail() {
    let world = World::new();
    for arguments in [&["doctor", "--on=memory:", "--grace=14s"][..], &["doctor", "--on=nosuch:"]] {
        let (code, out, _) = world.output(arguments);
        assert_eq!(code, 1, "{out}");
        assert!(out.contains("WRONG"), "{out}");
    }
}
