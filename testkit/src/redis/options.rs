//! How a Redis server is to be started.

use std::path::{Path, PathBuf};

use super::Redis;
use crate::error::Result;
use crate::tls::Certificates;

/// What to start; made by [`Redis::single`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) dir: Option<PathBuf>,
    pub(super) user: Option<(String, String)>,
    pub(super) tls: bool,
    pub(super) client_auth: bool,
    durable: bool,
    flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { dir: None, user: None, tls: false, client_auth: false, durable: true, flags: Vec::new() }
    }
}

impl Options {
    /// More settings, as on the command line: `--maxmemory 10mb` are two of them.
    pub fn flags(mut self, flags: &[&str]) -> Options {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Keeps data, log and certificates in `dir`, which outlives the server: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Keeps everything in memory only.
    pub fn volatile(mut self) -> Options {
        self.durable = false;
        self
    }

    /// Adds a user with these rights, whom the URL then names. The default user, as which redis-cli works, stays.
    pub fn user(mut self, name: &str, password: &str, rights: &str) -> Options {
        self.user = Some((name.to_owned(), password.to_owned()));
        let password = format!(">{password}");
        self.flags(&["--user", name, "on", &password]).flags(&rights.split(' ').collect::<Vec<_>>())
    }

    /// Serves clients with TLS only, with certificates of [`Redis::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// TLS, and only clients that show a certificate of the same authority are served.
    pub fn client_auth(mut self) -> Options {
        self.client_auth = true;
        self.tls()
    }

    /// Fetches the server if need be, starts it and waits until it serves.
    ///
    /// # Errors
    /// If it cannot be fetched, or does not serve.
    pub fn start(self) -> Result<Redis> {
        Redis::start(self)
    }

    pub(super) fn args(&self, dir: &Path, port: u16, tls: Option<&Certificates>) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut set = |name: &str, value: &str| args.extend([format!("--{name}"), value.to_owned()]);
        // The directory ends with a slash, so that who looks for processes of this run finds it by its name.
        set("dir", &format!("{}/", dir.display()));
        set("bind", "127.0.0.1");
        set("set-proc-title", "no");
        set("save", "");
        set("appendonly", if self.durable { "yes" } else { "no" });
        set("appendfsync", "always");
        // A replica begins with a copy of the primary: at once, not after the usual five seconds.
        set("repl-diskless-sync-delay", "0");
        match tls {
            None => set("port", &port.to_string()),
            Some(tls) => {
                set("port", "0");
                set("tls-port", &port.to_string());
                set("tls-cert-file", &tls.server_cert.display().to_string());
                set("tls-key-file", &tls.server_key.display().to_string());
                set("tls-ca-cert-file", &tls.ca.display().to_string());
                set("tls-auth-clients", if self.client_auth { "yes" } else { "no" });
            }
        }
        args.extend(self.flags.iter().cloned());
        args
    }
}
