//! `run` with nobody else about: exit codes, what the command finds, what is left of it.

use std::os::unix::fs::PermissionsExt;

use testkit::Proc;

use crate::harness::{SOON, World, code, ended, lives, pid_in};

const ALONE: &[&str] = &["--on=file:store"];

/// consul #1290: the exit code of a command is the command's business.
#[test]
fn the_exit_code_is_the_commands() {
    let world = World::new();
    for wanted in [0, 3, 123, 255] {
        assert_eq!(code(&world.run(ALONE, &format!("exit {wanted}"))), wanted);
    }
    assert_eq!(code(&world.run(ALONE, "kill -9 $$")), 128 + 9);
    assert_eq!(code(&world.run(ALONE, "kill -TERM $$")), 128 + 15);
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_126() {
    let world = World::new();
    let file = |name: &str, text: &str, mode: u32| {
        std::fs::write(world.path(name), text).expect("a file");
        std::fs::set_permissions(world.path(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    file("plain", "#!/bin/sh\n", 0o644);
    file("lost", "#!/no/such/interpreter\n", 0o755);
    for (command, wanted, hint) in [
        ("no-such-command", 127, "there is no command no-such-command"),
        ("./no/such/command", 127, "there is no command"),
        ("./plain", 126, "cannot be executed"),
        (".", 126, "cannot be executed"),
        ("./lost", 126, "interpreter"),
    ] {
        let (code, _, err) = world.output(&["run", "billing", "--on=file:store", "--", command]);
        assert_eq!(code, wanted, "{command}: {err}");
        assert!(err.contains(hint), "{command}: {err}");
    }
}

/// consul #985: no shell stands between, so arguments arrive as they are.
#[test]
fn arguments_and_streams_are_the_commands_own() {
    let world = World::new();
    let arguments =
        ["run", "billing", "--on=file:store", "--", "printf", "%s|", "a b", "$HOME", "*", "", "--help"];
    let (code, out, err) = world.output(&arguments);
    assert_eq!((code, out.trim_end()), (0, "a b|$HOME|*||--help|"), "{err}");

    let mut process =
        Proc::spawn_with_stdin(world.incumbent(&["run", "billing", "--on=file:store", "--", "cat"]));
    std::io::Write::write_all(&mut process.stdin().expect("a pipe"), b"through\n").expect("written");
    let (code, out, _) = ended(&process);
    assert_eq!((code, out.as_str()), (0, "through\n"));
}

#[test]
fn the_command_finds_its_term_in_the_environment() {
    let world = World::new();
    let script = r#"echo "$INCUMBENT_ELECTION $INCUMBENT_ID $INCUMBENT_TOKEN $INCUMBENT_ON $INCUMBENT_AUTHORITY"; ls "$INCUMBENT_LEASE_FILE""#;
    let (code, out, err) = ended(&world.run(&["--on=file:store", "--id=pod-7"], script));
    assert_eq!(code, 0, "{err}");
    let mut lines = out.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let url = format!("file:{}", world.path("store").display());
    assert_eq!(
        (words[0], words[1], words[3]),
        ("billing", "pod-7", url.as_str()),
        "a path of its own wherever the job goes"
    );
    assert!(words[2].parse::<u64>().is_ok(), "{out}");
    assert!(words[4].starts_with("file:"), "a fence compares who issued the token: {out}");
    let lease_file = std::path::Path::new(lines.next().unwrap_or_default());
    assert!(lease_file.is_absolute() && lease_file.extension().is_some_and(|kind| kind == "lease"), "{out}");
    assert!(!lease_file.starts_with(world.path("")), "the environment moves it: {out}");
    assert!(!lease_file.exists(), "the lease file goes with its term");
}

#[test]
fn the_id_is_the_pods_name_where_there_is_one() {
    let world = World::new();
    let mut command =
        world.incumbent(&["run", "billing", "--on=file:store", "--", "sh", "-c", "echo $INCUMBENT_ID"]);
    command.env("POD_NAME", "billing-0");
    assert_eq!(ended(&Proc::spawn(command)).1, "billing-0\n");
    let (_, out, _) = ended(&world.run(ALONE, "echo $INCUMBENT_ID"));
    assert!(out.trim().rsplit_once(':').is_some_and(|(_, pid)| pid.parse::<u32>().is_ok()), "{out}");
}

/// etcd E3, consul #9788: what a command leaves behind does not outlive its term.
#[test]
fn what_the_command_leaves_is_dead_before_the_end() {
    let world = World::new();
    let script = "sleep 600 & echo $! > child; setsid sh -c 'echo $$ > orphan; exec sleep 600' & \
                  until [ -s orphan ]; do sleep 0.01; done; exit 4";
    let process = world.run(ALONE, script);
    assert_eq!(code(&process), 4);
    for name in ["child", "orphan"] {
        let pid = pid_in(&world.path(name));
        assert!(!lives(pid), "{name} {pid} lives on");
    }
}

#[test]
fn a_command_that_closes_its_streams_is_still_led() {
    let world = World::new();
    let script = "exec </dev/null >/dev/null 2>&1 <&- >&- 2>&-; sleep 0.3; exit 5";
    assert_eq!(code(&world.run(ALONE, script)), 5);
}

#[test]
fn what_is_told_on_stderr_is_a_story_in_words() {
    let world = World::new();
    let (_, out, err) = ended(&world.run(&["--on=file:store", "--id=web-1"], "exit 3"));
    assert_eq!(out, "", "stdout is the command's");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert!(lines[0].starts_with("leader: web-1 leads billing (token "), "{err}");
    assert_eq!(&lines[1..], ["ended: sh exited with 3", "released: billing"]);
    let (_, _, err) = ended(&world.run(&["--on=file:store", "-q"], "exit 3"));
    assert_eq!(err, "", "-q tells only of warnings and errors");
}

#[test]
fn what_is_told_as_json_is_a_story_in_events() {
    let world = World::new();
    let (_, _, err) = ended(&world.run(&["--on=file:store", "--id=web-1", "--json", "-v"], "exit 3"));
    let events: Vec<serde_json::Value> =
        err.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().expect("a name")).collect();
    assert_eq!(names, ["campaigning", "elected", "started", "exited", "ended"], "{err}");
    for event in &events {
        assert_eq!(
            (&event["v"], &event["election"], &event["id"]),
            (&1.into(), &"billing".into(), &"web-1".into())
        );
    }
    assert!(events[1]["token"].is_u64() && events[1]["valid_ms"].as_u64() > Some(0), "{err}");
    assert_eq!(events[3]["code"], 3);
    assert_eq!((&events[4]["exit_code"], &events[4]["released"]), (&3.into(), &true.into()));
}

/// A terminal that is stopped, or a pipe that nobody reads, must not keep a lease from being renewed.
#[test]
fn a_stderr_that_nobody_reads_blocks_nothing() {
    let world = World::new();
    // The pipe is full before anything is told, and stays so: head writes what it holds, or hangs because it holds less.
    let process = world.shell(
        "mkfifo full; exec 3<>full; timeout 3 head -c 65536 /dev/zero >&3; \
         exec \"$INCUMBENT\" run billing --on=file:store --ttl=4s -vv -- \
         sh -c 'sleep 8; \"$INCUMBENT\" check && echo good > verdict' 2>&3",
    );
    assert!(testkit::wait_until(SOON, || world.read("verdict") == "good\n"), "the term was lost");
    assert_eq!(code(&process), 0);
}

#[test]
fn restart_runs_the_command_again_under_higher_tokens() {
    let world = World::new();
    let process = world.run(&["--on=file:store", "--restart"], "echo $INCUMBENT_TOKEN; exit 9");
    let lines = process.wait_lines(3, |line| line.parse::<u64>().is_ok(), SOON);
    let tokens: Vec<u64> = lines.iter().map(|line| line.text.parse().expect("a token")).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let pauses: Vec<_> = lines.windows(2).map(|pair| pair[1].at.since(pair[0].at)).collect();
    assert!(pauses[0] >= std::time::Duration::from_millis(500), "{pauses:?}");
    assert!(pauses[1] >= std::time::Duration::from_millis(1000), "{pauses:?}");
    process.wait_lines(3, |line| line.starts_with("restart:"), SOON);
    process.signal(testkit::Signal::TERM);
    let (code, _, err) = ended(&process);
    assert_eq!(code, 0, "told to stop while no command ran");
    assert!(err.ends_with("released: billing\n"), "the term was given back: {err}");
}

#[test]
fn a_stop_between_two_runs_says_that_nothing_is_held() {
    let world = World::new();
    let process = world.run(&["--on=file:store", "--restart", "--json"], "exit 9");
    process.wait_lines(2, |line| line.contains("\"event\":\"pause\""), SOON);
    process.signal(testkit::Signal::TERM);
    let (code, _, err) = ended(&process);
    let last: serde_json::Value =
        serde_json::from_str(err.lines().last().unwrap_or_default()).expect("a line of JSON");
    assert_eq!(code, 0, "{err}");
    assert_eq!((&last["event"], &last["released"]), (&"ended".into(), &true.into()), "{err}");
    assert_eq!(last["lease_left_ms"], serde_json::Value::Null, "{err}");
}

/// The end does not outrun what it must tidy up.
#[test]
fn a_clean_end_leaves_no_liveness_file() {
    let world = World::new();
    for round in 0..20 {
        assert_eq!(code(&world.run(ALONE, "exit 0")), 0);
        let left: Vec<_> = std::fs::read_dir(world.path("store"))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .filter(|name| name.ends_with(".alive"))
            .collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}

/// Someone else keeps the lock of the record while the term is to be given back: what is said of it is what happens.
#[test]
fn a_release_that_fails_is_told_with_what_follows() {
    let world = World::new();
    let process = world.run(&["--on=file:store", "--ttl=4s"], "echo ready; exec sleep 600");
    process.wait_line(|line| line == "ready", SOON);
    let other = world.shell("exec flock store/billing.lock sh -c 'echo locked; exec sleep 600'");
    other.wait_line(|line| line == "locked", SOON);
    process.signal(testkit::Signal::TERM);
    let (code, _, err) = ended(&process);
    assert_eq!(code, 128 + 15, "{err}");
    assert!(err.contains("billing.lock for 500 ms") && err.contains("; trying again for "), "{err}");
    let last = err.lines().last().unwrap_or_default();
    assert!(last.starts_with("warning: billing could not be released; its lease "), "{err}");
}

/// As a service's user may be: it could not run at all, and learnt it when it had won. The state directory is only the last choice.
#[test]
fn a_user_without_a_home_runs_where_another_folder_takes_the_lease_file() {
    let world = World::new();
    let store = world.path("store");
    std::fs::create_dir(&store).expect("a folder");
    let mut script =
        "exec env -i PATH=\"$PATH\" \"$INCUMBENT\" run billing --on=file:store -- sh -c 'echo led'"
            .to_owned();
    if testkit::probe::is_root() {
        // For root the last choice needs no HOME.
        script = format!(
            "chmod 777 . store; {}",
            script.replace("exec ", "exec setpriv --reuid=65534 --regid=65534 --clear-groups ")
        );
    }
    let (code, out, err) = ended(&world.shell(&script));
    assert_eq!((code, out.trim()), (0, "led"), "{err}");
}
