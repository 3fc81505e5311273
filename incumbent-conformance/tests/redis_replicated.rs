//! The rules on Redis 7.0, a primary and a replica that change their roles.

mod redis;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(redis::Server::new(true)).jobs(12).main()
}
