//! R6 on NATS: the candidates' wall clock, which makes the tokens; the server's, which is written in Go, cannot be set without the
//! machine's.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::{Nats, NatsVersion};

fn main() -> ExitCode {
    let mut nats = None;
    machine::main_on(|| {
        let nats = nats.insert(Nats::single(NatsVersion::V2_10).start().expect("nats starts"));
        [("nats_2_10", nats.url(), Duration::from_secs(1))]
    })
}
