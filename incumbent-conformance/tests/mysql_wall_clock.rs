//! R6 on MariaDB: the wall clocks of the candidates and of the server are stepped together.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::{Mysql, WallClock};

fn main() -> ExitCode {
    let mut mysql = None;
    machine::main_on(|| {
        let clock = WallClock::of_this_process().expect("this process has one");
        let mysql = mysql.insert(Mysql::options().wall_clock(&clock).start().expect("MariaDB starts"));
        [("mysql", mysql.url(), Duration::from_secs(2))]
    })
}
