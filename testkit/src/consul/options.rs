//! How Consul servers are to be started.

use std::path::PathBuf;

use super::Consul;
use crate::error::Result;

/// What to start; made by [`Consul::single`] and [`Consul::cluster`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) members: usize,
    pub(super) dir: Option<PathBuf>,
    pub(super) acl: bool,
    pub(super) tls: bool,
    pub(super) client_auth: bool,
}

impl Options {
    pub(super) fn new(members: usize) -> Options {
        Options { members, dir: None, acl: false, tls: false, client_auth: false }
    }

    /// Keeps data, logs and certificates under `dir`, which outlives the servers: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Switches access control on: who has no token may do nothing. See [`Consul::token`].
    pub fn acl(mut self) -> Options {
        self.acl = true;
        self
    }

    /// Serves [`Consul::url`] with TLS only, with certificates of [`Consul::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// TLS, and only clients that show a certificate of the same authority are served.
    pub fn client_auth(mut self) -> Options {
        self.client_auth = true;
        self.tls()
    }

    /// Fetches Consul if need be, starts the servers and waits until all of them serve.
    pub fn start(self) -> Result<Consul> {
        Consul::start(self)
    }
}
