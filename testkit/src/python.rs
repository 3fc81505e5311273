//! Python programs with packages of given versions, in virtual environments of their own under `target/servers`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::fetch::servers_dir;

/// The system's `python3` with `packages` (as in `redis==8.1.0`), which are installed once, by pip. `name` names the environment:
/// another one for other packages.
///
/// # Errors
/// If there is no `python3` with its module `venv`, or a package cannot be fetched.
pub fn with(name: &str, packages: &[&str]) -> Result<Command> {
    let servers = servers_dir();
    let dir = servers.join(format!("python-{name}"));
    let done = dir.join("done");
    if !done.is_file() {
        fs::create_dir_all(&servers).map_err(|e| Error::new(format!("{}: {e}", servers.display())))?;
        let lock = File::create(servers.join("python.lock")).map_err(|e| Error::new(e.to_string()))?;
        lock.lock().map_err(|e| Error::new(format!("cannot lock python.lock: {e}")))?;
        if !done.is_file() {
            make(&dir, packages)?;
            fs::write(&done, packages.join("\n"))
                .map_err(|e| Error::new(format!("{}: {e}", done.display())))?;
        }
    }
    Ok(Command::new(dir.join("bin/python3")))
}

fn make(dir: &Path, packages: &[&str]) -> Result<()> {
    // An interrupted one is simply made again.
    let _ = fs::remove_dir_all(dir);
    run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let mut pip = Command::new(dir.join("bin/python3"));
    run(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::new(format!("cannot run {:?}: {e}", command.get_program())))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::new(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}
