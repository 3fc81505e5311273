//! MariaDB 10.11 servers and replicas of them, with the faults that tests inject.

mod options;

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::wait_until;
use crate::error::{Error, Result};
use crate::fetch::{MARIADB, library_path};
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::server::{Server, hand_over, run, without_root};
use crate::tls::Certificates;
pub use options::Options;

/// How long a server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(60);
/// The user of [`Mysql::url`], who may do everything in the database of that name, and the password.
const USER: &str = "app";
const PASSWORD: &str = "app-password";

/// A running MariaDB server; dropping it kills it, and removes its data unless a directory was chosen for it.
///
/// `root` may log in from 127.0.0.1 without a password; the database `app` belongs to the user `app`. A method that cannot do what it
/// says panics with the reason.
#[derive(Debug)]
pub struct Mysql {
    options: Options,
    root: PathBuf,
    dir: PathBuf,
    port: Port,
    /// What a server and its replicas are told apart by.
    id: u32,
    server: Server,
    certificates: Option<Certificates>,
}

impl Mysql {
    /// One server; [`Options::start`] starts it.
    pub fn options() -> Options {
        Options::default()
    }

    fn start(options: Options) -> Result<Mysql> {
        let mut mysql = Mysql::prepare(options)?;
        mysql.launch()?;
        Ok(mysql)
    }

