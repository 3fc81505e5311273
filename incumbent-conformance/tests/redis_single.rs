//! The rules on Redis 7.0, one server.

mod redis;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(redis::Server::new(false)).jobs(12).main()
}
