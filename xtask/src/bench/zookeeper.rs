//! ZooKeeper, beside kazoo's `Election`.

use rustix::process::Signal;
use testkit::zookeeper::{Version, Zookeeper};

use super::report::{Report, median};
use super::{Bench, PATIENCE, Proc, started, time_to_hand_over};
use crate::{Result, workspace};

/// The ttl of those that are killed, in seconds: the shortest session of a server with ticks of 2 s.
const TTL_S: u32 = 4;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let zookeeper = Zookeeper::single(Version::V3_9).tick_ms(2000).start();
    let zookeeper = zookeeper.map_err(|error| error.to_string())?;
    hand_over(bench, &zookeeper, report)?;
    crash(bench, &zookeeper, report)?;
    thousand(bench, &zookeeper, report)
}

fn hand_over(bench: &Bench, zookeeper: &Zookeeper, report: &mut Report) -> Result {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| Ok(bench.candidate(&zookeeper.url())))?);
        theirs.push(stop_the_first(|| kazoo(zookeeper, 10))?);
    }
    let peer = median(&theirs);
    report.median_at_most(
        "zookeeper: SIGTERM of the leader to the successor's job",
        "ms",
        ours,
        peer + 10.0,
        format!("kazoo's Election in the same run, {peer:.2} ms, + 10 ms"),
    );
    Ok(())
}

/// The leader is killed; the server ends its session.
fn crash(bench: &Bench, zookeeper: &Zookeeper, report: &mut Report) -> Result {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let kill = |candidate: &dyn Fn() -> Result<Proc>| -> Result<f64> {
        let leader = candidate()?;
        leader.wait_line(started, PATIENCE);
        let standby = candidate()?;
        Ok(time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::KILL)))
    };
    for _ in 0..bench.rounds.div_ceil(4) {
        ours.push(kill(&|| Ok(bench.candidate(&format!("{}?ttl={TTL_S}s", zookeeper.url()))))?);
        theirs.push(kill(&|| kazoo(zookeeper, TTL_S))?);
    }
    let most = ours.iter().copied().fold(0.0, f64::max);
    let peer = median(&theirs);
    report.median_at_most(
        "zookeeper: SIGKILL of the leader to the successor's job, ttl 4 s",
        "ms",
        ours,
        f64::from(TTL_S) * 2000.0 + 5000.0,
        format!(
            "the declared bound, two ttls and 5 s; the longest was {most:.0} ms, kazoo's Election took {peer:.0} ms in the same run"
        ),
    );
    Ok(())
}

fn kazoo(zookeeper: &Zookeeper, session_s: u32) -> Result<Proc> {
    let mut command = testkit::python::with("kazoo", &["kazoo==2.11.0"]).map_err(|e| e.to_string())?;
    command.arg(workspace::root().join("interop/kazoo/candidate.py"));
    command.args(["election", &zookeeper.endpoints()[0], "/bench-peer", "peer"]);
    command.arg(session_s.to_string());
    let process = Proc::spawn(command);
    process.wait_line(|line| line == "standing", PATIENCE);
    Ok(process)
}

fn stop_the_first(candidate: impl Fn() -> Result<Proc>) -> Result<f64> {
    let leader = candidate()?;
    leader.wait_line(started, PATIENCE);
    let standby = candidate()?;
    Ok(time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM)))
}

fn thousand(bench: &Bench, zookeeper: &Zookeeper, report: &mut Report) -> Result {
    let value = bench.program("thousand", Some(&format!("{}/thousand", zookeeper.url())))?;
    let figure = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let what = "1000 elections in one process";
    for (name, unit, value, most) in [
        ("zookeeper: 1000 elections, all acquired", "ms", figure("acquired_ms"), 5000.0),
        ("zookeeper: 1000 elections, lost while idle", "terms", 1000.0 - figure("kept"), 0.0),
        ("zookeeper: 1000 elections, resident memory", "MiB", figure("rss_mib"), 64.0),
        ("zookeeper: 1000 elections, idle", "% of a core", figure("idle_core_percent"), 2.0),
    ] {
        report.at_most(name, unit, value, most, what.to_owned());
    }
    Ok(())
}
