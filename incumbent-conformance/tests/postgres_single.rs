//! The rules on one PostgreSQL server, reached through a relay: directly, and by way of a transaction pooler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};
use testkit::{Direction, PgBouncer, PoolMode, Postgres, Relay};

/// A server that starts when it is first needed.
struct Server {
    pooled: bool,
    running: Arc<OnceLock<Running>>,
}

struct Running {
    postgres: Mutex<Postgres>,
    relay: Relay,
    _bouncer: Option<PgBouncer>,
}

impl Running {
    fn start(pooled: bool) -> Running {
        let postgres = Postgres::options().setting("log_duration=on").start().expect("PostgreSQL starts");
        let bouncer =
            pooled.then(|| PgBouncer::start(&postgres, PoolMode::Transaction).expect("PgBouncer starts"));
        let front = bouncer.as_ref().map_or(postgres.addr(), PgBouncer::addr);
        Running { postgres: Mutex::new(postgres), relay: Relay::to(&front), _bouncer: bouncer }
    }

    fn postgres(&self) -> MutexGuard<'_, Postgres> {
        self.postgres.lock().expect("an unbroken lock")
    }
}

impl Server {
    fn new(pooled: bool) -> Server {
        Server { pooled, running: Arc::default() }
    }

    fn running(&self) -> Arc<OnceLock<Running>> {
        self.running.get_or_init(|| Running::start(self.pooled));
        self.running.clone()
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
        self.by_hand(move |running| drop(running.postgres().psql(&sql)))
    }
}

impl Harness for Server {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let running = self.running();
            let running = running.get().expect("it has started");
            let url = running.postgres().url_at(&running.relay.addr());
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&url, &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        self.sql(format!("DELETE FROM incumbent.record WHERE election = '{election}' AND note = ''"))
    }

    /// As an operator would who knows nothing of versions.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        self.sql(format!(
            "UPDATE incumbent.record SET body = 'somebody''s note to himself' WHERE election = '{election}' AND note = ''"
        ))
    }

    fn delete_place<'a>(&'a self, _claim: &'a Claim) -> Hook<'a> {
        Err("candidates that wait leave nothing in the table")
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        self.by_hand(|running| running.postgres().restart())
    }

    fn fail_over(&self) -> Hook<'_> {
        Err("one server has nobody to fail over to; the tests postgres_failover have")
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.by_hand(move |running| {
            let mut postgres = running.postgres();
            let data = postgres.data();
            let copy = data.with_extension("copy");
            postgres.stop();
            let (from, to) = if put_back { (copy, data) } else { (data, copy) };
            let _ = fs::remove_dir_all(&to);
            copy_tree(&from, &to);
            postgres.restart();
        })
    }

    /// Commits wait for a standby that is not there; reads go on.
    fn stall(&self, on: bool) -> Hook<'_> {
        let names = if on { "nobody" } else { "" };
        self.by_hand(move |running| {
            let postgres = running.postgres();
            postgres.psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
            postgres.psql("SELECT pg_reload_conf()");
            let shown = || postgres.psql("SHOW synchronous_standby_names") == names;
            assert!(testkit::wait_until(Duration::from_secs(10), shown));
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.by_hand(move |running| match on {
            true => running.relay.hold(Direction::Answers),
            false => running.relay.pass(Direction::Answers),
        })
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test postgres_wall_clock")
    }

    /// Rows and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.by_hand(|running| {
            let rows: u64 =
                running.postgres().psql("SELECT count(*) FROM incumbent.record").parse().expect("a count");
            rows + running.relay.open() as u64
        })
    }

    /// Each statement is parsed, bound and executed, and each of these is logged.
    fn requests(&self) -> Hook<'_, u64> {
        self.by_hand(|running| running.postgres().log().matches(" duration: ").count() as u64 / 3)
    }
}

fn copy_tree(from: &Path, to: &Path) {
    // Owners and permissions matter to the server.
    let status = std::process::Command::new("cp").arg("-a").args([from, to] as [&Path; 2]).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cannot copy {} to {}",
        from.display(),
        PathBuf::from(to).display()
    );
}

fn main() -> ExitCode {
    Suite::main_of(vec![
        Suite::new(Server::new(false)).label("postgres"),
        Suite::new(Server::new(true)).label("postgres_pooled"),
    ])
}
