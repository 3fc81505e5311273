//! What a check of the term costs, in a program and in a script.

use std::process::Command;

use super::report::{Report, median};
use super::{Bench, PATIENCE, Proc, millis};
use crate::Result;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let value = bench.program("is_valid", None)?;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let clock = figure("clock_gettime_ns");
    report.at_most(
        "is_valid()",
        "ns",
        figure("is_valid_ns"),
        clock * 1.5,
        format!("1.5 × one clock_gettime, {clock:.1} ns"),
    );
    check_as_a_process(bench, report);
    Ok(())
}

fn check_as_a_process(bench: &Bench, report: &mut Report) {
    let dir = bench.dir("check");
    let mut run = Command::new(&bench.incumbent);
    run.args(["run", "bench", "--on", &format!("file:{}", super::path(&dir)), "--"]);
    run.args(["sh", "-c", "echo lease $INCUMBENT_LEASE_FILE; exec sleep 600"]);
    let job = Proc::spawn(run);
    let line = job.wait_line(|line| line.starts_with("lease "), PATIENCE);
    let lease = line.text.trim_start_matches("lease ");
    let time = |program: &str, args: &[&str]| {
        let from = testkit::now();
        let status = Command::new(program).args(args).env("INCUMBENT_LEASE_FILE", lease).status();
        assert!(status.is_ok_and(|status| status.success()), "{program} {args:?}");
        millis(testkit::now().since(from))
    };
    let program = super::path(&bench.incumbent);
    let (mut checks, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds * 2 {
        checks.push(time(program, &["check"]));
        nothing.push(time("true", &[]));
    }
    let because = format!("as a process; true(1) takes {:.2} ms", median(&nothing));
    report.median_at_most("incumbent check", "ms", checks, 3.0, because);
}
