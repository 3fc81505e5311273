//! The rules on NATS JetStream 2.10.27, three servers and a bucket with three replicas.

mod nats;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;

fn main() -> ExitCode {
    // What is left behind is the same with one server, which takes less time for it.
    Suite::new(nats::Servers::new(3)).terms(100).jobs(12).main()
}
