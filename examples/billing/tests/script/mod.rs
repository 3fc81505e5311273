//! `run.sh` as its users run it, and what must come out.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use testkit::{Proc, Stream};

/// A run takes some ten seconds; two cores may be shared with a build.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs the script to its end.
pub(crate) fn run(args: &[&str]) -> (Proc, ExitStatus) {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("run.sh"));
    let driver = Path::new(env!("CARGO_BIN_EXE_billing-driver"));
    command.env("BILLING_PROGRAMS", driver.parent().expect("a program lies in a folder")).args(args);
    let run = Proc::spawn(command);
    let status = run.wait(PATIENCE);
    (run, status)
}

/// The fenced run: every kind of blow, and 10 000 charges.
pub(crate) fn exactly_once(args: &[&str]) {
    let (run, status) = run(args);
    let lines = run.text(Stream::Out);
    assert_eq!(lines.lines().last(), Some("charged 10000, twice 0, missing 0"), "{}", run.transcript());
    assert!(status.success(), "{}", run.transcript());
    for blow in [
        "killed in the transaction",
        "frozen after its check",
        "is older than",
        "told to stop",
        "frozen in the transaction",
        "waits for the ledger",
    ] {
        assert!(lines.contains(blow), "{blow:?} is missing; {}", run.transcript());
    }
}

/// The control run: without the fence the same blows do harm, so that the fenced run proves something.
pub(crate) fn twice(args: &[&str]) {
    let (run, status) = run(&[args, &["--unfenced"]].concat());
    let lines = run.text(Stream::Out);
    let last = lines.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("charged 10000, twice ") && last.ends_with(", missing 0"),
        "{}",
        run.transcript()
    );
    assert!(!last.contains("twice 0"), "nobody was charged twice; {}", run.transcript());
    assert!(status.success(), "{}", run.transcript());
}
