//! How etcd servers are to be started.

use std::path::PathBuf;

use super::{Etcd, Version};
use crate::error::Result;

/// What to start; made by [`Etcd::single`] and [`Etcd::cluster`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) version: Version,
    pub(super) members: usize,
    pub(super) flags: Vec<String>,
    pub(super) dir: Option<PathBuf>,
    pub(super) user: Option<(String, String)>,
    pub(super) tls: bool,
    pub(super) client_auth: bool,
}

impl Options {
    pub(super) fn new(version: Version, members: usize) -> Options {
        Options { version, members, flags: Vec::new(), dir: None, user: None, tls: false, client_auth: false }
    }

    /// Heartbeats each 10 ms and elections after 100 ms, instead of 100 ms and 1 s. A lease then lives at least
    /// 1 s instead of 2 s.
    pub fn fast(self) -> Options {
        self.flag("--heartbeat-interval=10").flag("--election-timeout=100")
    }

    /// One more command-line flag for every member.
    pub fn flag(mut self, flag: impl Into<String>) -> Options {
        self.flags.push(flag.into());
        self
    }

    /// Keeps data, logs and certificates under `dir`, which outlives the servers: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Switches authentication on, with a user who may read and write everything.
    pub fn auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Options {
        self.user = Some((user.into(), password.into()));
        self
    }

    /// Serves clients with TLS only, with certificates of [`Etcd::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// TLS, and only clients that show a certificate of the same authority are served.
    pub fn client_auth(mut self) -> Options {
        self.client_auth = true;
        self.tls()
    }

    /// Fetches the version if need be, starts the servers and waits until all of them serve.
    pub fn start(self) -> Result<Etcd> {
        Etcd::start(self)
    }
}
