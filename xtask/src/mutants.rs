//! `cargo xtask mutants`: puts known bugs back, one at a time, in a copy of the sources; the suite must find each.
//!
//! A mutant is a file `reliability/mutants/NAME.patch`: lines `row:`, `bug:`, `from:` and `suite:`, then a diff. The suites are
//! `hunt SUBJECT` (the simulator looks for a seed that fails, among the first thousand) and `test ARGUMENTS` (of `cargo test`).

mod copy;
mod patch;
mod table;

use std::time::Duration;

use clap::Args;

use self::copy::{Copy, Ended};
use self::patch::Mutant;
use self::table::Table;
use crate::Result;

/// A suite that takes longer with a bug hangs because of it.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// The first building compiles all that a suite needs.
const BUILDING: Duration = Duration::from_secs(60 * 60);

#[derive(Args)]
pub(crate) struct Options {
    /// Only the mutants whose names begin with this; may be given again
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Write into reliability/mutants.md what became of each
    #[arg(long)]
    write: bool,
}

/// What became of a mutant.
enum Fate {
    /// How, and what it took.
    Killed {
        by: String,
        after: String,
    },
    Survived,
    /// It is no bug of today's sources.
    Unfit(String),
}

pub(crate) fn run(options: &Options) -> Result {
    let all = patch::all()?;
    let only = &options.only;
    let chosen = |mutant: &&Mutant| only.is_empty() || only.iter().any(|name| mutant.name.starts_with(name));
    let mutants: Vec<&Mutant> = all.iter().filter(chosen).collect();
    if mutants.is_empty() {
        return Err(format!("no mutant in {} has such a name", patch::FOLDER));
    }
    let mut table = Table::read()?;
    let copy = Copy::new()?;
    let mut sound: Vec<&str> = Vec::new();
    let mut fates = Vec::new();
    for mutant in mutants {
        // What fails without a bug shows none.
        if !sound.contains(&mutant.suite.as_str()) {
            is_sound(&copy, mutant)?;
            sound.push(&mutant.suite);
        }
        let fate = copy.with(mutant, || fate(&copy, mutant))?;
        match &fate {
            Fate::Killed { by, after } => println!("{:44} killed by {by}, {after}", mutant.name),
            Fate::Survived => println!("{:44} SURVIVED {}", mutant.name, mutant.suite),
            Fate::Unfit(why) => println!("{:44} {why}", mutant.name),
        }
        if options.write {
            // At once: a run takes long.
            table.set(mutant, &fate);
            table.write(&all)?;
        }
        fates.push(fate);
    }
    if only.is_empty() {
        copy.remove()?;
    }
    let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count();
    let killed = count(|fate| matches!(fate, Fate::Killed { .. }));
    let unfit = count(|fate| matches!(fate, Fate::Unfit(_)));
    let sum = format!("{killed} killed, {} survived", fates.len() - killed - unfit);
    match unfit {
        _ if killed == fates.len() => {
            println!("{sum}");
            Ok(())
        }
        0 => Err(sum),
        unfit => Err(format!("{sum}, {unfit} do not fit the sources")),
    }
}

/// Builds the mutant's suite; what the compiler says if it does not.
fn built(copy: &Copy, mutant: &Mutant) -> Result<Result> {
    Ok(match copy.run(mutant.building(copy)?, BUILDING)? {
        Ended::Well => Ok(()),
        Ended::Failed { output, .. } => {
            Err(format!("{} does not compile:\n{}", mutant.name, last_lines(&output)))
        }
        Ended::Late => return Err(format!("{}: the building takes too long", mutant.suite)),
    })
}

/// Whether the mutant's suite passes without it.
fn is_sound(copy: &Copy, mutant: &Mutant) -> Result {
    built(copy, mutant)??;
    match copy.run(mutant.suite(copy)?, LIMIT)? {
        Ended::Well => Ok(()),
        Ended::Failed { output, .. } => {
            Err(format!("{} fails without any bug:\n{}", mutant.suite, last_lines(&output)))
        }
        Ended::Late => Err(format!("{} takes too long without any bug", mutant.suite)),
    }
}

/// What becomes of a mutant that is in the copy.
fn fate(copy: &Copy, mutant: &Mutant) -> Result<Fate> {
    if let Err(message) = built(copy, mutant)? {
        return Ok(Fate::Unfit(message));
    }
    Ok(match copy.run(mutant.suite(copy)?, LIMIT)? {
        Ended::Well => Fate::Survived,
        Ended::Late => Fate::Killed { by: "time-out".to_owned(), after: format!("{} s", LIMIT.as_secs()) },
        Ended::Failed { output, seconds } => {
            let (by, seed) = mutant.killer(&output);
            let after = match seed {
                Some(seed) => format!("seed {seed}"),
                None => format!("{seconds:.1} s"),
            };
            Fate::Killed { by, after }
        }
    })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::patch;
    use crate::workspace;

    /// A patch that does not apply any more tests nothing.
    #[test]
    fn every_patch_applies() {
        let mutants = patch::all().expect("every patch says what it is");
        assert!(!mutants.is_empty());
        let unfit: Vec<String> =
            mutants.iter().filter_map(|mutant| mutant.apply(workspace::root(), true).err()).collect();
        assert!(unfit.is_empty(), "{}", unfit.join("\n"));
    }
}
