//! The rules on one PostgreSQL server, reached through a relay: directly, and by way of a transaction pooler.

#[expect(dead_code, reason = "what stalls here is no disk")]
mod served;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::{PgBouncer, PoolMode, Postgres};

use served::Served;

/// A server that starts when it is first needed, and a pooler if asked for.
struct Server(Served<(Postgres, Option<PgBouncer>)>);

impl Server {
    fn new(pooled: bool) -> Server {
        let start = move || {
            let postgres = Postgres::options().setting("log_duration=on").start().expect("PostgreSQL starts");
            let bouncer =
                pooled.then(|| PgBouncer::start(&postgres, PoolMode::Transaction).expect("PgBouncer starts"));
            (postgres, bouncer)
        };
        Server(Served::new(start, |(postgres, bouncer)| {
            vec![bouncer.as_ref().map_or(postgres.addr(), PgBouncer::addr)]
        }))
    }

    fn sql(&self, sql: String) -> Hook<'static> {
        self.0.by_hand(move |running| drop(running.servers().0.psql(&sql)))
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
        self.0.by_hand(|running| running.servers().0.restart())
    }

    fn fail_over(&self) -> Hook<'_> {
        Err("one server has nobody to fail over to; the tests postgres_failover have")
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        self.0.by_hand(move |running| {
            let postgres = &mut running.servers().0;
            postgres.stop();
            served::back_up(&postgres.data(), put_back);
            postgres.restart();
        })
    }

    /// Commits wait for a standby that is not there; reads go on.
    fn stall(&self, on: bool) -> Hook<'_> {
        let names = if on { "nobody" } else { "" };
        self.0.by_hand(move |running| {
            let postgres = &running.servers().0;
            postgres.psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
            postgres.psql("SELECT pg_reload_conf()");
            let shown = || postgres.psql("SHOW synchronous_standby_names") == names;
            assert!(testkit::wait_until(Duration::from_secs(10), shown));
        })
    }

    fn hold_answers(&self, on: bool) -> Hook<'_> {
        self.0.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test postgres_wall_clock")
    }

    /// Rows and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| {
            let rows: u64 =
                running.servers().0.psql("SELECT count(*) FROM incumbent.record").parse().expect("a count");
            rows + running.connections()
        })
    }

    /// Each statement is parsed, bound and executed, and each of these is logged.
    fn requests(&self) -> Hook<'_, u64> {
        self.0.by_hand(|running| running.servers().0.log().matches(" duration: ").count() as u64 / 3)
    }
}

fn main() -> ExitCode {
    Suite::main_of(vec![
        Suite::new(Server::new(false)).label("postgres").jobs(12),
        Suite::new(Server::new(true)).label("postgres_pooled").jobs(12),
    ])
}
