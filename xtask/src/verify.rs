//! `cargo xtask verify` and `cargo xtask fix`: format, lints and dependencies.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::{protos, workspace};

#[derive(Args)]
pub(crate) struct Options {
    /// Check the dependencies with cargo-deny, building it under target/tools if it is not installed
    #[arg(long)]
    deny: bool,
}

/// Checks everything; writes nothing outside `target`.
pub(crate) fn run(options: &Options) -> Result {
    if options.deny && deny_program().is_none() {
        let tools = tools_dir().display().to_string();
        succeed(
            workspace::cargo(&["install", "cargo-deny", "--locked", "--root", &tools]),
            "cargo install cargo-deny",
        )?;
    }
    format()?;
    clippy()?;
    deny()
}

/// Whether rustfmt would change a file, also one that no crate reaches.
pub(crate) fn format() -> Result {
    rustfmt(&["--check"])
}

/// Whether clippy has anything to say.
pub(crate) fn clippy() -> Result {
    let args = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    succeed(workspace::cargo(&args), "cargo clippy")
}

/// Checks licences, advisories and banned crates, if cargo-deny is there.
pub(crate) fn deny() -> Result {
    let Some(program) = deny_program() else {
        println!(
            "dependencies are not checked: cargo-deny is not installed; cargo xtask verify --deny builds it"
        );
        return Ok(());
    };
    let mut command = Command::new(program);
    command.current_dir(workspace::root()).args(["--workspace", "--all-features", "--locked", "check"]);
    succeed(command, "cargo deny check")
}

/// Generates what is generated, and changes the sources as clippy and rustfmt would.
pub(crate) fn fix() -> Result {
    protos::write().map_err(|e| format!("{}: {e}", protos::TARGET))?;
    let clippy = [
        "clippy",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
        "--workspace",
        "--all-targets",
        "--all-features",
    ];
    succeed(workspace::cargo(&clippy), "cargo clippy --fix")?;
    rustfmt(&[])
}

fn rustfmt(args: &[&str]) -> Result {
    let mut command = Command::new("rustfmt");
    command
        .current_dir(workspace::root())
        .args(["--edition", "2024"])
        .args(args)
        .args(workspace::rust_files()?);
    succeed(command, "rustfmt")
}

fn tools_dir() -> PathBuf {
    workspace::root().join("target/tools")
}

/// The installed cargo-deny, or the one under `target/tools`.
fn deny_program() -> Option<PathBuf> {
    let built = tools_dir().join("bin/cargo-deny");
    let runs =
        |path: &PathBuf| Command::new(path).arg("--version").output().is_ok_and(|out| out.status.success());
    [PathBuf::from("cargo-deny"), built].into_iter().find(runs)
}

fn succeed(mut command: Command, name: &str) -> Result {
    let status = command.status().map_err(|e| format!("cannot run {name}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
