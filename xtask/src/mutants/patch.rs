//! The patches, and the suites that must find them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::copy::Copy;
use crate::{Result, workspace};

/// Where they lie.
pub(super) const FOLDER: &str = "reliability/mutants";
/// A mutant that lives through so many seeds is not killed.
const SEEDS: &str = "1000";

/// One bug.
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Its number among the known failures of others; a dash if it is not one of them.
    pub(super) row: String,
    pub(super) bug: String,
    pub(super) from: String,
    pub(super) suite: String,
}

/// All of them, by name.
pub(super) fn all() -> Result<Vec<Mutant>> {
    let folder = workspace::root().join(FOLDER);
    let failed = |error| format!("{}: {error}", folder.display());
    let mut mutants = Vec::new();
    for file in fs::read_dir(&folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            mutants.push(Mutant::read(path)?);
        }
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

impl Mutant {
    fn read(path: PathBuf) -> Result<Mutant> {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let field = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            line.map(str::to_owned).ok_or_else(|| format!("{name}: there is no line `{key}:`"))
        };
        let (row, bug, from, suite) = (field("row")?, field("bug")?, field("from")?, field("suite")?);
        Ok(Mutant { name, path, row, bug, from, suite })
    }

    /// The files that it changes.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>> {
        let text = fs::read_to_string(&self.path).map_err(|error| format!("{}: {error}", self.name))?;
        Ok(text.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(PathBuf::from).collect())
    }

    /// Changes the sources under `root`, or only looks whether that can be done.
    pub(super) fn apply(&self, root: &Path, only_look: bool) -> Result {
        let output = Command::new("git")
            .arg("apply")
            .args(only_look.then_some("--check"))
            .arg(&self.path)
            .current_dir(root)
            // Not a patch of the repository that a copy may lie in.
            .env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root))
            .output()
            .map_err(|error| format!("git: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{} does not apply: {}", self.name, String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// What builds its suite.
    pub(super) fn building(&self, copy: &Copy) -> Result<Command> {
        let mut command = copy.cargo();
        match self.suite.split_once(' ') {
            Some(("hunt", _)) => command.args(["build", "-q", "-p", "incumbent-sim", "--example", "hunt"]),
            Some(("test", arguments)) => command.args(["test", "-q", "--no-run"]).args(arguments.split(' ')),
            _ => return Err(format!("{}: there is no suite {:?}", self.name, self.suite)),
        };
        Ok(command)
    }

    /// What should fail.
    pub(super) fn suite(&self, copy: &Copy) -> Result<Command> {
        let mut command = copy.cargo();
        match self.suite.split_once(' ') {
            Some(("hunt", subject)) => {
                command.args(["run", "-q", "-p", "incumbent-sim", "--example", "hunt", "--", subject, SEEDS]);
            }
            Some(("test", arguments)) => {
                command.args(["test", "-q"]).args(arguments.split(' '));
            }
            _ => return Err(format!("{}: there is no suite {:?}", self.name, self.suite)),
        }
        Ok(command)
    }

    /// What its suite said that failed, and with which seed, if it counts seeds.
    pub(super) fn killer(&self, output: &str) -> (String, Option<u64>) {
        let hunted = output.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(": "));
        if let Some((seed, what)) = hunted {
            return (what.split(' ').next().unwrap_or_default().to_owned(), seed.parse().ok());
        }
        let failed = output.lines().find_map(|line| line.strip_prefix("---- ")?.split_once(" stdout"));
        let test = failed.map_or("an exit without a word", |(test, _)| test);
        let seed = output.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(" fails"));
        (format!("`{test}`"), seed.and_then(|(seed, _)| seed.parse().ok()))
    }
}
