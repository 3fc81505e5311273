//! One Consul server process.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::{MASTER, Options, program};
use crate::error::{Error, Result};
use crate::ports::Port;
use crate::server::Server;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// Plain text, for what tests do by hand.
    pub(super) http: Port,
    pub(super) https: Port,
    rpc: Port,
    serf: Port,
    dir: PathBuf,
    pub(super) server: Server,
}

impl Member {
    pub(super) fn new(number: usize, dir: &Path) -> Member {
        let [http, https, rpc, serf] = std::array::from_fn(|_| Port::reserve());
        let dir = dir.join(format!("n{number}"));
        let server = Server::new(&format!("Consul server n{number}"), dir.join("log"));
        Member { name: format!("n{number}"), http, https, rpc, serf, dir, server }
    }

    /// Writes its configuration.
    pub(super) fn configure(
        &self,
        options: &Options,
        peers: &[String],
        tls: Option<&Certificates>,
    ) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(|e| Error::new(format!("{}: {e}", self.dir.display())))?;
        let mut config = json!({
            "server": true,
            "bootstrap_expect": options.members,
            "node_name": self.name,
            "datacenter": "dc1",
            "data_dir": self.dir.join("data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "advertise_addr": "127.0.0.1",
            "retry_join": peers,
            "retry_interval": "1s",
            "disable_update_check": true,
            "enable_debug": false,
            // Counts the requests; see `requests`.
            "log_level": "DEBUG",
            "leave_on_terminate": false,
            "skip_leave_on_interrupt": true,
            // Tests wait leases out: below the 10 s that Consul keeps without this.
            "session_ttl_min": "1s",
            "performance": { "raft_multiplier": 1 },
            "ports": {
                "http": self.http.number(),
                "https": if tls.is_some() { i32::from(self.https.number()) } else { -1 },
                "server": self.rpc.number(),
                "serf_lan": self.serf.number(),
                "serf_wan": -1,
                "dns": -1,
                "grpc": -1,
            },
        });
        if options.acl {
            config["acl"] = json!({
                "enabled": true,
                "default_policy": "deny",
                "tokens": { "master": MASTER, "agent": MASTER },
            });
        }
        if let Some(tls) = tls {
            config["cert_file"] = json!(tls.server_cert);
            config["key_file"] = json!(tls.server_key);
            config["ca_file"] = json!(tls.ca);
            config["verify_incoming_https"] = json!(options.client_auth);
        }
        let path = self.config();
        fs::write(&path, config.to_string()).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    pub(super) fn serf_addr(&self) -> String {
        self.serf.addr().to_string()
    }

    fn config(&self) -> PathBuf {
        self.dir.join("consul.json")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn spawn(&mut self, bin: &Path) -> Result<()> {
        let mut command = program(bin);
        command.args(["agent", "-config-file"]).arg(self.config());
        self.server.spawn(command)
    }

    /// One request by hand, as the one who may do everything: status and body.
    pub(super) fn call(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http.addr(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nX-Consul-Token: {MASTER}\r\nContent-Length: {length}\r\n\r\n{body}",
            self.http.addr()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }
}
