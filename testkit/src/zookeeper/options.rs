//! How ZooKeeper servers are to be started.

use std::path::PathBuf;
use std::process::Command;

use super::{Version, Zookeeper};
use crate::error::Result;
use crate::fetch;
use crate::wall_clock::WallClock;

/// What to start; made by [`Zookeeper::single`] and [`Zookeeper::ensemble`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) version: Version,
    pub(super) members: usize,
    pub(super) tick_ms: u32,
    pub(super) dir: Option<PathBuf>,
    pub(super) tls: bool,
    pub(super) client_auth: bool,
    pub(super) wall_clock: Option<WallClock>,
}

impl Options {
    pub(super) fn new(version: Version, members: usize) -> Options {
        Options {
            version,
            members,
            tick_ms: 500,
            dir: None,
            tls: false,
            client_auth: false,
            wall_clock: None,
        }
    }

    /// The length of a tick; without it half a second, a quarter of what ZooKeeper's own example has. A session lasts two
    /// ticks at least and 20 at most.
    pub fn tick_ms(mut self, tick_ms: u32) -> Options {
        self.tick_ms = tick_ms;
        self
    }

    /// Keeps data, logs and certificates under `dir`, which outlives the servers: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Serves clients with TLS too, on a port of its own, with certificates of [`Zookeeper::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// TLS, and only clients that show a certificate of the same authority are served there.
    pub fn client_auth(mut self) -> Options {
        self.client_auth = true;
        self.tls()
    }

    /// Gives the servers a wall clock of their own.
    pub fn wall_clock(mut self, clock: &WallClock) -> Options {
        self.wall_clock = Some(clock.clone());
        self
    }

    /// Fetches the version if need be, starts the servers and waits until all of them serve.
    pub fn start(self) -> Result<Zookeeper> {
        Zookeeper::start(self)
    }
}

/// Java for small servers that start fast.
pub(super) fn java() -> Command {
    let mut java = fetch::java().unwrap_or_else(|e| panic!("{e}"));
    java.args(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
    java.arg("-Djava.net.preferIPv4Stack=true");
    java
}
