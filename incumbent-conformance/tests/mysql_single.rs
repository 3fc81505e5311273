//! The rules on one MariaDB server, reached through a relay.

#[expect(dead_code, reason = "what stalls here is no disk")]
mod served;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::{Mysql, Proc};

use served::Served;

/// A server that starts when it is first needed, and a session that keeps all commits waiting.
struct Server(Served<(Mysql, Option<Proc>)>);

impl Server {
    fn new() -> Server {
        let start = || (Mysql::options().start().expect("MariaDB starts"), None);
        Server(Served::new(start, |(mysql, _)| vec![mysql.addr()]))
    }

    fn sql(&self, sql: String) -> Hook<'static> {
        self.0.by_hand(move |running| drop(running.servers().0.sql(&sql)))
    }
}

impl Harness for Server {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let url = {
                let running = self.0.running();
                running.servers().0.url_at(&running.hosts())
            };
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        self.sql(format!("DELETE FROM incumbent_record WHERE election = '{election}' AND note = ''"))
    }

    /// As an operator would who knows nothing of versions.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        self.sql(format!(
            "UPDATE incumbent_record SET body = 'somebody''s note to himself' WHERE election = '{election}' AND note = ''"
        ))
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("candidates that wait leave nothing in the table")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.0.by_hand(|running| running.servers().0.restart())
    }

    fn fail_over(&self) -> Hook<'_> {
        Err("one server has nobody to fail over to; the tests mysql_elections have")
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.0.by_hand(move |running| {
            let mysql = &mut running.servers().0;
            mysql.stop();
            served::back_up(&mysql.data(), put_back);
            mysql.restart();
        })
    }

    /// Commits wait for a lock on all tables; reads go on.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.0.by_hand(move |running| {
            let (mysql, stall) = &mut *running.servers();
            if on {
                let mut client = mysql.client_command();
                client.args(["-e", "FLUSH TABLES WITH READ LOCK; SELECT SLEEP(600)"]);
                *stall = Some(Proc::spawn(client));
                assert!(testkit::wait_until(Duration::from_secs(10), || !mysql.sql(HOLDS_UP).is_empty()));
            } else if stall.take().is_some() {
                mysql.sql(&format!("KILL {}", mysql.sql(HOLDS_UP)));
            }
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test mysql_wall_clock")
    }

    /// Rows and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let rows: u64 =
                running.servers().0.sql("SELECT COUNT(*) FROM incumbent_record").parse().expect("a count");
            rows + running.connections()
        })
    }

    /// Each packet that writes is one transaction with three SELECTs in it; each other has one or two.
    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let mysql = &running.servers().0;
            let count = |name: &str| -> u64 {
                let shown = mysql.sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'"));
                shown.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count")
            };
            count("Com_select").saturating_sub(2 * count("Com_commit"))
        })
    }
}

/// The session that holds the lock on all tables.
const HOLDS_UP: &str =
    "SELECT id FROM information_schema.processlist WHERE user = 'root' AND info = 'SELECT SLEEP(600)'";

fn main() -> ExitCode {
    Suite::main_of(vec![Suite::new(Server::new()).label("mysql").jobs(12)])
}
