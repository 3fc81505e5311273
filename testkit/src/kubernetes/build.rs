//! The API server's program. No package holds one: it is built, once, from the module that Kubernetes publishes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fetch;

/// The version that `testkit/kube-apiserver/go.mod` names. It is the newest that Debian's Go can build.
const VERSION: &str = "1.34.4";

/// Where the program is, or will be.
pub(super) fn path() -> PathBuf {
    fetch::servers_dir().join(format!("kube-apiserver-{VERSION}"))
}

/// Builds the program unless it is there. The first time takes many minutes and the module proxy.
pub(super) fn ensure() -> Result<PathBuf> {
    let program = path();
    if program.is_file() {
        return Ok(program);
    }
    let servers = fetch::servers_dir();
    let io = |error: std::io::Error| Error::new(format!("{}: {error}", servers.display()));
    fs::create_dir_all(&servers).map_err(io)?;
    let lock = File::create(servers.join("kube-apiserver.lock")).map_err(io)?;
    lock.lock().map_err(io)?;
    if program.is_file() {
        return Ok(program);
    }
    eprintln!(
        "building kube-apiserver {VERSION}, which takes many minutes; it is kept in {}",
        program.display()
    );
    let unfinished = program.with_extension("unfinished");
    let (major, minor) = VERSION
        .split_once('.')
        .map_or(("", ""), |(major, rest)| (major, rest.split('.').next().unwrap_or_default()));
    let package = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {package}.gitVersion=v{VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    );
    let status = fetch::go()?
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("kube-apiserver"))
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags, "-o"])
        .arg(&unfinished)
        .arg(".")
        .status()
        .map_err(|error| Error::new(format!("cannot run go: {error}")))?;
    if !status.success() {
        return Err(Error::new(format!("kube-apiserver {VERSION} does not build ({status})")));
    }
    fs::rename(&unfinished, &program).map_err(io)?;
    Ok(program)
}
