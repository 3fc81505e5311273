//! The examples as built programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder in which the examples lie. A test run builds them, but not one that was narrowed to this file: then they are built
/// here if they are not there, or are older than their sources.
pub(crate) fn examples() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let this = std::env::current_exe().expect("a test knows where it lies");
        let profile = this.ancestors().nth(2).expect("in PROFILE/deps");
        let folder = profile.join("examples");
        let all = [
            "hello",
            "blocking",
            "axum_shutdown",
            "fenced_writer",
            "fenced_http",
            "fenced_mysql",
            "fenced_postgres",
            "fenced_redis",
        ];
        if !all.iter().all(|name| is_fresh(&folder.join(name)).unwrap_or(false)) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args([
                "build",
                "--quiet",
                "--examples",
                "--features=http,redis",
            ]);
            cargo.args(profile.ends_with("release").then_some("--release"));
            cargo.arg("--target-dir").arg(profile.parent().expect("in TARGET/PROFILE"));
            assert!(cargo.status().is_ok_and(|status| status.success()), "the examples do not build");
        }
        folder
    })
}

/// Whether a program is younger than all that cargo says it was built from.
fn is_fresh(program: &Path) -> std::io::Result<bool> {
    let built = program.metadata()?.modified()?;
    let sources = std::fs::read_to_string(program.with_extension("d"))?;
    for source in sources.split_whitespace().skip(1) {
        if std::fs::metadata(source)?.modified()? > built {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn command(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(examples().join(name));
    command.args(args);
    command
}
