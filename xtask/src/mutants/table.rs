//! `reliability/mutants.md`.

use std::collections::BTreeMap;
use std::fs;

use super::Fate;
use super::patch::Mutant;
use crate::{Result, workspace};

const TABLE: &str = "reliability/mutants.md";

/// The table as it is: a row for each mutant that was ever run, by its name.
pub(super) struct Table {
    rows: BTreeMap<String, String>,
    /// Today's date, and the commit.
    stamp: (String, String),
}

impl Table {
    /// Reads it.
    pub(super) fn read() -> Result<Table> {
        let text = fs::read_to_string(workspace::root().join(TABLE)).unwrap_or_default();
        let rows = text.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("| [")?.split_once(']')?;
            Some((name.to_owned(), line.to_owned()))
        });
        Ok(Table { rows: rows.collect(), stamp: workspace::stamp()? })
    }

    /// Puts down what became of a mutant.
    pub(super) fn set(&mut self, mutant: &Mutant, fate: &Fate) {
        let Mutant { name, row, bug, from, suite, .. } = mutant;
        let (by, after) = match fate {
            Fate::Killed { by, after } => (by.as_str(), after.as_str()),
            Fate::Survived => ("**nothing**", ""),
            Fate::Unfit(_) => ("**does not fit the sources**", ""),
        };
        let (date, commit) = &self.stamp;
        let line = format!(
            "| [{name}](mutants/{name}.patch) | {bug} | {row} | {from} | `{suite}` | {by} | {after} | {date}, {commit} |"
        );
        self.rows.insert(name.clone(), line);
    }

    /// Writes it, without what is no mutant any more.
    pub(super) fn write(&self, mutants: &[Mutant]) -> Result {
        let rows: Vec<&str> =
            mutants.iter().filter_map(|mutant| self.rows.get(&mutant.name).map(String::as_str)).collect();
        let (date, commit) = &self.stamp;
        let text = format!(
            "# Known bugs, put back

Written by `cargo xtask mutants --write`, last on {date} at commit {commit}. {} of {} mutants are in it.

Each bug is a patch in [mutants](mutants). The suite beside it passes without the bug and must fail with it. `hunt` is the simulator, which
tries seeds in order from 0, a thousand at most; `test` is `cargo test`. Seconds are those of the suite, without the building. What has a
number is a failure that another system had in use; what has a dash is a rule of a paper, broken. Three numbers have no patch, because neither
elector nor protocols decide there: 18 (a clock that stands still in suspend), 19 (a deadline that waits for the user's code) and 23 (a job
that outlives who watches it).

| mutant | what it breaks | number | from | suite | killed by | after | run |
| --- | --- | --- | --- | --- | --- | --- | --- |
{}
",
            rows.len(),
            mutants.len(),
            rows.join("\n")
        );
        fs::write(workspace::root().join(TABLE), text).map_err(|error| format!("{TABLE}: {error}"))
    }
}
