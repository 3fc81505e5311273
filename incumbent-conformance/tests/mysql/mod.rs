//! MariaDB under the suite: a real one, reached through a relay, with the faults that operators and machines make.

use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};
use testkit::{Mysql, Proc};

use crate::served::{self, Served};

/// A server that starts when it is first needed, with a replica if asked for.
pub(crate) struct Server {
    with_replica: bool,
    served: Served<Pair>,
}

struct Pair {
    /// One server, or two of which one is the replica.
    servers: Vec<Mysql>,
    primary: usize,
    /// A session that keeps all commits waiting.
    stall: Option<Proc>,
}

impl Server {
    pub(crate) fn new(with_replica: bool) -> Server {
        let start = move || {
            let primary = Mysql::options().setting("log-bin=log").start().expect("MariaDB starts");
            let replica = with_replica.then(|| primary.replica().expect("a replica"));
            Pair { servers: [primary].into_iter().chain(replica).collect(), primary: 0, stall: None }
        };
        let served = Served::new(start, |pair| pair.servers.iter().map(Mysql::addr).collect());
        Server { with_replica, served }
    }

    fn sql(&self, sql: String) -> Hook<'static> {
        self.served.by_hand(move |running| drop(running.servers().primary().sql(&sql)))
    }
}

impl Pair {
    fn primary(&mut self) -> &mut Mysql {
        &mut self.servers[self.primary]
    }

    /// The replica has all that the primary has.
    fn catch_up(&mut self) {
        let place = self.primary().sql("SELECT @@gtid_binlog_pos");
        let replica = &self.servers[1 - self.primary];
        assert_eq!(replica.sql(&format!("SELECT MASTER_GTID_WAIT('{place}', 30)")), "0");
    }

    /// Makes the replica the primary; the old one lives on and only reads.
    fn promote(&mut self) {
        self.primary().sql("SET GLOBAL read_only = ON");
        self.primary = 1 - self.primary;
        self.primary().promote();
    }
}

impl Harness for Server {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let url = {
                let running = self.served.running();
                running.servers().primary().url_at(&running.hosts())
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
        self.served.by_hand(|running| running.servers().primary().restart())
    }

    fn fail_over(&self) -> Hook<'_> {
        if !self.with_replica {
            return Err("one server has nobody to fail over to");
        }
        self.served.by_hand(|running| {
            let mut pair = running.servers();
            pair.catch_up();
            pair.promote();
        })
    }

    fn lose_writes(&self, promote: bool) -> Hook<'_> {
        if !self.with_replica {
            return Err("one server has no replica");
        }
        self.served.by_hand(move |running| {
            let mut pair = running.servers();
            if promote {
                pair.promote();
            } else {
                pair.catch_up();
                pair.servers[1 - pair.primary].sql("STOP SLAVE");
            }
        })
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        if self.with_replica {
            return Err("done with one server");
        }
        self.served.by_hand(move |running| {
            let mut pair = running.servers();
            let mysql = pair.primary();
            mysql.stop();
            served::back_up(&mysql.data(), put_back);
            mysql.restart();
        })
    }

    /// Commits wait for a lock on all tables; reads go on.
    fn stall(&self, on: bool) -> Hook<'_> {
        self.served.by_hand(move |running| {
            let Pair { servers, primary, stall } = &mut *running.servers();
            let mysql = &servers[*primary];
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
        self.served.hold_answers(on)
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test mysql_wall_clock")
    }

    /// Rows and connections.
    fn objects(&self) -> Hook<'_, u64> {
        self.served.by_hand(|running| {
            let rows: u64 = running
                .servers()
                .primary()
                .sql("SELECT COUNT(*) FROM incumbent_record")
                .parse()
                .expect("a count");
            rows + running.connections()
        })
    }

    /// Each packet that writes is one transaction with three SELECTs in it; each other has one or two.
    fn requests(&self) -> Hook<'_, u64> {
        self.served.by_hand(|running| {
            let mut pair = running.servers();
            let mysql = pair.primary();
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
