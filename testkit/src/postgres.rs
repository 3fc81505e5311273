//! PostgreSQL 15 servers, standbys of them, and PgBouncer, with the faults that tests inject.

mod bouncer;
mod options;

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::fetch::{POSTGRES, library_path};
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::server::{Server, hand_over, run, without_root};
use crate::tls::Certificates;
pub use bouncer::{PgBouncer, PoolMode};
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);
/// The user of [`Postgres::url`], who owns the database of that name, and the password.
const USER: &str = "app";
const PASSWORD: &str = "app-password";

/// A running PostgreSQL server; dropping it kills it, and removes its data unless a directory was chosen for it.
///
/// Everyone may log in as the superuser `postgres`; others need their password (SCRAM). A method that cannot do what it says panics
/// with the reason.
#[derive(Debug)]
pub struct Postgres {
    options: Options,
    root: PathBuf,
    dir: PathBuf,
    port: Port,
    server: Server,
    certificates: Option<Certificates>,
}

impl Postgres {
    /// One server; [`Options::start`] starts it.
    pub fn options() -> Options {
        Options::default()
    }

    fn start(options: Options) -> Result<Postgres> {
        let mut postgres = Postgres::prepare(options)?;
        if !postgres.data().join("PG_VERSION").exists() {
            postgres.init()?;
        }
        postgres.launch()?;
        postgres.psql_in("postgres", "SELECT 1 FROM pg_roles WHERE rolname = 'app'").and_then(|found| {
            if found.trim().is_empty() {
                postgres.psql_in("postgres", &format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"))?;
                postgres.psql_in("postgres", &format!("CREATE DATABASE {USER} OWNER {USER}"))?;
            }
            Ok(())
        })?;
        Ok(postgres)
    }

    fn prepare(options: Options) -> Result<Postgres> {
        let root = POSTGRES.ensure()?;
        let dir = options.dir.clone().unwrap_or_else(|| run_dir("postgres"));
        fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
        let certificates = options.tls.then(|| Certificates::make(&dir));
        hand_over(&dir)?;
        let server = Server::new("PostgreSQL", dir.join("log"));
        Ok(Postgres { options, root, dir, port: Port::reserve(), server, certificates })
    }

    fn init(&self) -> Result<()> {
        let mut initdb = self.program("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        run(initdb.arg("-D").arg(self.data()))?;
        let host = if self.options.tls { "hostssl" } else { "host" };
        let rules = format!(
            "host all postgres 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n\
             {host} all all 127.0.0.1/32 scram-sha-256\n",
        );
        let path = self.data().join("pg_hba.conf");
        fs::write(&path, rules).map_err(|e| Error::new(format!("{}: {e}", path.display())))
    }

    /// Starts the server on its data and waits until it serves.
    fn launch(&mut self) -> Result<()> {
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(self.data());
        let mut set = |setting: String| {
            postgres.arg("-c").arg(setting);
        };
        set(format!("port={}", self.port.number()));
        for setting in
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB", "jit=off"]
        {
            set(setting.to_owned());
        }
        if let Some(tls) = &self.certificates {
            set("ssl=on".to_owned());
            set(format!("ssl_cert_file={}", tls.server_cert.display()));
            set(format!("ssl_key_file={}", tls.server_key.display()));
            set(format!("ssl_ca_file={}", tls.ca.display()));
            // The server refuses a key that others may read.
            use std::os::unix::fs::PermissionsExt;
            let _ = fs::set_permissions(&tls.server_key, fs::Permissions::from_mode(0o600));
        }
        self.options.settings.iter().cloned().for_each(set);
        if let Some(clock) = &self.options.wall_clock {
            clock.give_to(&mut postgres);
        }
        self.server.spawn(postgres)?;
        let mut exited = false;
        let serves = wait_until(PATIENCE, || {
            exited = self.server.has_exited();
            exited || self.serves()
        });
        if serves && !exited {
            return Ok(());
        }
        Err(Error::new(format!("PostgreSQL does not serve:\n{}", self.server.log_tail())))
    }

    fn serves(&self) -> bool {
        // A cheap look first: each psql is a process.
        TcpStream::connect_timeout(&self.port.addr(), Duration::from_secs(1)).is_ok()
            && self.psql_in("postgres", "SELECT 1").is_ok()
    }

    /// The address, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.port.addr().to_string()
    }

    /// The URL by which `incumbent` comes in as `app`, who owns the database `app`.
    pub fn url(&self) -> String {
        self.url_at(&self.addr())
    }

    /// The same by way of another address: a relay's, or a pooler's.
    pub fn url_at(&self, addr: &str) -> String {
        let mut url = format!("postgres://{USER}:{PASSWORD}@{addr}/{USER}");
        if let Some(tls) = &self.certificates {
            url.push_str(&format!("?tls=on&ca={}", tls.ca.display()));
        }
        url
    }

    /// The certificates in use, if TLS is.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The process id of the server's first process, which must be running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("PostgreSQL is not running")
    }

