//! The rules on ZooKeeper, three members of 3.9.3.

mod cluster;
mod served;
mod zookeeper;

use std::process::ExitCode;

use incumbent_conformance::Suite;
use testkit::zookeeper::Version;

fn main() -> ExitCode {
    Suite::new(zookeeper::Servers::new(Version::V3_9, 3)).label("zookeeper_3_9").jobs(12).main()
}
