//! PostgreSQL, beside `pg_advisory_lock`, and a fenced write beside the same one without a fence.

use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Postgres;

use super::report::{Report, median};
use super::thousand::{self, Bars, IDLE_S};
use super::{Bench, PATIENCE, Proc, started, time_to_hand_over};
use crate::Result;

/// How long the requests of an idle pair are counted.
const IDLE: Duration = Duration::from_secs(60);
/// The seconds that one kind of write is measured for in a round.
const WRITING_S: &str = "3";
/// What a leader and each standby ask in the default third of a ttl: a renewal; and each reads what changed, on a hint and once more
/// to judge it, the leader also its hand-over note.
const PER_RENEWAL: f64 = 1.0 + 2.0 + 2.0;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result {
    let postgres = Postgres::options().start().map_err(|error| error.to_string())?;
    fenced_writes(bench, &postgres, report)?;
    hand_over(bench, &postgres, report);
    idle_requests(bench, &postgres, report);
    thousand(bench, &postgres, report)
}

/// On one connection, turn by turn, each in as many round trips as the other and with prepared statements, as drivers do it.
fn fenced_writes(bench: &Bench, postgres: &Postgres, report: &mut Report) -> Result {
    let output =
        std::process::Command::new(&bench.incumbent).args(["fence", "sql", "--dialect=postgres"]).output();
    let ddl = output.map_err(|error| format!("the command does not run: {error}"))?.stdout;
    postgres.psql(&String::from_utf8_lossy(&ddl));
    postgres.psql("CREATE TABLE charge (customer int); SELECT incumbent_fence_raise('billing', 'bench', 1)");
    let throughput = |name: &str, begin: &str| -> Result<f64> {
        let script = std::env::temp_dir().join(format!("incumbent-bench-{}-{name}.sql", std::process::id()));
        let text = format!("{begin}\nINSERT INTO charge VALUES (1);\nCOMMIT;\n");
        std::fs::write(&script, text).map_err(|error| error.to_string())?;
        let output =
            postgres.pgbench_command().args(["-M", "prepared", "-T", WRITING_S, "-f"]).arg(&script).output();
        let _ = std::fs::remove_file(&script);
        let output = output.map_err(|error| format!("pgbench: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let tps = text
            .lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split_whitespace().next()?.parse().ok());
        tps.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)))
    };
    let (mut fenced, mut unfenced) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds.min(7) {
        unfenced.push(throughput("unfenced", "BEGIN;")?);
        let guard = "\\startpipeline\nBEGIN;\nSELECT incumbent_fence_guard('billing', 'bench', 1, 15000);\n\\endpipeline";
        fenced.push(throughput("fenced", guard)?);
    }
    let share = median(&unfenced) / median(&fenced);
    report.at_most(
        "postgres: time of a fenced write, of the same write's unfenced",
        "times",
        share,
        1.0 / 0.9,
        format!("90 % of {:.0} transactions/s; {:.0} fenced", median(&unfenced), median(&fenced)),
    );
    postgres.psql("ALTER SYSTEM SET log_duration = on");
    postgres.psql("SELECT pg_reload_conf()");
    Ok(())
}

fn hand_over(bench: &Bench, postgres: &Postgres, report: &mut Report) {
    postgres.psql("DROP SCHEMA IF EXISTS incumbent CASCADE");
    free(&bench.candidate(&format!("{}?ttl=1s", postgres.url())));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        ours.push(stop_the_first(|| bench.candidate(&postgres.url())));
        theirs.push(stop_the_first(|| advisory(postgres)));
    }
    let peer = median(&theirs);
    let because = format!("pg_advisory_lock in psql in the same run, {peer:.2} ms, + 10 ms");
    report.median_at_most(
        "postgres: SIGTERM of the leader to the successor's job",
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

/// A psql that says `started` when it has the lock, and gives it up when it ends.
fn advisory(postgres: &Postgres) -> Proc {
    let mut psql = Proc::spawn_with_stdin(postgres.psql_command());
    let mut stdin = psql.stdin().expect("its standard input");
    stdin.write_all(b"SELECT pg_advisory_lock(7);\n\\echo started\n").expect("psql reads");
    // Closed, it would end psql.
    std::mem::forget(stdin);
    psql
}

/// A session with a thousand locks.
fn advisory_many(postgres: &Postgres) -> Proc {
    let mut psql = Proc::spawn_with_stdin(postgres.psql_command());
    let mut stdin = psql.stdin().expect("its standard input");
    let locks: String = (1000..2000).map(|key| format!("SELECT pg_advisory_lock({key});\n")).collect();
    stdin.write_all((locks + "\\echo started\n").as_bytes()).expect("psql reads");
    psql.wait_line(started, PATIENCE);
    // Closed, it would end psql.
    std::mem::forget(stdin);
    psql
}

fn stop_the_first(candidate: impl Fn() -> Proc) -> f64 {
    let leader = candidate();
    leader.wait_line(started, PATIENCE);
    let standby = candidate();
    time_to_hand_over(leader, standby, |leader| leader.signal_group(Signal::TERM))
}

/// What a leader and a standby ask when nothing happens.
fn idle_requests(bench: &Bench, postgres: &Postgres, report: &mut Report) {
    let leader = bench.candidate(&postgres.url());
    leader.wait_line(started, PATIENCE);
    let standby = bench.candidate(&postgres.url());
    std::thread::sleep(Duration::from_secs(2));
    let before = statements(postgres);
    std::thread::sleep(IDLE);
    let asked = statements(postgres) - before;
    drop((leader, standby));
    // A renewal may come up to a tenth of its interval early, and one more may fall into the window. Each listener shows six times in
    // a minute at most that it is alive.
    let most = (IDLE.as_secs_f64() / 5.0 * 1.12 + 2.0) * PER_RENEWAL + 12.0;
    let because = "a renewal per ttl/3, and a look of each at it".to_owned();
    report.at_most(
        "postgres: statements of a leader and a standby per minute",
        "statements",
        asked,
        most,
        because,
    );
}

/// Each statement is parsed, bound and executed, and each of these is logged.
fn statements(postgres: &Postgres) -> f64 {
    postgres.log().matches(" duration: ").count() as f64 / 3.0
}

fn thousand(bench: &Bench, postgres: &Postgres, report: &mut Report) -> Result {
    // Free ones: new ones would count as held for a ttl.
    postgres.psql(
        "INSERT INTO incumbent.record SELECT 'bench-' || n, '', 1, 1, convert_to(json_build_object('v', 1, 'holder', null,
            'ttl_ms', 15000, 'lineage', system_identifier || '/1')::text, 'UTF8')
         FROM generate_series(0, 999) n, pg_control_system()",
    );
    let before = statements(postgres);
    let peer = advisory_many(postgres);
    std::thread::sleep(Duration::from_secs_f64(IDLE_S));
    let native = statements(postgres) - before;
    drop(peer);
    let bars = Bars {
        acquired_ms: 5000.0,
        idle_percent: 20.0,
        requests: 12_000.0,
        because: format!(
            "statements, one of them for several elections; a thousand pg_advisory_lock in one session: {native:.0}"
        ),
    };
    thousand::measure(bench, report, "postgres", &postgres.url(), || statements(postgres), bars)
}
