//! One nats-server process.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::ports::Port;
use crate::server::Server;

/// Where one member listens.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) client: Port,
    pub(super) route: Port,
    pub(super) monitor: Port,
}

impl Ports {
    pub(super) fn reserve() -> Ports {
        Ports { client: Port::reserve(), route: Port::reserve(), monitor: Port::reserve() }
    }
}

#[derive(Debug)]
pub(super) struct Member {
    program: PathBuf,
    config: PathBuf,
    pub(super) server: Server,
}

impl Member {
    /// Its configuration is `nI.conf` in `dir`; it does not run yet.
    pub(super) fn new(i: usize, program: PathBuf, dir: &Path) -> Member {
        let path = |kind: &str| dir.join(format!("n{i}.{kind}"));
        let server = Server::new(&format!("nats member n{i}"), path("log"));
        Member { program, config: path("conf"), server }
    }

    pub(super) fn configure(&self, text: &str) -> Result<()> {
        fs::write(&self.config, text).map_err(|e| Error::new(format!("{}: {e}", self.config.display())))
    }

    pub(super) fn spawn(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&self.config);
        self.server.spawn(command)
    }
}

/// What the monitoring port says at `path`.
pub(super) fn monitor(port: &Port, path: &str) -> Option<Value> {
    let mut connection = TcpStream::connect_timeout(&port.addr(), Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(connection, "GET {path} HTTP/1.0\r\nHost: testkit\r\n\r\n").ok()?;
    let mut text = String::new();
    connection.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}
