//! R6 on PostgreSQL: the wall clocks of the candidates and of the server are stepped together.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::{Postgres, WallClock};

fn main() -> ExitCode {
    let mut postgres = None;
    machine::main_on(|| {
        let clock = WallClock::of_this_process().expect("this process has one");
        let postgres =
            postgres.insert(Postgres::options().wall_clock(&clock).start().expect("PostgreSQL starts"));
        [("postgres", postgres.url(), Duration::from_secs(2))]
    })
}
