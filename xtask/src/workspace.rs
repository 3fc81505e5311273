//! Where the workspace lies, and what is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The workspace's root directory.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The cargo that runs this task, in the root directory, without what it told this task about itself.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    // Nobody edits between two runs of the tests: what would make the next build quicker only fills the disk.
    if std::env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
            command.env_remove(name);
        }
    }
    command
}

/// Today's date, and the commit that the sources are of.
pub(crate) fn stamp() -> Result<(String, String)> {
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    Ok((output("date", &["-u", "+%Y-%m-%d"])?, output("git", &["describe", "--always", "--dirty"])?))
}

/// Every Rust file that people write, whether or not a crate reaches it, except in `target` and hidden directories.
pub(crate) fn rust_files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(root(), &mut files).map_err(|e| format!("cannot list the workspace's files: {e}"))?;
    files.sort();
    Ok(files)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|ext| ext == "rs") && !is_generated(&path)? {
            files.push(path);
        }
    }
    Ok(())
}

fn is_generated(path: &Path) -> std::io::Result<bool> {
    Ok(fs::read_to_string(path)?.lines().next().is_some_and(|line| line.contains("@generated")))
}
