//! PgBouncer in front of a server.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use super::{PASSWORD, PATIENCE, Postgres, USER, program};
use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::fetch::PGBOUNCER;
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::server::{Server, hand_over};

/// For how long a client keeps a connection of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// Until it leaves.
    Session,
    /// Until its transaction ends: what a session remembers is lost, or somebody else's.
    Transaction,
}

/// A running PgBouncer; dropping it kills it.
#[derive(Debug)]
pub struct PgBouncer {
    port: Port,
    server: Server,
    dir: PathBuf,
}

impl PgBouncer {
    /// Starts one in front of `postgres`, which keeps at most twenty connections to it.
    pub fn start(postgres: &Postgres, mode: PoolMode) -> Result<PgBouncer> {
        let root = PGBOUNCER.ensure()?;
        let dir = run_dir("pgbouncer");
        let port = Port::reserve();
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|e| Error::new(format!("{}: {e}", path.display()))).map(|()| path)
        };
        let users = write("users.txt", format!("\"{USER}\" \"{PASSWORD}\"\n"))?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let ini = write(
            "pgbouncer.ini",
            format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
                 unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = 20\nserver_login_retry = 1\n\
                 max_client_conn = 500\n",
                postgres.port.number(),
                port.number(),
                users.display(),
            ),
        )?;
        hand_over(&dir)?;
        let mut server = Server::new("PgBouncer", dir.join("log"));
        let mut command = program(&root, &root.join("usr/sbin/pgbouncer"));
        command.arg(ini);
        server.spawn(command)?;
        let mut bouncer = PgBouncer { port, server, dir };
        let addr = bouncer.port.addr();
        let serves = wait_until(PATIENCE, || {
            bouncer.server.has_exited() || TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        if serves && !bouncer.server.has_exited() {
            return Ok(bouncer);
        }
        Err(Error::new(format!("PgBouncer does not serve:\n{}", bouncer.server.log_tail())))
    }

    /// The address, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.port.addr().to_string()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.server.log()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.server.end();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
