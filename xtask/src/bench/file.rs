//! The embedded default, beside flock(1).

use std::process::Command;

use rustix::process::Signal;

use super::report::{Report, median};
use super::thousand::{self, Bars, NEW_RECORDS_MS};
use super::{Bench, JOB, PATIENCE, Proc, started, time_to_hand_over, time_to_start};
use crate::Result;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    uncontended(bench, report);
    crash(bench, report);
    thousand(bench, report)
}

fn uncontended(bench: &Bench, report: &mut Report) {
    let samples = (0..bench.rounds).map(|round| {
        let on = format!("file:{}", super::path(&bench.dir(&format!("start-{round}"))));
        let mut command = Command::new(&bench.incumbent);
        command.args(["run", "bench", "--on", &on, "--"]).args(JOB);
        time_to_start(command)
    });
    let because = "start of the command to start of the job, nobody else there".to_owned();
    report.median_at_most("file: uncontended start", "ms", samples.collect(), 30.0, because);
}

fn crash(bench: &Bench, report: &mut Report) {
    let on = format!("file:{}", super::path(&bench.dir("crash")));
    let lock = bench.dir("flock");
    let (mut ours, mut flock) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(kill_the_first(|| bench.candidate(&on)));
        flock.push(kill_the_first(|| {
            let mut command = Command::new("flock");
            command.arg("-F").arg(&lock).args(JOB);
            Proc::spawn(command)
        }));
    }
    let theirs = median(&flock);
    let because = format!("flock(1) in the same run, {theirs:.2} ms, + 10 ms");
    report.median_at_most(
        "file: SIGKILL of the leader to the successor's job",
        "ms",
        ours,
        theirs + 10.0,
        because,
    );
}

fn kill_the_first(candidate: impl Fn() -> Proc) -> f64 {
    let leader = candidate();
    leader.wait_line(started, PATIENCE);
    let standby = candidate();
    time_to_hand_over(leader, standby, |leader| leader.signal(Signal::KILL))
}

fn thousand(bench: &Bench, report: &mut Report) -> Result {
    let on = format!("file:{}", super::path(&bench.dir("thousand")));
    let bars = Bars {
        acquired_ms: NEW_RECORDS_MS,
        idle_percent: 5.0,
        requests: 0.0,
        because: "there is no server".to_owned(),
    };
    thousand::measure(bench, report, "file", &on, || 0.0, bars)
}
