//! What a job sees of its term: the lease file and `check`.

use testkit::Proc;

use crate::harness::{World, code, ended};

#[test]
fn check_says_yes_in_a_term() {
    let world = World::new();
    assert_eq!(code(&world.run(&["--on=file:store"], "\"$INCUMBENT\" check")), 0);
    assert_eq!(code(&world.run(&["--on=file:store"], "\"$INCUMBENT\" check --min 5s")), 0);
    let (code, out, _) = ended(&world.run(&["--on=file:store"], "\"$INCUMBENT\" check --json"));
    let answer: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["v"], &answer["valid"]), (0, &1.into(), &true.into()));
    assert!(answer["left_ms"].as_u64() > Some(0) && answer["token"].is_u64(), "{out}");
}

#[test]
fn check_says_no_where_less_is_left_than_is_needed() {
    let world = World::new();
    let (code, _, err) = ended(&world.run(&["--on=file:store"], "\"$INCUMBENT\" check --min 1h"));
    assert_eq!(code, 1);
    assert!(err.contains("of the term is left, less than 1 h"), "{err}");
}

/// The end of a term, a file that is gone, damaged, or of a boot long past: none of them is a good term.
#[test]
fn check_says_no_to_every_file_that_proves_nothing() {
    let world = World::new();
    let word = |deadline: u64, complement: u64| {
        let mut bytes = b"INCLEASE".to_vec();
        for number in [7, deadline, complement] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    };
    let far = u64::MAX / 2;
    std::fs::write(world.path("good"), word(far, !far)).expect("a file");
    let bad = [
        ("over", word(0, !0)),
        ("passed", word(1, !1)),
        ("torn", word(far, far)),
        ("short", word(far, !far)[..31].to_vec()),
        ("long", [word(far, !far), vec![0]].concat()),
        ("other", vec![b'x'; 32]),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in &bad {
        std::fs::write(world.path(name), bytes).expect("a file");
    }
    assert_eq!(ended(&world.shell("mkfifo pipe")).0, 0);
    let check = |name: &str| {
        let mut command = world.incumbent(&["check"]);
        command.env("INCUMBENT_LEASE_FILE", world.path(name));
        ended(&Proc::spawn(command))
    };
    assert_eq!(check("good").0, 0);
    for name in bad.iter().map(|(name, _)| *name).chain(["missing", "pipe"]) {
        let (code, out, err) = check(name);
        assert_eq!((code, out.as_str()), (1, ""), "{name}");
        assert!(err.starts_with("error: "), "{name}: {err}");
    }
}

/// By hand, or by what tidies up. It said no for the rest of the term.
#[test]
fn a_lease_file_that_was_removed_is_written_anew_with_the_next_renewal() {
    let world = World::new();
    let script = "rm \"$INCUMBENT_LEASE_FILE\"; \"$INCUMBENT\" check && exit 1; \
                  until \"$INCUMBENT\" check; do sleep 0.05; done 2>/dev/null; exit 6";
    let (code, _, err) = ended(&world.run(&["--on=file:store", "--ttl=3s"], script));
    assert_eq!(code, 6, "{err}");
    assert_eq!(err.matches("was removed or replaced; it is written anew").count(), 1, "{err}");
}

#[test]
fn check_outside_of_a_job_is_an_error() {
    let (code, _, err) = World::new().output(&["check"]);
    assert_eq!(code, 125);
    assert!(err.contains("INCUMBENT_LEASE_FILE is not set"), "{err}");
}
