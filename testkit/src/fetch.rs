//! Server programs of given versions, from Debian packages that are unpacked and never installed.
//!
//! Each [`Bundle`] is downloaded once and unpacked under `target/servers/NAME`, with apt's own signature checks,
//! through the mirror that the system's apt sources name. Root is not needed. Several processes may ask for one
//! bundle at once: a lock file lets one of them work, and the finished directory appears by a rename, so that an
//! interrupted download is simply repeated.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt;
use crate::error::{Error, Result};

/// Packages of one Debian suite that are unpacked into one directory.
#[derive(Debug)]
pub struct Bundle {
    /// The directory's name under `target/servers`, also for `cargo xtask servers fetch`.
    pub name: &'static str,
    /// The Debian suite, by code name.
    pub suite: &'static str,
    /// The packages; dependencies are not followed.
    pub packages: &'static [&'static str],
    /// A tool of any version will do: where this program is in `PATH`, nothing is fetched.
    pub tool: Option<&'static str>,
}

/// Consul 1.8, as in Debian 11.
pub const CONSUL: Bundle = Bundle { name: "consul", suite: "bullseye", packages: &["consul"], tool: None };
/// etcd 3.4, as in Debian 12.
pub const ETCD_3_4: Bundle =
    Bundle { name: "etcd-3.4", suite: "bookworm", packages: &["etcd-server", "etcd-client"], tool: None };
/// etcd 3.5, as in Debian 13.
pub const ETCD_3_5: Bundle =
    Bundle { name: "etcd-3.5", suite: "trixie", packages: &["etcd-server", "etcd-client"], tool: None };
/// kubectl of Kubernetes 1.20, as in Debian 12.
pub const KUBECTL: Bundle =
    Bundle { name: "kubectl", suite: "bookworm", packages: &["kubernetes-client"], tool: None };
/// MariaDB 10.11, as in Debian 12.
pub const MARIADB: Bundle = Bundle {
    name: "mariadb",
    suite: "bookworm",
    packages: &[
        "mariadb-server-core",
        "mariadb-client-core",
        "libaio1",
        "libbsd0",
        "libedit2",
        "libmariadb3",
        "libmd0",
        "libncurses6",
        "libnuma1",
        "libpcre2-8-0",
        "libssl3",
        "libsystemd0",
        "libtinfo6",
        "liburing2",
    ],
    tool: None,
};
/// nats-server 2.9, as in Debian 12.
pub const NATS_2_9: Bundle =
    Bundle { name: "nats-2.9", suite: "bookworm", packages: &["nats-server"], tool: None };
/// nats-server 2.10, as in Debian 13.
pub const NATS_2_10: Bundle =
    Bundle { name: "nats-2.10", suite: "trixie", packages: &["nats-server"], tool: None };
/// Redis 7.0, as in Debian 12.
pub const REDIS: Bundle = Bundle {
    name: "redis",
    suite: "bookworm",
    packages: &["redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1"],
    tool: None,
};
/// PgBouncer, as in Debian 12.
pub const PGBOUNCER: Bundle = Bundle {
    name: "pgbouncer",
    suite: "bookworm",
    packages: &["pgbouncer", "libc-ares2", "libevent-2.1-7", "libssl3"],
    tool: None,
};
/// PostgreSQL 15, as in Debian 12.
pub const POSTGRES: Bundle = Bundle {
    name: "postgres",
    suite: "bookworm",
    packages: &[
        "postgresql-15",
        "postgresql-client-15",
        "libgssapi-krb5-2",
        "libicu72",
        "libk5crypto3",
        "libkeyutils1",
        "libkrb5-3",
        "libkrb5support0",
        "libldap-2.5-0",
        "liblz4-1",
        "libpq5",
        "libreadline8",
        "libsasl2-2",
        "libssl3",
        "libxml2",
        "libxslt1.1",
    ],
    tool: None,
};
/// strace.
pub const STRACE: Bundle = Bundle {
    name: "strace",
    suite: "bookworm",
    packages: &["strace", "libunwind8", "liblzma5"],
    tool: Some("strace"),
};
/// libfaketime, which gives a process another wall clock.
pub const FAKETIME: Bundle =
    Bundle { name: "faketime", suite: "bookworm", packages: &["libfaketime"], tool: None };
/// The Go toolchain.
pub const GO: Bundle = Bundle {
    name: "go",
    suite: "trixie",
    packages: &["golang-1.24-go", "golang-1.24-src"],
    tool: Some("go"),
};
/// A Java runtime.
pub const JAVA: Bundle =
    Bundle { name: "java", suite: "bookworm", packages: &["openjdk-17-jre-headless"], tool: Some("java") };
/// ZooKeeper 3.8, as in Debian 12.
pub const ZOOKEEPER_3_8: Bundle =
    Bundle { name: "zookeeper-3.8", suite: "bookworm", packages: ZOOKEEPER_JARS, tool: None };
/// ZooKeeper 3.9, as in Debian 13.
pub const ZOOKEEPER_3_9: Bundle =
    Bundle { name: "zookeeper-3.9", suite: "trixie", packages: ZOOKEEPER_JARS, tool: None };
const ZOOKEEPER_JARS: &[&str] = &[
    "libcommons-cli-java",
    "libcommons-io-java",
    "libdropwizard-metrics-java",
    "libnetty-java",
    "libslf4j-java",
    "libsnappy-java",
    "libzookeeper-java",
];

