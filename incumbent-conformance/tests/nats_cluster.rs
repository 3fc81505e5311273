//! The rules on NATS JetStream 2.10.27, three servers and a bucket with three replicas.

mod nats;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    Suite::new(nats::Servers::new(3)).main()
}
