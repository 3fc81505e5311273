//! The rules on ZooKeeper, one node, on 3.8.0 and 3.9.3.

mod cluster;
mod served;
mod zookeeper;

use std::process::ExitCode;

use incumbent_conformance::Suite;
use testkit::zookeeper::Version;

fn main() -> ExitCode {
    let suite = |label: &str, version| Suite::new(zookeeper::Servers::new(version, 1)).label(label).jobs(12);
    Suite::main_of([suite("zookeeper_3_8", Version::V3_8), suite("zookeeper_3_9", Version::V3_9)])
}
