//! The rules on one MariaDB server.

mod mysql;
#[expect(dead_code, reason = "what stalls here is no disk")]
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::main_of(vec![Suite::new(mysql::Server::new(false)).label("mysql").jobs(12)])
}
