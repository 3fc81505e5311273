//! R6 on etcd: the candidates' wall clock; the servers', which are written in Go, cannot be set without the machine's.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::{Etcd, Version};

fn main() -> ExitCode {
    let mut etcd = None;
    machine::main_on(|| {
        let etcd = etcd.insert(Etcd::single(Version::V3_5).start().expect("etcd starts"));
        [("etcd_3_5", etcd.url(), Duration::from_secs(2))]
    })
}
