//! R6 on ZooKeeper: the wall clocks of the candidates and of the server, which inherits this process's, are stepped together.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::Zookeeper;
use testkit::zookeeper::Version;

fn main() -> ExitCode {
    let mut zookeeper = None;
    machine::main_on(|| {
        let server = Zookeeper::single(Version::V3_9).tick_ms(200).start().expect("ZooKeeper starts");
        let zookeeper = zookeeper.insert(server);
        [("zookeeper_3_9", zookeeper.url(), Duration::from_secs(2))]
    })
}
