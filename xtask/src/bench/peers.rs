//! Raft among peers, beside hashicorp/raft and members of etcd: the time from SIGKILL of the leader until another leads, each with the
//! timeouts that are the other's defaults; and a clean hand-over, in round trips.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::etcd::{Etcd, Version};
use testkit::{Port, Proc};

use super::report::{Report, median};
use super::{Bench, PATIENCE, millis, started, time_to_hand_over};
use crate::Result;

/// hashicorp/raft's heartbeat timeout, and etcd's election timeout.
const TTL: &str = "ttl=1s";

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    for size in [3, 5] {
        let (mut ours, mut hashicorp, mut etcd) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.rounds {
            ours.push(kill_ours(bench, size, round)?);
            hashicorp.push(kill_hashicorp(size)?);
            etcd.push(kill_etcd(size)?);
        }
        let (hashicorp, etcd) = (median(&hashicorp), median(&etcd));
        let what = format!("raft: {size} peers, SIGKILL of the leader to the successor's job");
        let because = format!("hashicorp/raft with its defaults in the same run, {hashicorp:.0} ms");
        report.median_at_most(what.clone(), "ms", ours.clone(), hashicorp, because);
        let because = format!("members of etcd with its defaults in the same run, {etcd:.0} ms");
        report.median_at_most(what, "ms", ours, etcd, because);
    }
    hand_over(bench, report)
}

/// Peers of ours: a state and an address each.
struct Peers {
    dir: PathBuf,
    members: Vec<(String, Port)>,
    ttl: &'static str,
}

