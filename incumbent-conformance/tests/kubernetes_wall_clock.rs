//! R6 on Kubernetes: the candidates' wall clock; the servers', which are written in Go, cannot be set without the machine's.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::Kubernetes;

fn main() -> ExitCode {
    let mut server = None;
    machine::main_on(|| {
        let server = server.insert(Kubernetes::start().expect("the API server starts"));
        [("kubernetes", server.url(), Duration::from_secs(5))]
    })
}
