//! The rules on Consul 1.8, one server.

mod cluster;
mod consul;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::main_of([Suite::new(consul::Servers::new(1)).label("consul").jobs(12)])
}
