//! The rules on one MariaDB server, reached through a relay.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use testkit::{Direction, Mysql, Proc, Relay};

/// A server that starts when it is first needed.
#[derive(Default)]
struct Server(Arc<OnceLock<Running>>);

struct Running {
    mysql: Mutex<Mysql>,
    relay: Relay,
    /// A session that keeps all commits waiting.
    stall: Mutex<Option<Proc>>,
}

impl Running {
    fn start() -> Running {
        let mysql = Mysql::options().start().expect("MariaDB starts");
        let relay = Relay::to(&mysql.addr());
        Running { mysql: Mutex::new(mysql), relay, stall: Mutex::default() }
    }

    fn mysql(&self) -> MutexGuard<'_, Mysql> {
        self.mysql.lock().expect("an unbroken lock")
    }
}

impl Server {
    fn running(&self) -> Arc<OnceLock<Running>> {
        self.0.get_or_init(Running::start);
        self.0.clone()
    }

    /// Does what takes long on a thread that may block.
    fn by_hand<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Running) -> T + Send + 'static,
    ) -> Hook<'static, T> {
        let running = self.running();
        Ok(Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || act(running.get().expect("it has started"))).await;
            done.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error))
        }))
    }

    fn sql(&self, sql: String) -> Hook<'static> {
        self.by_hand(move |running| drop(running.mysql().sql(&sql)))
    }
}

impl Harness for Server {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let running = running.get().expect("it has started");
            let url = running.mysql().url_at(&running.relay.addr());
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
        self.by_hand(|running| running.mysql().restart())
    }

    fn fail_over(&self) -> Hook<'_> {
        Err("one server has nobody to fail over to; the tests mysql_elections have")
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut mysql = running.mysql();
            let data = mysql.data();
            let copy = data.with_extension("copy");
            mysql.stop();
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            mysql.restart();
        })
    }

    /// Commits wait for a lock on all tables; reads go on.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mysql = running.mysql();
            let mut stall = running.stall.lock().expect("an unbroken lock");
            let is_held = || mysql.sql(HOLDS_UP) != "";
            if on {
                let mut client = mysql.client_command();
                client.args(["-e", "FLUSH TABLES WITH READ LOCK; SELECT SLEEP(600)"]);
                *stall = Some(Proc::spawn(client));
                assert!(testkit::wait_until(Duration::from_secs(10), is_held));
            } else if stall.take().is_some() {
                mysql.sql(&format!("KILL {}", mysql.sql(HOLDS_UP)));
            }
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| match on {
            true => running.relay.hold(Direction::Answers),
            false => running.relay.pass(Direction::Answers),
        })
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test mysql_wall_clock")
    }

    /// Rows and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let rows: u64 =
                running.mysql().sql("SELECT COUNT(*) FROM incumbent_record").parse().expect("a count");
            rows + running.relay.open() as u64
        })
    }

    /// Each packet that writes is one transaction with three SELECTs in it; each other has one or two.
    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let mysql = running.mysql();
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

fn copy_tree(from: &Path, to: &Path) {
    // Owners and permissions matter to the server.
    let status = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cannot copy {} to {}",
        from.display(),
        to.display()
    );
}

fn main() -> ExitCode {
    Suite::main_of(vec![Suite::new(Server::default()).label("mysql")])
}
