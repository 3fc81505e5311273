//! `resign`, `transfer`, `observe`, `status` and the checkpoint among living candidates.

use testkit::{Proc, Signal, Stream, wait_until};

use crate::harness::{SOON, World, ended, wait_leading, wait_standby};

const ON: &str = "--on=file:store";
const JOB: &str = "echo \"leading $INCUMBENT_TOKEN\"; exec sleep 600";

fn candidate(world: &World, id: &str) -> Proc {
    world.run(&[ON, &format!("--id={id}"), "--ttl=6s", &format!("--advertise={id}:80")], JOB)
}

#[test]
fn status_shows_the_leader_and_who_waits() {
    let world = World::new();
    let a = candidate(&world, "a");
    wait_leading(&a, 1);
    let b = candidate(&world, "b");
    wait_standby(&b);
    let (code, out, err) = world.output(&["status", "billing", ON, "--json"]);
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let leader = &answer["leader"];
    assert_eq!((&leader["id"], &leader["address"]), (&"a".into(), &"a:80".into()), "{out}");
    assert!(a.text(Stream::Out).contains(&leader["token"].to_string()), "{out}");
    let ids: Vec<_> = answer["candidates"].as_array().expect("a list").iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["a", "b"], "{out}");
    assert_eq!(answer["checkpoint_bytes"], serde_json::Value::Null);
    let (code, out, _) = world.output(&["status", "billing", ON]);
    assert_eq!(code, 0);
    assert!(out.contains("leader      a\n") && out.contains("candidates  a, b\n"), "{out}");
}

#[test]
fn a_leader_that_is_asked_resigns_and_stands_by_again() {
    let world = World::new();
    let a = candidate(&world, "a");
    wait_leading(&a, 1);
    let b = candidate(&world, "b");
    wait_standby(&b);
    let (code, out, err) = world.output(&["resign", "billing", ON]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("the term with token "), "{out}");
    wait_leading(&b, 1);
    wait_standby(&a);
    assert!(a.text(Stream::Err).contains("stopping: asked to give up billing"), "{}", a.transcript());
    assert_eq!(a.try_wait(), None, "it stays a candidate");
}

/// With nobody else about, it leads again, after a pause that is told.
#[test]
fn a_leader_that_resigns_alone_says_when_it_campaigns_again() {
    let world = World::new();
    let a = candidate(&world, "a");
    wait_leading(&a, 1);
    assert_eq!(world.output(&["resign", "billing", ON]).0, 0);
    a.wait_line(|line| line.starts_with("released: billing; campaigning again in 2"), SOON);
    wait_leading(&a, 2);
}

#[test]
fn a_transfer_makes_the_named_candidate_the_leader() {
    let world = World::new();
    let a = candidate(&world, "a");
    wait_leading(&a, 1);
    let others = ["b", "c", "d"].map(|id| candidate(&world, id));
    others.iter().for_each(wait_standby);
    let (code, out, err) = world.output(&["transfer", "billing", ON, "--to=d"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("billing is now led by d (token "), "{out}");
    wait_leading(&others[2], 1);
    assert!(a.text(Stream::Err).contains("stopping: asked to hand billing over to d"), "{}", a.transcript());
    let (code, out, err) = world.output(&["transfer", "billing", ON, "--to=nobody"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("no candidate nobody") && err.contains('a') && err.contains('d'), "{err}");
    assert!(err.contains("if that is nobody, try again"), "{err}");
}

/// Whoever has just resigned is no candidate for a while, although his process is there: the answer says what to do.
#[test]
fn a_transfer_back_to_who_has_resigned_succeeds_when_it_is_tried_again_as_told() {
    let world = World::new();
    let a = candidate(&world, "a");
    wait_leading(&a, 1);
    let b = candidate(&world, "b");
    wait_standby(&b);
    assert_eq!(world.output(&["resign", "billing", ON]).0, 0);
    wait_leading(&b, 1);
    let tried = wait_until(SOON, || {
        let (code, _, err) = world.output(&["transfer", "billing", ON, "--to=a"]);
        let paused = err.contains("pauses for up to half its ttl: if that is a, try again");
        assert!(code == 0 || (code == 1 && paused), "{code} {err}");
        code == 0
    });
    assert!(tried);
    wait_leading(&a, 2);
}

#[test]
fn observe_follows_the_leaders() {
    let world = World::new();
    let observer = Proc::spawn(world.incumbent(&["observe", "billing", ON]));
    observer.wait_line(|line| line == "nobody leads billing", SOON);
    let a = candidate(&world, "a");
    observer
        .wait_line(|line| line.starts_with("billing is led by a (token ") && line.contains(" at a:80"), SOON);
    a.signal(Signal::TERM);
    observer.wait_lines(2, |line| line == "nobody leads billing", SOON);
    let events = Proc::spawn(world.incumbent(&["observe", "billing", ON, "--json"]));
    let line = events.wait_line(|_| true, SOON).text;
    let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&event["v"], &event["event"]), (&1.into(), &"observed".into()), "{line}");
}

