//! The rules on MariaDB, a primary and a replica that is promoted.

mod mysql;
#[expect(dead_code, reason = "what stalls here is no disk")]
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::main_of(vec![Suite::new(mysql::Server::new(true)).label("mysql_replicated").jobs(12)])
}
