//! MariaDB, beside `GET_LOCK`.

use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Mysql;

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S};
use super::{Bench, PATIENCE, Proc, started, time_to_hand_over};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// What a leader and each standby ask in the default third of a ttl: a renewal; and each reads what changed, on a hint and once more
/// to judge it, the leader also its hand-over note.
const PER_RENEWAL: f64 = 1.0 + 2.0 + 2.0;
/// How often each of them looks at changes in a minute, at the default ttl of 15 s: every ttl/8; and how often it waits for the lock
/// anew, or shows that it still holds it.
const LOOKS: f64 = 60.0 / (15.0 / 8.0) + 6.0;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let mysql = Mysql::options().start().map_err(|error| error.to_string())?;
    hand_over(bench, &mysql, report);
    idle_requests(bench, &mysql, report);
    thousand(bench, &mysql, report)
}

fn hand_over(bench: &Bench, mysql: &Mysql, report: &mut Report) {
    free(&bench.candidate(&format!("{}?ttl=1s", mysql.url())));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| bench.candidate(&mysql.url())));
        theirs.push(stop_the_first(|| get_lock(mysql)));
    }
    let peer = median(&theirs);
    let because = format!("GET_LOCK in mariadb in the same run, {peer:.2} ms, + 10 ms");
    report.median_at_most(
        "mysql: SIGTERM of the leader to the successor's job",
        "ms",
        ours,
        peer + 10.0,
        because,
    );
}

/// A new record counts as held for a ttl: that is no hand-over.
fn free(first: &Proc) {
    first.wait_line(started, PATIENCE);
    first.signal_group(Signal::TERM);
    first.wait(PATIENCE);
}

/// A client that says `started` when it has the lock, and gives it up when it ends.
fn get_lock(mysql: &Mysql) -> Proc {
    let mut client = mysql.client_command();
    client.args(["-N", "-B", "-n"]);
    let mut client = Proc::spawn_with_stdin(client);
    let mut stdin = client.stdin().expect("its standard input");
    stdin.write_all(b"SELECT IF(GET_LOCK('bench', 3600), 'started', 'not');\n").expect("the client reads");
    // Closed, it would end the client.
    std::mem::forget(stdin);
    client
}

/// A session with a thousand locks.
fn get_locks(mysql: &Mysql) -> Proc {
    let mut client = mysql.client_command();
    client.args(["-N", "-B", "-n"]);
    let mut client = Proc::spawn_with_stdin(client);
    let mut stdin = client.stdin().expect("its standard input");
    let locks: String = (0..1000).map(|key| format!("SELECT GET_LOCK('bench-{key}', 0);\n")).collect();
    stdin.write_all((locks + "SELECT 'started';\n").as_bytes()).expect("the client reads");
    client.wait_line(started, PATIENCE);
    // Closed, it would end the client.
    std::mem::forget(stdin);
    client
}

fn stop_the_first(candidate: impl Fn() -> Proc) -> f64 {
    let leader = candidate();
    leader.wait_line(started, PATIENCE);
    let standby = candidate();
    time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM))
}

/// What a leader and a standby ask when nothing happens.
fn idle_requests(bench: &Bench, mysql: &Mysql, report: &mut Report) {
    let leader = bench.candidate(&mysql.url());
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&mysql.url());
    std::thread::sleep(Duration::from_secs(2));
    let before = requests(mysql);
    std::thread::sleep(IDLE);
    let asked = requests(mysql) - before;
    drop((leader, standby));
    // A renewal may come up to a tenth of its interval early, and one more may fall into the window.
    let most = (IDLE.as_secs_f64() / 5.0 * 1.12 + 2.0) * PER_RENEWAL + 2.0 * LOOKS;
    let because =
        "a renewal per ttl/3, a look of each at it, and of each one at all changes per ttl/8".to_owned();
    report.at_most("mysql: requests of a leader and a standby per minute", "requests", asked, most, because);
}

/// A packet that writes is a transaction with three SELECTs in it; any other has one or two.
fn requests(mysql: &Mysql) -> f64 {
    let count = |name: &str| -> f64 {
        let shown = mysql.sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'"));
        shown.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or(f64::NAN)
    };
    count("Com_select") - 2.0 * count("Com_commit")
}

fn thousand(bench: &Bench, mysql: &Mysql, report: &mut Report) -> Result {
    // Free ones: new ones would count as held for a ttl.
    mysql.sql(
        "INSERT INTO incumbent_record (election, note, version, token, body) SELECT CONCAT('bench-', seq), '', 1, 1, \
         JSON_OBJECT('v', 1, 'holder', NULL, 'ttl_ms', 15000, 'lineage', CONCAT(@@server_id, '@', @@hostname, ':', @@port)) \
         FROM seq_0_to_999",
    );
    // Each is one SELECT.
    let before = requests(mysql);
    let peer = get_locks(mysql);
    std::thread::sleep(Duration::from_secs_f64(IDLE_S));
    let native = requests(mysql) - before;
    drop(peer);
    let bars = Bars {
        acquired_ms: 5000.0,
        idle_percent: 20.0,
        requests: 1000.0,
        because: format!(
            "one request for several elections; a thousand GET_LOCK in one session: {native:.0}"
        ),
    };
    thousand::measure(bench, report, "mysql", &mysql.url(), || requests(mysql), bars)
}
