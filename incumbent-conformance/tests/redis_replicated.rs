//! The rules on Redis 7.0, a primary and a replica that change their roles.

mod redis;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(redis::Server::new(true)).main()
}
