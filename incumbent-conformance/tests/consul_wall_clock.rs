//! R6 on Consul: the candidates' wall clock; the servers', which are written in Go, cannot be set without the machine's.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::Consul;

fn main() -> ExitCode {
    let mut consul = None;
    machine::main_on(|| {
        let consul = consul.insert(Consul::single().start().expect("Consul starts"));
        [("consul", consul.url(), Duration::from_secs(2))]
    })
}
