//! `cargo xtask test`: every group of tests, one closing line.

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;

use crate::Result;
use crate::groups::{GROUPS, Group, Step};
use crate::process;
use crate::tally::Tally;
use crate::targets::{self, Target};
use crate::workspace;

/// How many groups that mostly wait for servers run side by side.
const LANES: usize = 3;
/// How many tests of one target run at once in such a group, unless RUST_TEST_THREADS is set.
const THREADS: &str = "4";

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Leave this group out; also INCUMBENT_SKIP=GROUP,GROUP
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Run this group alone; may be given again
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    only: Vec<String>,
    /// List the groups and what each needs
    #[arg(long)]
    list: bool,
}

/// Runs what `options` select. An empty message means that the output has said all there is to say.
pub(crate) fn run(options: &Options) -> Result {
    if options.list {
        list();
        return Ok(());
    }
    let selection = Selection::new(options)?;
    let mut tally = Tally::default();
    run_groups(&selection, &mut tally);
    if !tally.failures.is_empty() {
        println!("\nfailures:");
    }
    for failure in &tally.failures {
        println!("    {failure}");
    }
    if tally.passed + tally.failed == 0 {
        println!("\nno test was run");
    }
    println!("\n{}", tally.closing_line());
    if tally.is_good() { Ok(()) } else { Err(String::new()) }
}

fn run_groups(selection: &Selection, tally: &mut Tally) {
    if let Err(message) = fetch(selection) {
        return tally.fail(message);
    }
    let targets = match build(selection) {
        Ok(targets) => targets,
        Err(message) => return tally.fail(message),
    };
    let (skipped, selected): (Vec<_>, Vec<_>) =
        GROUPS.iter().partition(|group| selection.why_skipped(group).is_some());
    for group in skipped {
        let why = selection.why_skipped(group).unwrap_or_default();
        let count = group.steps.iter().map(|step| count(step, &targets)).sum::<u64>().max(1);
        tally.skipped += count;
        println!("SKIPPED group {} ({why})", group.name);
    }
    let (waiting, busy): (Vec<_>, Vec<_>) = selected.into_iter().partition(|group| group.mostly_waits());
    for group in busy {
        tally.merge(run_group(group, &targets, ""));
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let lane = || {
            let mut tally = Tally::default();
            while let Some(group) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
                tally.merge(run_group(group, &targets, &format!("{:10} | ", group.name)));
            }
            tally
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            tally.merge(lane.join().expect("a lane does not panic"));
        }
    });
}

/// Runs a group; each line of its output begins with `prefix`.
fn run_group(group: &Group, targets: &[Target], prefix: &str) -> Tally {
    println!("\n{prefix}== group {}: {}", group.name, group.about);
    let (start, mut tally) = (testkit::now(), Tally::default());
    for step in group.steps {
        run_step(step, group, targets, prefix, &mut tally);
    }
    let took = testkit::now().since(start).as_secs_f64();
    let Tally { passed, failed, .. } = tally;
    println!("{prefix}== group {}: {passed} passed, {failed} failed in {took:.1} s", group.name);
    tally
}

/// Gets what the selected groups need, before any of them runs.
fn fetch(selection: &Selection) -> Result {
    for group in GROUPS.iter().filter(|group| selection.why_skipped(group).is_none()) {
        for bundle in group.needs {
            bundle.prepare().map_err(|error| format!("{error} (here: --skip {})", group.name))?;
        }
    }
    Ok(())
}

/// Builds the test targets, if a selected group has any.
fn build(selection: &Selection) -> Result<Vec<Target>> {
    let has_tests = |group: &&Group| group.steps.iter().any(|step| matches!(step, Step::Tests(_)));
    if !GROUPS.iter().filter(has_tests).any(|group| selection.why_skipped(group).is_none()) {
        return Ok(Vec::new());
    }
    let targets = targets::build()?;
    targets::check_groups(&targets, GROUPS)?;
    Ok(targets)
}

fn run_step(step: &Step, group: &Group, targets: &[Target], prefix: &str, tally: &mut Tally) {
    match step {
        Step::Check(name, check) => match check() {
            Ok(()) => tally.pass(),
            Err(message) => tally.fail(format!("{name}: {message}")),
        },
        Step::Tests(holds) => {
            for target in targets.iter().filter(|target| holds(target)) {
                println!("\n{prefix}-- {}", target.label());
                let mut command = target.command();
                if group.mostly_waits() && env::var_os("RUST_TEST_THREADS").is_none() {
                    command.env("RUST_TEST_THREADS", THREADS);
                }
                process::run(command, &target.label(), group.name, prefix, tally);
            }
        }
        Step::Cargo(args) => {
            let label = format!("cargo {}", args.join(" "));
            process::run(workspace::cargo(args), &label, group.name, prefix, tally);
        }
    }
}

/// How many tests a step holds, as far as that is known without running it.
fn count(step: &Step, targets: &[Target]) -> u64 {
    match step {
        Step::Tests(holds) => targets.iter().filter(|target| holds(target)).map(Target::count).sum(),
        Step::Check(..) | Step::Cargo(_) => 1,
    }
}

fn list() {
    for group in GROUPS {
        let needs: Vec<&str> = group.needs.iter().map(|bundle| bundle.name).collect();
        let needs = if needs.is_empty() { String::new() } else { format!(" (fetches {})", needs.join(", ")) };
        println!("{:12} {}{needs}", group.name, group.about);
    }
}

/// Which groups run.
struct Selection {
    skip: BTreeSet<String>,
    skip_by_environment: BTreeSet<String>,
    only: BTreeSet<String>,
}

impl Selection {
    fn new(options: &Options) -> Result<Selection> {
        let environment = env::var("INCUMBENT_SKIP").unwrap_or_default();
        let words = |list: &str| {
            list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let selection = Selection {
            skip: options.skip.iter().cloned().collect(),
            skip_by_environment: words(&environment),
            only: options.only.iter().cloned().collect(),
        };
        let named = selection.skip.iter().chain(&selection.skip_by_environment).chain(&selection.only);
        for name in named {
            if !GROUPS.iter().any(|group| group.name == name) {
                let known: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
                return Err(format!("there is no group {name:?}; the groups are {}", known.join(", ")));
            }
        }
        Ok(selection)
    }

    fn why_skipped(&self, group: &Group) -> Option<&'static str> {
        if self.skip.contains(group.name) {
            Some("by --skip")
        } else if self.skip_by_environment.contains(group.name) {
            Some("by INCUMBENT_SKIP")
        } else if !self.only.is_empty() && !self.only.contains(group.name) {
            Some("by --only")
        } else {
            None
        }
    }
}