impl Peers {
    fn make(bench: &Bench, dir: PathBuf, size: usize, ttl: &'static str) -> Result<Peers> {
        let members: Vec<_> = (1..=size).map(|number| (format!("n{number}"), Port::reserve())).collect();
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        fs::write(dir.join("secret"), "0123456789abcdef0123456789abcdef\n")
            .map_err(|error| error.to_string())?;
        for (name, _) in &members {
            let mut init = Command::new(&bench.incumbent);
            init.args(["peer", "init", "--name", name, "--cluster", "bench", "--state"]).arg(dir.join(name));
            let output = init.output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        Ok(Peers { dir, members, ttl })
    }

    fn url(&self, name: &str) -> String {
        let (list, dir) = (list(&self.members), self.dir.display());
        format!("raft://{name}?peers={list}&state={dir}/{name}&secret_file={dir}/secret&{}", self.ttl)
    }

    fn start(&self, bench: &Bench) -> Vec<Proc> {
        self.members.iter().map(|(name, _)| bench.candidate(&self.url(name))).collect()
    }
}

fn list(members: &[(String, Port)]) -> String {
    members.iter().map(|(name, port)| format!("{name}={}", port.addr())).collect::<Vec<_>>().join(",")
}

/// Ends the one of them that says `word` by a signal; the milliseconds until another says it.
fn time_to_follow(mut all: Vec<Proc>, word: impl Fn(&str) -> bool + Copy, signal: Signal) -> f64 {
    let said = |process: &Proc| process.lines().into_iter().find(|line| word(&line.text));
    testkit::wait_until(PATIENCE, || all.iter().any(|process| said(process).is_some()));
    let place = all.iter().position(|process| said(process).is_some()).expect("one leads");
    let leader = all.swap_remove(place);
    // Until all have heard of it.
    std::thread::sleep(Duration::from_millis(2500));
    let from = testkit::now();
    leader.signal(signal);
    testkit::wait_until(PATIENCE, || all.iter().any(|process| said(process).is_some()));
    let line = all.iter().find_map(said).expect("another leads");
    millis(line.at.since(from))
}

fn kill_ours(bench: &Bench, size: usize, round: usize) -> Result<f64> {
    let peers = Peers::make(bench, bench.dir(&format!("raft-{size}-{round}")), size, TTL)?;
    Ok(time_to_follow(peers.start(bench), started, Signal::KILL))
}

fn kill_hashicorp(size: usize) -> Result<f64> {
    let program = testkit::fetch::interop("raft-go").map_err(|error| error.to_string())?;
    let members: Vec<_> = (1..=size).map(|number| (format!("n{number}"), Port::reserve())).collect();
    let list = list(&members);
    let start = |(name, _): &(String, Port)| {
        let mut command = Command::new(&program);
        command.args([name, &list]);
        Proc::spawn(command)
    };
    Ok(time_to_follow(members.iter().map(start).collect(), |line| line == "leader", Signal::KILL))
}

/// Asks every member that lives for its leader, every 2 ms.
fn kill_etcd(size: usize) -> Result<f64> {
    let mut etcd = Etcd::cluster(Version::V3_5, size).start().map_err(|error| error.to_string())?;
    let leader = etcd.leader_index();
    std::thread::sleep(Duration::from_millis(2500));
    let others: Vec<String> =
        etcd.endpoints().iter().enumerate().filter(|(n, _)| *n != leader).map(|(_, e)| e.clone()).collect();
    let from = testkit::now();
    etcd.kill(leader);
    let follows = || others.iter().any(|endpoint| is_leader(endpoint));
    while !follows() {
        if testkit::now().since(from) > PATIENCE {
            return Err("no member of etcd follows its leader".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(millis(testkit::now().since(from)))
}

/// As the member's own metrics say it.
fn is_leader(endpoint: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(endpoint) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let text = format!("GET /metrics HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(text.as_bytes()).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.lines().any(|line| line == "etcd_server_is_leader 1")
}

/// A clean end of a leader: beside what ending one job and starting the other takes with the command, which a hand-over through files
/// shows, three exchanges and one sync of the disk.
fn hand_over(bench: &Bench, report: &mut Report) -> Result {
    let (mut ours, mut files, mut trip, mut sync) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let on = format!("file:{}", super::path(&bench.dir("raft-beside")));
    for round in 0..bench.rounds {
        let peers = Peers::make(bench, bench.dir(&format!("raft-clean-{round}")), 3, "ttl=5s")?;
        ours.push(time_to_follow(peers.start(bench), started, Signal::TERM));
        let leader = bench.candidate(&on);
        leader.wait_line(started, PATIENCE);
        let standby = bench.candidate(&on);
        files.push(time_to_hand_over(leader, standby, |leader| leader.signal(Signal::TERM)));
        trip.push(round_trip()?);
        sync.push(time_to_sync(&bench.dir("sync"))?);
    }
    let (files, trip, sync) = (median(&files), median(&trip), median(&sync));
    let because = format!(
        "the same on file: in this run, {files:.2} ms, + 3 round trips of {trip:.2} ms + one fsync, {sync:.2} ms"
    );
    report.median_at_most(
        "raft: SIGTERM of the leader to the successor's job",
        "ms",
        ours,
        files + 3.0 * trip + sync,
        because,
    );
    Ok(())
}

/// One byte there and back over loopback, between two threads.
fn round_trip() -> Result<f64> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let mut stream = TcpStream::connect(listener.local_addr().map_err(text)?).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let (mut other, _) = listener.accept().map_err(text)?;
    other.set_nodelay(true).map_err(text)?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
    });
    let mut times = Vec::new();
    for _ in 0..50 {
        let from = testkit::now();
        stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut [0])).map_err(text)?;
        times.push(millis(testkit::now().since(from)));
    }
    drop(stream);
    let _ = echo.join();
    Ok(median(&times))
}

/// A file as long as a state: written, synced, renamed, and its folder synced.
fn time_to_sync(dir: &Path) -> Result<f64> {
    let sync = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        let mut file = fs::File::create(dir.join("new"))?;
        file.write_all(&[7; 300])?;
        file.sync_all()?;
        fs::rename(dir.join("new"), dir.join("state"))?;
        fs::File::open(dir)?.sync_all()
    };
    let from = testkit::now();
    sync().map_err(|error| error.to_string())?;
    Ok(millis(testkit::now().since(from)))
}