/// An address (or a foreign client's value) is anybody's bytes: it neither breaks a line nor drives a terminal.
#[test]
fn control_characters_of_others_are_written_out() {
    let world = World::new();
    // A candidate of this release advertises no such address.
    assert_eq!(crate::harness::code(&world.run(&[ON, "--advertise=x"], "cp store/billing.record led")), 0);
    let led = world.read("led").replace("\"x\"", r#""a\u001b[31m\nb""#);
    std::fs::write(world.path("store/billing.record"), led).expect("a file");
    let (_, out, _) = world.output(&["status", "billing", ON]);
    assert!(out.contains("a\\u{1b}[31m\\nb") && !out.contains('\u{1b}'), "{out}");
    let observer = Proc::spawn(world.incumbent(&["observe", "billing", ON]));
    observer.wait_line(|line| line.contains(" at a\\u{1b}[31m\\nb"), SOON);
}

/// A reader that went away is no error and no panic.
#[test]
fn answers_end_quietly_when_nobody_reads() {
    let world = World::new();
    std::fs::create_dir(world.path("store")).expect("a folder");
    let process =
        world.shell("\"$INCUMBENT\" status billing --on=file:store | true; \"$INCUMBENT\" man | true");
    let (code, _, err) = ended(&process);
    assert_eq!((code, err.as_str()), (0, ""));
}

/// `observe … | head -1`: the next thing to tell ends it, instead of being told to nobody for ever.
#[test]
fn observe_ends_when_its_reader_has_gone() {
    let world = World::new();
    std::fs::create_dir(world.path("store")).expect("a folder");
    let process = world.shell("\"$INCUMBENT\" observe billing --on=file:store | head -1");
    process.wait_line(|line| line == "nobody leads billing", SOON);
    // `head` may not be gone before the first term, and a short term may go unseen.
    let terms = (0..20).find(|_| {
        ended(&world.run(&[ON, "--ttl=6s"], "sleep 1"));
        process.try_wait().is_some()
    });
    assert!(terms.is_some(), "{}", process.transcript());
    let (code, _, err) = ended(&process);
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn a_checkpoint_goes_from_one_leader_to_the_next() {
    let world = World::new();
    let run = |script: &str| ended(&world.run(&[ON], script));
    let (code, out, err) = run("\"$INCUMBENT\" checkpoint get; echo $?");
    assert_eq!((code, out.as_str()), (0, "1\n"), "there is none: {err}");
    let (code, _, err) = run("printf 'page 7' | \"$INCUMBENT\" checkpoint put");
    assert_eq!(code, 0, "{err}");
    assert_eq!(run("\"$INCUMBENT\" checkpoint get").1.trim_end(), "page 7");
    let (code, out, err) = run("printf 'page 8' > value; \"$INCUMBENT\" checkpoint put value --json");
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&answer["v"], &answer["bytes"]), (&1.into(), &6.into()), "{out}");
    assert_eq!(world.output(&["checkpoint", "get", "billing", ON]).1.trim_end(), "page 8");
    let (_, out, _) = world.output(&["checkpoint", "get", "billing", ON, "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&answer["text"], &answer["bytes"]), (&"page 8".into(), &6.into()));
    let (code, _, err) = run("head -c 70000 /dev/zero | \"$INCUMBENT\" checkpoint put");
    assert_eq!(code, 125);
    assert!(err.contains("longer than 65536 bytes"), "{err}");
}

/// The late write of a term that is over: refused by the lease file, and by the store where that is not asked.
#[test]
fn a_checkpoint_takes_no_write_of_an_earlier_term() {
    let world = World::new();
    let (_, out, _) =
        ended(&world.run(&[ON], "echo $INCUMBENT_TOKEN; echo one | \"$INCUMBENT\" checkpoint put"));
    let token = out.trim_end();
    ended(&world.run(&[ON], "\"$INCUMBENT\" checkpoint get"));
    for lease_file in [Some("gone.lease"), None] {
        let mut command = world.incumbent(&["checkpoint", "put", ON, "value"]);
        std::fs::write(world.path("value"), "late").expect("a file");
        command.env("INCUMBENT_ELECTION", "billing").env("INCUMBENT_TOKEN", token);
        if let Some(path) = lease_file {
            command.env("INCUMBENT_LEASE_FILE", world.path(path));
        }
        let (code, _, err) = ended(&Proc::spawn(command));
        assert_eq!(code, 1, "{err}");
    }
    assert_eq!(world.output(&["checkpoint", "get", "billing", ON]).1.trim_end(), "one");
}
