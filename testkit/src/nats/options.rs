//! How NATS servers are to be started.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Nats;
use super::member::Ports;
use crate::error::Result;
use crate::fetch::{self, Bundle};
use crate::tls::Certificates;

/// A version of nats-server that Debian ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatsVersion {
    /// 2.9.10 of Debian 12: with replicas it acknowledges two writes of one revision.
    V2_9,
    /// 2.10.27 of Debian 13.
    V2_10,
}

impl NatsVersion {
    /// The packages that hold it.
    pub fn bundle(self) -> &'static Bundle {
        match self {
            NatsVersion::V2_9 => &fetch::NATS_2_9,
            NatsVersion::V2_10 => &fetch::NATS_2_10,
        }
    }
}

/// What to start; made by [`Nats::single`] and [`Nats::cluster`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    /// One for each member.
    pub(super) versions: Vec<NatsVersion>,
    pub(super) dir: Option<PathBuf>,
    pub(super) login: Option<(String, String)>,
    pub(super) users: String,
    pub(super) config: String,
    pub(super) is_operated: bool,
    pub(super) tls: bool,
    pub(super) client_auth: bool,
    pub(super) bucket: bool,
}

impl Options {
    pub(super) fn new(versions: Vec<NatsVersion>) -> Options {
        Options {
            versions,
            dir: None,
            login: None,
            users: String::new(),
            config: String::new(),
            is_operated: false,
            tls: false,
            client_auth: false,
            bucket: true,
        }
    }

    /// Keeps data, logs and certificates under `dir`, which outlives the servers: a later start finds its data.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.dir = Some(dir.into());
        self
    }

    /// Lets only users in: this one, with `permissions` in the words of nats-server's configuration (empty: all), which goes into
    /// the URL, and the testkit itself.
    pub fn user(mut self, user: &str, password: &str, permissions: &str) -> Options {
        self.login = Some((user.to_owned(), password.to_owned()));
        self.entry(&format!("user: \"{user}\", password: \"{password}\"{}", behind(permissions)))
    }

    /// Lets only users in: whoever has the seed of this public nkey, and the testkit itself.
    pub fn nkey(self, public: &str) -> Options {
        self.entry(&format!("nkey: {public}"))
    }

    fn entry(mut self, entry: &str) -> Options {
        let _ = writeln!(self.users, "  {{ {entry} }}");
        self
    }

    /// Lets only those in who know this token. The testkit itself does.
    pub fn token(mut self, token: &str) -> Options {
        self.users = format!("token: {token}");
        self
    }

    /// Lets only users in whose JWT an operator's account has signed: one, with the file [`Nats::creds`].
    pub fn operator(mut self) -> Options {
        self.is_operated = true;
        self
    }

    /// One more line of configuration for every member.
    pub fn config(mut self, line: &str) -> Options {
        let _ = writeln!(self.config, "{line}");
        self
    }

    /// Serves clients with TLS only, with certificates of [`Nats::certificates`].
    pub fn tls(mut self) -> Options {
        self.tls = true;
        self
    }

    /// TLS, and only clients that show a certificate of the same authority are served.
    pub fn client_auth(mut self) -> Options {
        self.client_auth = true;
        self.tls()
    }

    /// Makes no bucket.
    pub fn without_bucket(mut self) -> Options {
        self.bucket = false;
        self
    }

    /// Fetches the versions if need be, starts the servers, waits until all of them serve and makes the bucket.
    pub fn start(self) -> Result<Nats> {
        Nats::start(self)
    }

    /// The token that the testkit itself must show.
    pub(super) fn token_of_testkit(&self) -> Option<&str> {
        self.users.strip_prefix("token: ")
    }

    /// The configuration of member `i`.
    pub(super) fn configuration(
        &self,
        i: usize,
        dir: &Path,
        ports: &[Ports],
        tls: Option<&Certificates>,
    ) -> String {
        let mine = &ports[i];
        let mut text = format!(
            "server_name: n{i}\nlisten: \"{}\"\nhttp: \"{}\"\n",
            mine.client.addr(),
            mine.monitor.addr()
        );
        let sync = match self.versions[i] {
            NatsVersion::V2_9 => "",
            NatsVersion::V2_10 => ", sync_interval: always",
        };
        let store = dir.join(format!("n{i}"));
        let _ = writeln!(
            text,
            "jetstream {{ store_dir: \"{}\", max_mem: 64MB, max_file: 1GB{sync} }}",
            store.display()
        );
        if ports.len() > 1 {
            let routes: Vec<String> =
                ports.iter().map(|ports| format!("nats://{}", ports.route.addr())).collect();
            let _ = writeln!(
                text,
                "cluster {{ name: testkit, listen: \"{}\", routes: [{}] }}",
                mine.route.addr(),
                routes.join(", ")
            );
        }
        if let Some(token) = self.token_of_testkit() {
            let _ = writeln!(text, "authorization {{ token: \"{token}\" }}");
        } else if !self.users.is_empty() {
            let _ = writeln!(
                text,
                "authorization {{ users: [\n  {{ user: testkit, password: testkit }}\n{}] }}",
                self.users
            );
        }
        if let Some(tls) = tls {
            let _ = writeln!(
                text,
                "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: {} }}",
                tls.server_cert.display(),
                tls.server_key.display(),
                tls.ca.display(),
                self.client_auth
            );
        }
        text + &self.config
    }
}

fn behind(permissions: &str) -> String {
    if permissions.is_empty() { String::new() } else { format!(", permissions: {{ {permissions} }}") }
}
