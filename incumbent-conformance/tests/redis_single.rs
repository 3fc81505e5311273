//! The rules on Redis 7.0, one server.

mod redis;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(redis::Server::new(false)).main()
}
