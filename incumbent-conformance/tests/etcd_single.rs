//! The rules on etcd, one node, on 3.4.23 (which answers keep-alives of leases that are gone) and 3.5.16.

mod cluster;
mod etcd;
mod served;

use std::process::ExitCode;

use incumbent_conformance::Suite;
use testkit::Version;

fn main() -> ExitCode {
    let suite = |label: &str, version| Suite::new(etcd::Servers::new(version, 1)).label(label).jobs(12);
    Suite::main_of([suite("etcd_3_4", Version::V3_4), suite("etcd_3_5", Version::V3_5)])
}