/// Every bundle.
pub const BUNDLES: &[&Bundle] = &[
    &CONSUL,
    &ETCD_3_4,
    &ETCD_3_5,
    &KUBECTL,
    &MARIADB,
    &NATS_2_9,
    &NATS_2_10,
    &PGBOUNCER,
    &POSTGRES,
    &REDIS,
    &STRACE,
    &FAKETIME,
    &GO,
    &JAVA,
    &ZOOKEEPER_3_8,
    &ZOOKEEPER_3_9,
];

impl Bundle {
    /// The system's own program, if this is a tool and `PATH` has it.
    pub fn in_path(&self) -> Option<PathBuf> {
        let program = self.tool?;
        env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
    }

    /// Fetches it now, unless that has been done or the system's own tool does.
    pub fn prepare(&self) -> Result<()> {
        if self.in_path().is_some() { Ok(()) } else { self.ensure().map(drop) }
    }

    /// The directory into which the packages are unpacked, fetching them first if it is not there.
    pub fn ensure(&self) -> Result<PathBuf> {
        let servers = servers_dir();
        let dir = servers.join(self.name);
        if dir.is_dir() {
            return Ok(dir);
        }
        self.fetch(&servers, &dir).map_err(|error| {
            Error::new(format!(
                "cannot fetch {} ({} of Debian {}): {error}\n\
                 test groups that need it can be left out: cargo xtask test --skip GROUP{}",
                self.name,
                self.packages.join(", "),
                self.suite,
                env::var("INCUMBENT_TEST_GROUP")
                    .map(|group| format!(" (here: --skip {group})"))
                    .unwrap_or_default(),
            ))
        })?;
        Ok(dir)
    }

    fn fetch(&self, servers: &Path, dir: &Path) -> Result<()> {
        fs::create_dir_all(servers).map_err(|e| Error::new(format!("{}: {e}", servers.display())))?;
        let lock = File::create(servers.join("fetch.lock")).map_err(|e| Error::new(e.to_string()))?;
        lock.lock().map_err(|e| Error::new(format!("cannot lock fetch.lock: {e}")))?;
        if dir.is_dir() {
            return Ok(());
        }
        // What an interrupted fetch left is in the way of nobody but us, who hold the lock.
        let work = servers.join("fetch.tmp");
        let io = |e: std::io::Error| Error::new(format!("{}: {e}", work.display()));
        if work.exists() {
            fs::remove_dir_all(&work).map_err(io)?;
        }
        let (debs, root) = (work.join("debs"), work.join("root"));
        fs::create_dir_all(&debs).map_err(io)?;
        fs::create_dir_all(&root).map_err(io)?;
        for deb in apt::download(&servers.join("apt"), self.suite, self.packages, &debs)? {
            apt::unpack(&deb, &root)?;
        }
        fs::rename(&root, dir).map_err(io)?;
        fs::remove_dir_all(&work).map_err(io)
    }
}

/// `target/servers` of this workspace: everything that is fetched, and the data of everything that runs.
pub fn servers_dir() -> PathBuf {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the testkit lies in the workspace");
    workspace.join("target").join("servers")
}

/// strace: the system's own, else Debian's, fetched.
pub fn strace() -> Result<Command> {
    if let Some(path) = STRACE.in_path() {
        return Ok(Command::new(path));
    }
    let root = STRACE.ensure()?;
    let mut command = Command::new(root.join("usr/bin/strace"));
    command.env("LD_LIBRARY_PATH", library_path(&root));
    Ok(command)
}

/// The go command: the system's own, else Debian's, fetched. It may still have to download modules.
pub fn go() -> Result<Command> {
    if let Some(path) = GO.in_path() {
        return Ok(Command::new(path));
    }
    let goroot = GO.ensure()?.join("usr/lib/go-1.24");
    let mut command = Command::new(goroot.join("bin/go"));
    command.env("GOROOT", &goroot);
    Ok(command)
}

/// The Go program of `interop/NAME`, built.
pub fn interop(name: &str) -> Result<PathBuf> {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the testkit lies in the workspace");
    let folder = servers_dir().join("interop");
    // Several processes may build it at once; each puts a whole one in its place.
    let (mine, built) = (folder.join(format!("{name}-{}", std::process::id())), folder.join(name));
    let mut go = go()?;
    go.current_dir(workspace.join("interop").join(name)).args(["build", "-o"]).arg(&mine).arg(".");
    let output = go.output().map_err(|e| Error::new(format!("cannot run go: {e}")))?;
    if !output.status.success() {
        return Err(Error::new(format!("go build {name}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    fs::rename(&mine, &built).map_err(|e| Error::new(format!("{}: {e}", built.display())))?;
    Ok(built)
}

/// Java: the system's own, else Debian's, fetched.
pub fn java() -> Result<Command> {
    if let Some(path) = JAVA.in_path() {
        return Ok(Command::new(path));
    }
    let root = JAVA.ensure()?;
    let machines = fs::read_dir(root.join("usr/lib/jvm")).into_iter().flatten().flatten();
    let program = machines.map(|entry| entry.path().join("bin/java")).find(|path| path.is_file());
    let program = program.ok_or_else(|| Error::new(format!("no java under {}", root.display())))?;
    Ok(Command::new(program))
}

/// The library directories of an unpacked root; the architecture's own one is named by its triplet.
pub(crate) fn library_path(root: &Path) -> String {
    let mut dirs = Vec::new();
    for lib in ["lib", "usr/lib"] {
        let Ok(entries) = fs::read_dir(root.join(lib)) else { continue };
        dirs.extend(entries.flatten().map(|entry| entry.path().display().to_string()));
    }
    dirs.join(":")
}
