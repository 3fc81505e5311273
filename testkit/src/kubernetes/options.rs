//! How an API server is to be started.

use std::path::PathBuf;

use super::Kubernetes;
use crate::error::Result;

/// What to start; made by [`Kubernetes::options`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(super) flags: Vec<String>,
    pub(super) dir: Option<PathBuf>,
    pub(super) users: Vec<String>,
    pub(super) audit: bool,
}

impl Options {
    /// One more command-line flag for the API server.
    pub fn flag(mut self, flag: impl Into<String>) -> Options {
        self.flags.push(flag.into());
        self
    }

    /// Keeps data, logs and certificates under `dir`, which outlives the servers.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// One more user who may do everything.
    pub fn user(mut self, name: impl Into<String>) -> Options {
        self.users.push(name.into());
        self
    }

    /// Keeps a list of what was asked about Leases; see [`Kubernetes::requests`].
    pub fn audit(mut self) -> Options {
        self.audit = true;
        self
    }

    /// Builds and fetches the programs if need be, starts the servers and waits until the API is served.
    pub fn start(self) -> Result<Kubernetes> {
        Kubernetes::start_with(self)
    }
}