    /// What the server has logged since its first start.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Stops the server politely and at once: sessions are ended, nothing is lost.
    #[track_caller]
    pub fn stop(&mut self) {
        self.server.stop(Signal::INT, PATIENCE);
    }

    /// Kills the server and all its sessions, as a crash of the machine would, except that the page cache stays.
    #[track_caller]
    pub fn kill(&mut self) {
        // An immediate shutdown writes nothing and leaves no session behind; SIGKILL of the first process would.
        self.server.stop(Signal::QUIT, PATIENCE);
    }

    /// Starts the server again on its data, killing it first if it runs, and waits until it serves.
    #[track_caller]
    pub fn restart(&mut self) {
        if self.server.pid().is_some() {
            self.kill();
        }
        self.launch().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Freezes the server's first process, so that nobody new is let in, and every session that serves someone.
    #[track_caller]
    pub fn pause(&self) {
        self.server.pause();
        for pid in children(self.pid()) {
            signal(pid, Signal::STOP);
        }
    }

    /// Lets it run on.
    #[track_caller]
    pub fn resume(&self) {
        for pid in children(self.pid()) {
            signal(pid, Signal::CONT);
        }
        self.server.resume();
    }

    /// Runs `sql` as the superuser in the database `app` and gives what it printed: bare rows, columns separated by `|`.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in(USER, sql).unwrap_or_else(|e| panic!("{e}")).trim_end().to_owned()
    }

    /// The same, where it may fail.
    pub fn try_psql(&self, sql: &str) -> Result<String> {
        self.psql_in(USER, sql)
    }

    fn psql_in(&self, database: &str, sql: &str) -> Result<String> {
        let mut psql = self.psql_command();
        psql.args(["-d", database, "-c", sql]);
        run(&mut psql)
    }

    /// A psql that comes in as the superuser; it reads no settings of its own.
    pub fn psql_command(&self) -> Command {
        let mut psql = self.program("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
        psql.args(["-p", &self.port.number().to_string()]).env("PGCONNECT_TIMEOUT", "10");
        psql
    }

    /// A pgbench, PostgreSQL's own load generator, on the database `app`.
    pub fn pgbench_command(&self) -> Command {
        let mut pgbench = self.program("pgbench");
        pgbench.args([
            "-n",
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-p",
            &self.port.number().to_string(),
            USER,
        ]);
        pgbench
    }

    /// A standby that streams from this server, asynchronously unless `synchronous_standby_names` says otherwise; its
    /// `application_name` is `name`.
    pub fn standby(&self, name: &str) -> Result<Postgres> {
        let mut standby = Postgres::prepare(Options { dir: None, ..self.options.clone() })?;
        let mut backup = standby.program("pg_basebackup");
        let from =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port.number());
        backup.arg("-d").arg(from).args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync"]);
        run(backup.arg("-D").arg(standby.data()))?;
        standby.launch()?;
        Ok(standby)
    }

    /// Makes a standby a primary on a new timeline, and waits until it is one.
    #[track_caller]
    pub fn promote(&self) {
        assert_eq!(self.psql("SELECT pg_promote()"), "t");
    }

    /// Lets the server run on when this process ends, and gives its process id. Its directory must have been chosen.
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        assert!(self.options.dir.is_some(), "a server in a directory of this run cannot outlive it");
        self.server.leave_running().into_iter().collect()
    }

    /// The directory that holds its data, log and certificates.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of its data alone.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// One of PostgreSQL's programs, without the settings for it that may be in this process's environment.
    fn program(&self, name: &str) -> Command {
        program(&self.root, &self.root.join("usr/lib/postgresql/15/bin").join(name))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.pid().is_some() && !self.server.has_exited() {
            self.resume();
            self.server.signal(Signal::QUIT);
            wait_until(Duration::from_secs(10), || self.server.has_exited());
        }
        self.server.end();
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn program(root: &Path, path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", library_path(root)).env("LC_ALL", "C").env("TZ", "UTC").current_dir("/");
    without_root(&mut command);
    command
}

/// The process ids of the children of `pid`.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
