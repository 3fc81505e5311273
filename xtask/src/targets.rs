//! The test targets of the workspace: built once, together, and then run one by one.
//!
//! `cargo test -p X` would build shared dependencies again for each X whose features differ. One build of the
//! whole workspace has one set of features.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::groups::{Group, Step};
use crate::workspace;

/// Kinds of servers: a file `tests/SERVER_*.rs` of any crate needs one.
pub(crate) const SERVERS: [&str; 8] =
    ["consul", "etcd", "kubernetes", "mysql", "nats", "postgres", "redis", "zookeeper"];

/// One test executable.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) package: String,
    /// The crate's name for its unit tests, the file's for an integration test or an example.
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) executable: PathBuf,
    manifest: PathBuf,
}

impl Target {
    /// Whether it is one of this package's targets that need no server and no special powers.
    pub(crate) fn is_of(&self, package: &str) -> bool {
        self.package == package && self.server().is_none() && !self.needs_root()
    }

    /// Whether it is an integration test that must run as root.
    pub(crate) fn needs_root(&self) -> bool {
        self.kind == "test" && self.name.starts_with("root_")
    }

    /// Whether it is an integration test that needs servers of this kind.
    pub(crate) fn needs(&self, server: &str) -> bool {
        self.server() == Some(server)
    }

    /// The kind of server that it needs, if any.
    fn server(&self) -> Option<&str> {
        let (server, _) = self.name.split_once('_').filter(|_| self.kind == "test")?;
        SERVERS.contains(&server).then_some(server)
    }

    /// The executable, to be run as cargo would run it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        if let Some(dir) = self.manifest.parent() {
            command.current_dir(dir).env("CARGO_MANIFEST_DIR", dir);
        }
        command.env("CARGO_PKG_NAME", &self.package);
        command
    }

    /// How many tests it holds.
    pub(crate) fn count(&self) -> u64 {
        let output = self.command().args(["--list", "--format", "terse"]).stderr(Stdio::null()).output();
        let listed = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&listed).lines().filter(|line| line.ends_with(": test")).count() as u64
    }

    /// `package::name`, or the package alone for its unit tests.
    pub(crate) fn label(&self) -> String {
        match self.kind.as_str() {
            "test" | "example" => format!("{}::{}", self.package, self.name),
            _ => format!("{} ({})", self.package, self.kind),
        }
    }
}

/// Builds every test target of the workspace.
pub(crate) fn build() -> Result<Vec<Target>> {
    println!("building the tests");
    let args = ["test", "--workspace", "--all-features", "--locked", "--no-run"];
    let output = workspace::cargo(&args)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut targets: Vec<Target> = messages.lines().filter_map(parse).collect();
    targets.sort_by(|a, b| (&a.package, &a.kind, &a.name).cmp(&(&b.package, &b.kind, &b.name)));
    Ok(targets)
}

fn parse(line: &str) -> Option<Target> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    // The package id's form differs between versions of cargo; each package lies in a directory of its name.
    let package = manifest.parent()?.file_name()?.to_string_lossy().into_owned();
    let target = &message["target"];
    let (name, kind) = (target["name"].as_str()?.to_owned(), target["kind"][0].as_str()?.to_owned());
    Some(Target { package, name, kind, executable, manifest })
}

/// An error unless each target belongs to exactly one group.
pub(crate) fn check_groups(targets: &[Target], groups: &[Group]) -> Result {
    for target in targets {
        let mine = |step: &&Step| matches!(step, Step::Tests(holds) if holds(target));
        let count = groups.iter().flat_map(|group| group.steps).filter(mine).count();
        if count != 1 {
            return Err(format!(
                "{} belongs to {count} groups of xtask/src/groups.rs instead of one",
                target.label()
            ));
        }
    }
    Ok(())
}
