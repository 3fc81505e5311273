//! etcd, beside `etcdctl lock`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::etcd::{Etcd, Version};

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S, TTL_S};
use super::{Bench, JOB, PATIENCE, Proc, millis, started, time_to_hand_over, time_to_start};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let etcd = Etcd::single(Version::V3_5).start().map_err(|error| error.to_string())?;
    hand_over(bench, &etcd, report);
    idle_requests(bench, &etcd, report)?;
    thousand(bench, &etcd, report)
}

fn hand_over(bench: &Bench, etcd: &Etcd, report: &mut Report) {
    let (mut ours, mut theirs, mut start, mut trip) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| bench.candidate(&etcd.url())));
        theirs.push(stop_the_first(|| {
            let mut command = etcd.etcdctl_command();
            command.args(["lock", "bench-peer", "--"]).args(JOB);
            Proc::spawn(command)
        }));
        let mut job = Command::new(JOB[0]);
        job.args(&JOB[1..]);
        start.push(time_to_start(job));
        trip.push(write_and_watch(&etcd.endpoints()[0]));
    }
    let (peer, start, trip) = (median(&theirs), median(&start), median(&trip));
    let because = format!("etcdctl lock in the same run, {peer:.2} ms, + one process start, {start:.2} ms");
    report.median_at_most(
        "etcd: SIGTERM of the leader to the successor's job",
        "ms",
        ours.clone(),
        peer + start,
        because,
    );
    let because = format!("3 × one write + watch round trip, {trip:.2} ms, + one process start");
    report.median_at_most("etcd: the same, in round trips", "ms", ours, 3.0 * trip + start, because);
}

fn stop_the_first(candidate: impl Fn() -> Proc) -> f64 {
    let leader = candidate();
    leader.wait_line(started, PATIENCE);
    let standby = candidate();
    time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM))
}

/// One write and the watch event that it causes, through etcd's JSON gateway with connections that are open already.
fn write_and_watch(endpoint: &str) -> f64 {
    let mut watch = post(endpoint, "/v3/watch", r#"{"create_request":{"key":"YmVuY2g="}}"#);
    read_until(&mut watch, "created");
    let mut writer = TcpStream::connect(endpoint).expect("etcd accepts");
    writer.set_nodelay(true).expect("a socket");
    let from = testkit::now();
    request(&mut writer, endpoint, "/v3/kv/put", r#"{"key":"YmVuY2g=","value":"eA=="}"#);
    read_until(&mut watch, "events");
    millis(testkit::now().since(from))
}

fn post(endpoint: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(endpoint).expect("etcd accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    request(&mut stream, endpoint, path, body);
    stream
}

fn request(stream: &mut TcpStream, endpoint: &str, path: &str, body: &str) {
    let length = body.len();
    let text = format!("POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("etcd reads");
}

fn read_until(stream: &mut TcpStream, word: &str) {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&text).contains(word) {
        let read = stream.read(&mut buffer).expect("etcd answers");
        assert!(read > 0, "etcd closed the connection before {word:?}");
        text.extend_from_slice(&buffer[..read]);
    }
}

/// What a leader and a standby ask of etcd when nothing happens.
fn idle_requests(bench: &Bench, etcd: &Etcd, report: &mut Report) -> Result {
    let leader = bench.candidate(&etcd.url());
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&etcd.url());
    std::thread::sleep(Duration::from_secs(2));
    let before = Counters::read(etcd)?;
    std::thread::sleep(IDLE);
    let after = Counters::read(etcd)?;
    drop((leader, standby));
    let rounds = IDLE.as_secs_f64() / (TTL_S / 3.0);
    let since = |method: &str| after.of(method) - before.of(method);
    // A renewal may come up to a tenth of its interval early, and one more may fall into the window.
    let most = rounds * 1.12 + 2.0;
    report.at_most(
        "etcd: reads (polls) of a leader and a standby per minute",
        "requests",
        since("Range"),
        0.0,
        "0 polls".to_owned(),
    );
    report.at_most(
        "etcd: keep-alives of a leader and a standby per minute",
        "requests",
        since("LeaseKeepAlive"),
        2.0 * most,
        "one per process and ttl/3".to_owned(),
    );
    report.at_most(
        "etcd: transactions of a leader and a standby per minute",
        "requests",
        since("Txn"),
        most,
        "one per ttl/3 for the leader".to_owned(),
    );
    Ok(())
}

/// etcd's count of received messages, by method.
struct Counters(String);

impl Counters {
    fn read(etcd: &Etcd) -> Result<Counters> {
        let endpoint = &etcd.endpoints()[0];
        let mut stream = TcpStream::connect(endpoint).map_err(|error| error.to_string())?;
        let text = format!("GET /metrics HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        Ok(Counters(answer))
    }

    fn all(&self) -> f64 {
        self.sum("")
    }

    fn of(&self, method: &str) -> f64 {
        self.sum(&format!("grpc_method=\"{method}\""))
    }

    fn sum(&self, label: &str) -> f64 {
        let lines = self
            .0
            .lines()
            .filter(|line| line.starts_with("grpc_server_msg_received_total") && line.contains(label));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }
}

fn thousand(bench: &Bench, etcd: &Etcd, report: &mut Report) -> Result {
    let asked = || Counters::read(etcd).map_or(f64::NAN, |counters| counters.all());
    let before = asked();
    let mut command = Command::new(testkit::fetch::interop("etcd-go").map_err(|error| error.to_string())?);
    command.args(["-count=1000", &etcd.endpoints()[0], "15", "bench-peer/", "peer"]);
    let peer = Proc::spawn(command);
    peer.wait_line(|line| line == "all elected", PATIENCE);
    std::thread::sleep(Duration::from_secs_f64(IDLE_S));
    let native = asked() - before;
    drop(peer);
    let bars = Bars {
        acquired_ms: 5000.0,
        idle_percent: 2.0,
        requests: 3000.0,
        because: format!(
            "a transaction for 120 of them; 1000 of Go's concurrency.Election in one session asked {native:.0}"
        ),
    };
    thousand::measure(bench, report, "etcd", &format!("{}/thousand/", etcd.url()), asked, bars)
}
