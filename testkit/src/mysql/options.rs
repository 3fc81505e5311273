//! How a MariaDB server is to be started.

use std::path::PathBuf;

use super::Mysql;
use crate::error::Result;
use crate::wall_clock::WallClock;

/// What to start; made by [`Mysql::options`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(super) settings: Vec<String>,
    pub(super) dir: Option<PathBuf>,
    pub(super) tls: bool,
    pub(super) wall_clock: Option<WallClock>,
}

impl Options {
    /// One more setting, as `name=value`.
    pub fn setting(mut self, setting: impl Into<String>) -> Options {
        self.settings.push(setting.into());
        self
    }

    /// Keeps data, log and certificates under `dir`, which outlives the server: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Serves everyone but `root` with TLS only, with certificates of [`Mysql::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// Gives the server a wall clock that the test moves.
    pub fn wall_clock(mut self, clock: &WallClock) -> Options {
        self.wall_clock = Some(clock.clone());
        self
    }

    /// Fetches MariaDB if need be, starts the server and waits until it serves.
    pub fn start(self) -> Result<Mysql> {
        Mysql::start(self)
    }
}
