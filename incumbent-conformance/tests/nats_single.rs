//! The rules on NATS JetStream 2.10.27, one server.

mod nats;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(nats::Servers::new(1)).jobs(12).main()
}
