//! The copy of the sources that mutants live in.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::patch::Mutant;
use super::{Fate, Result};
use crate::workspace;

/// A copy of the sources, with a target directory that all mutants share.
pub(super) struct Copy {
    folder: PathBuf,
    sources: PathBuf,
}

/// How a command ended.
pub(super) enum Ended {
    Well,
    Failed {
        output: String,
        seconds: f64,
    },
    /// It was killed at its time limit.
    Late,
}

impl Copy {
    /// Copies what git knows or would know.
    pub(super) fn new() -> Result<Copy> {
        let folder = workspace::root().join("target/mutants");
        let copy = Copy { sources: folder.join("sources"), folder };
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(workspace::root())
            .output()
            .map_err(|error| format!("git: {error}"))?;
        let files = String::from_utf8_lossy(&listed.stdout);
        for file in files.split('\0').filter(|file| !file.is_empty()) {
            copy.restore(Path::new(file))?;
        }
        Ok(copy)
    }

    /// Frees the disk.
    pub(super) fn remove(&self) -> Result {
        fs::remove_dir_all(&self.folder).map_err(|error| format!("{}: {error}", self.folder.display()))
    }

    /// Makes a file what it is in the workspace; one that is so already keeps its time.
    fn restore(&self, file: &Path) -> Result {
        let (from, to) = (workspace::root().join(file), self.sources.join(file));
        let Ok(content) = fs::read(&from) else { return Ok(()) };
        if fs::read(&to).is_ok_and(|old| old == content) {
            return Ok(());
        }
        let parent = to.parent().unwrap_or(&self.sources);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&to, content))
            .map_err(|error| format!("{}: {error}", to.display()))
    }

    pub(super) fn cargo(&self) -> Command {
        let mut command = workspace::cargo(&[]);
        command.current_dir(&self.sources).env("CARGO_TARGET_DIR", self.folder.join("target"));
        // A line is changed between two builds, and a mutant lives for a few seeds: most of the time goes into the building.
        command.env("CARGO_INCREMENTAL", "1");
        for quick in
            ["debug=false", "package.incumbent-core.opt-level=1", "package.incumbent-sim.opt-level=1"]
        {
            command.args(["--config", &format!("profile.dev.{quick}")]);
        }
        command
    }

    /// Runs `what` while the mutant is in the sources.
    pub(super) fn with(&self, mutant: &Mutant, what: impl FnOnce() -> Result<Fate>) -> Result<Fate> {
        if let Err(message) = mutant.apply(&self.sources, false) {
            return Ok(Fate::Unfit(message));
        }
        let fate = what();
        for file in mutant.files()? {
            self.restore(&file)?;
        }
        fate
    }

    /// Runs a command and all that it starts.
    pub(super) fn run(&self, mut command: Command, limit: Duration) -> Result<Ended> {
        // Into a file: a pipe that nobody reads would stop what writes much.
        let path = self.folder.join("output");
        let failed = |error| format!("{}: {error}", path.display());
        let output = File::create(&path).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let begin = testkit::now();
        let mut child = command.spawn().map_err(|error| format!("cargo: {error}"))?;
        let mut status = None;
        let ended = testkit::wait_until(limit, || {
            status = child.try_wait().transpose();
            status.is_some()
        });
        if !ended {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            return Ok(Ended::Late);
        }
        let seconds = testkit::now().since(begin).as_secs_f64();
        match status.transpose().map_err(|error| format!("cargo: {error}"))? {
            Some(status) if status.success() => Ok(Ended::Well),
            _ => {
                let output = fs::read(&path).map_err(failed)?;
                Ok(Ended::Failed { output: String::from_utf8_lossy(&output).into_owned(), seconds })
            }
        }
    }
}