    fn prepare(options: Options) -> Result<Mysql> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let root = MARIADB.ensure()?;
        let dir = options.dir.clone().unwrap_or_else(|| run_dir("mysql"));
        fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
        let certificates = options.tls.then(|| Certificates::make(&dir));
        // A server that starts removes what another keeps in a temporary directory that they share.
        let tmp = dir.join("tmp");
        fs::create_dir_all(&tmp).map_err(|e| Error::new(format!("{}: {e}", tmp.display())))?;
        hand_over(&dir)?;
        let server = Server::new("MariaDB", dir.join("log"));
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let mysql = Mysql { options, root, dir, port: Port::reserve(), id, server, certificates };
        if !mysql.data().join("mysql").exists() {
            mysql.init()?;
        }
        Ok(mysql)
    }

    fn init(&self) -> Result<()> {
        let mut install = self.program("usr/bin/mariadb-install-db");
        install.arg("--no-defaults").arg(format!("--basedir={}", self.root.join("usr").display()));
        install.arg(format!("--datadir={}", self.data().display()));
        install.arg(format!("--tmpdir={}", self.dir.join("tmp").display()));
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
        run(&mut install)?;
        // One statement a line, as the server wants it; it runs them at each start.
        let tls = if self.options.tls { " REQUIRE SSL" } else { "" };
        let init = format!(
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n\
             GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n\
             CREATE DATABASE IF NOT EXISTS {USER} CHARACTER SET utf8mb4;\n\
             CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'{tls};\n\
             GRANT ALL ON {USER}.* TO '{USER}'@'%';\n"
        );
        let path = self.dir.join("init.sql");
        fs::write(&path, init).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
        hand_over(&self.dir)
    }

    /// Starts the server on its data and waits until it serves.
    fn launch(&mut self) -> Result<()> {
        let mut mariadbd = self.program("usr/sbin/mariadbd");
        mariadbd.arg("--no-defaults").arg(format!("--basedir={}", self.root.join("usr").display()));
        mariadbd.arg(format!("--datadir={}", self.data().display()));
        mariadbd.arg(format!("--tmpdir={}", self.dir.join("tmp").display()));
        mariadbd.arg(format!("--init-file={}", self.dir.join("init.sql").display()));
        let mut set = |setting: String| {
            mariadbd.arg(format!("--{setting}"));
        };
        set(format!("port={}", self.port.number()));
        set(format!("server-id={}", self.id));
        for setting in [
            "bind-address=127.0.0.1",
            "skip-name-resolve",
            "innodb-buffer-pool-size=32M",
            "innodb-log-file-size=16M",
            // Below the data directory: a path of its own may be too long for a socket.
            "socket=socket",
            "pid-file=pid",
        ] {
            set(setting.to_owned());
        }
        if let Some(tls) = &self.certificates {
            set(format!("ssl-cert={}", tls.server_cert.display()));
            set(format!("ssl-key={}", tls.server_key.display()));
            set(format!("ssl-ca={}", tls.ca.display()));
        }
        self.options.settings.iter().cloned().for_each(set);
        if let Some(clock) = &self.options.wall_clock {
            clock.give_to(&mut mariadbd);
        }
        self.server.spawn(mariadbd)?;
        let mut exited = false;
        let serves = wait_until(PATIENCE, || {
            exited = self.server.has_exited();
            exited || self.serves()
        });
        if serves && !exited {
            return Ok(());
        }
        Err(Error::new(format!("MariaDB does not serve:\n{}", self.server.log_tail())))
    }

    fn serves(&self) -> bool {
        // A cheap look first: each client is a process.
        TcpStream::connect_timeout(&self.port.addr(), Duration::from_secs(1)).is_ok()
            && self.try_sql("SELECT 1").is_ok()
    }

    /// The address, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.port.addr().to_string()
    }

    /// The URL by which `incumbent` comes in as `app`, into the database `app`.
    pub fn url(&self) -> String {
        self.url_at(&self.addr())
    }

    /// The same by way of another address, as a relay's.
    pub fn url_at(&self, addr: &str) -> String {
        let mut url = format!("mysql://{USER}:{PASSWORD}@{addr}/{USER}");
        if let Some(tls) = &self.certificates {
            url.push_str(&format!("?tls=on&ca={}", tls.ca.display()));
        }
        url
    }

    /// The certificates in use, if TLS is.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The process id of the server, which must be running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("MariaDB is not running")
    }

    /// What the server has logged since its first start.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Stops the server politely: sessions are ended, nothing is lost.
    #[track_caller]
    pub fn stop(&mut self) {
        self.server.stop(Signal::TERM, PATIENCE);
    }

    /// Kills the server, as a crash of the machine would, except that the page cache stays.
    #[track_caller]
    pub fn kill(&mut self) {
        self.server.stop(Signal::KILL, PATIENCE);
    }

    /// Starts the server again on its data, killing it first if it runs, and waits until it serves.
    #[track_caller]
    pub fn restart(&mut self) {
        if self.server.pid().is_some() {
            self.kill();
        }
        self.launch().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Freezes the server (SIGSTOP).
    #[track_caller]
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Lets it run on.
    #[track_caller]
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Runs `sql` as `root` in the database `app` and gives what it printed: bare rows, columns separated by tabs.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|e| panic!("{e}")).trim_end().to_owned()
    }

    /// The same, where it may fail.
    pub fn try_sql(&self, sql: &str) -> Result<String> {
        let mut client = self.client_command();
        client.args(["-N", "-B", "-e", sql]);
        // It may not be there while the server starts for the first time.
        if sql != "SELECT 1" {
            client.arg(USER);
        }
        run(&mut client)
    }

    /// A client that comes in as `root`; it reads no settings of its own.
    pub fn client_command(&self) -> Command {
        let mut client = self.program("usr/bin/mariadb");
        client.args(["--no-defaults", "-h", "127.0.0.1", "-u", "root", "--connect-timeout=10"]);
        client.args(["-P", &self.port.number().to_string()]);
        client
    }

    /// A replica that follows this server asynchronously, from its beginning: the server must write a binary log
    /// (`log-bin=log`).
    pub fn replica(&self) -> Result<Mysql> {
        let mut replica = Mysql::prepare(Options { dir: None, ..self.options.clone() })?;
        replica.options.settings.push("read-only=on".to_owned());
        replica.launch()?;
        replica.try_sql(&format!(
            "SET GLOBAL gtid_slave_pos = ''; \
             CHANGE MASTER TO master_host = '127.0.0.1', master_port = {}, master_user = 'root', \
             master_use_gtid = slave_pos, master_connect_retry = 1; START SLAVE",
            self.port.number()
        ))?;
        Ok(replica)
    }

    /// Makes a replica a primary that may be written to.
    #[track_caller]
    pub fn promote(&mut self) {
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF");
        self.options.settings.retain(|setting| setting != "read-only=on");
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

    fn program(&self, path: &str) -> Command {
        let mut command = Command::new(self.root.join(path));
        command.env("LD_LIBRARY_PATH", library_path(&self.root)).env("LC_ALL", "C").env("TZ", "UTC");
        command.env_remove("MYSQL_PWD").env_remove("MYSQL_HOME").current_dir("/");
        without_root(&mut command);
        command
    }
}

impl Drop for Mysql {
    fn drop(&mut self) {
        self.server.end();
        if self.options.dir.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
