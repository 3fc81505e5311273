//! ZooKeeper, beside kazoo's `Election`.

use std::process::Command;

use rustix::process::Signal;
use testkit::zookeeper::{Version, Zookeeper};

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S, TTL_S};
use super::{Bench, PATIENCE, Proc, started, time_to_hand_over};
use crate::{Result, workspace};

/// A thousand locks of one kazoo client, held for the given number of seconds.
const PEERS: &str = "
import sys, time
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]))
client.start()
for number in range(1000):
    client.Lock(f'/bench-peer-{number}', 'peer').acquire()
print('started', flush=True)
time.sleep(float(sys.argv[3]))
client.stop()
";

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let zookeeper = Zookeeper::single(Version::V3_9).tick_ms(2000).start();
    let zookeeper = zookeeper.map_err(|error| error.to_string())?;
    hand_over(bench, &zookeeper, report)?;
    thousand(bench, &zookeeper, report)
}

fn hand_over(bench: &Bench, zookeeper: &Zookeeper, report: &mut Report) -> Result {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| Ok(bench.candidate(&zookeeper.url())))?);
        theirs.push(stop_the_first(|| kazoo(zookeeper))?);
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

fn kazoo(zookeeper: &Zookeeper) -> Result<Proc> {
    let mut command = python()?;
    command.arg(workspace::root().join("interop/kazoo/candidate.py"));
    command.args(["election", &zookeeper.endpoints()[0], "/bench-peer", "peer", "10"]);
    let process = Proc::spawn(command);
    process.wait_line(|line| line == "standing", PATIENCE);
    Ok(process)
}

fn python() -> Result<Command> {
    testkit::python::with("kazoo", &["kazoo==2.11.0"]).map_err(|error| error.to_string())
}

fn stop_the_first(candidate: impl Fn() -> Result<Proc>) -> Result<f64> {
    let leader = candidate()?;
    leader.wait_line(started, PATIENCE);
    let standby = candidate()?;
    Ok(time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM)))
}

fn thousand(bench: &Bench, zookeeper: &Zookeeper, report: &mut Report) -> Result {
    let asked = || zookeeper.figure(0, "zk_packets_received") as f64;
    let before = asked();
    let mut command = python()?;
    command.args(["-c", PEERS, &zookeeper.endpoints()[0], &TTL_S.to_string(), &IDLE_S.to_string()]);
    let peer = Proc::spawn(command);
    peer.wait_line(started, PATIENCE);
    peer.wait(PATIENCE);
    let native = asked() - before;
    let bars = Bars {
        acquired_ms: 5000.0,
        idle_percent: 2.0,
        requests: 12_000.0,
        because: format!(
            "a transaction for 100 of them; a thousand kazoo Locks of one client asked {native:.0}"
        ),
    };
    thousand::measure(bench, report, "zookeeper", &format!("{}/thousand", zookeeper.url()), asked, bars)
}
