//! `cargo xtask sim`: many simulated runs, or one with its trace.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use incumbent_sim::outcome::Shown;
use incumbent_sim::soak::{self, Subject, Sum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{Result, workspace};

/// What runs longer gets a row in the ledger.
const LEDGER: &str = "reliability/ledger.csv";

#[derive(Args)]
pub(crate) struct Options {
    /// Electors (each seed chooses the store), the name of a store, or of peers: raft, bully, bully-majority, ring, ring-majority
    #[arg(default_value = "electors", value_parser = subject)]
    subject: Subject,
    /// Run so many seeds
    #[arg(long, value_name = "N", default_value_t = 1_000, conflicts_with_all = ["hours", "seed"])]
    seeds: u64,
    /// Run about so many simulated hours
    #[arg(long, value_name = "H", conflicts_with = "seed")]
    hours: Option<f64>,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Replay this seed, with its options and its trace
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Run one seed in a hundred again, in a fresh process: its trace must be the same
    #[arg(long)]
    doublecheck: bool,
    /// Of what fails, look for the fewest and shortest faults that do it
    #[arg(long)]
    shrink: bool,
    /// Use so many threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Write a row into reliability/ledger.csv
    #[arg(long)]
    record: bool,
    /// Print the hash of one seed's trace and nothing else
    #[arg(long, hide = true, requires = "seed")]
    hash: bool,
}

fn subject(name: &str) -> Result<Subject> {
    let known = Subject::all().map(Subject::name).join(", ");
    Subject::named(name).ok_or_else(|| format!("known are {known}"))
}

pub(crate) fn run(options: &Options) -> Result {
    let subject = options.subject;
    match options.seed {
        Some(seed) if options.hash => {
            println!("{:016x}", subject.run(seed, Shown::Nothing).hash);
            Ok(())
        }
        Some(seed) => replay(subject, seed, options.shrink),
        None => many(subject, options),
    }
}

/// Shows one run.
fn replay(subject: Subject, seed: u64, shrink: bool) -> Result {
    let (faults, outcome) =
        if shrink { subject.shrink(seed) } else { (subject.options(seed), subject.run(seed, Shown::Steps)) };
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("\n{faults}");
    println!("{:?}\n{:?}\nhash {:016x}", outcome.counts, outcome.sometimes, outcome.hash);
    for violation in &outcome.violations {
        println!("{violation}");
    }
    if outcome.violations.is_empty() { Ok(()) } else { Err(format!("seed {seed} fails")) }
}

fn many(subject: Subject, options: &Options) -> Result {
    let per_run = subject.run(options.from, Shown::Nothing).counts.seconds as f64 / 3_600.0;
    let count = options.hours.map_or(options.seeds, |hours| (hours / per_run).ceil() as u64);
    let seeds = options.from..options.from + count;
    let bar = ProgressBar::new(count).with_style(
        ProgressStyle::with_template("{wide_bar} {pos} of {len} runs, {msg}, {eta} left")
            .map_err(|error| error.to_string())?,
    );
    bar.enable_steady_tick(Duration::from_millis(500));
    let begin = testkit::now();
    let progress = |seconds: u64| {
        bar.inc(1);
        let simulated = bar.position() as f64 * seconds as f64 / 3_600.0;
        let took = testkit::now().since(begin).as_secs_f64();
        bar.set_message(format!("{:.0} simulated hours a second", simulated / took.max(0.001)));
    };
    let sum = soak::run(subject, seeds.clone(), options.threads, &progress);
    bar.finish_and_clear();
    let took = testkit::now().since(begin);
    if options.doublecheck {
        doublecheck(options, seeds.step_by(100), &sum)?;
    }
    let missing = sum.sometimes.missing();
    println!("{} runs, {:.0} simulated hours in {:.1} s", sum.runs, sum.hours(), took.as_secs_f64());
    println!("{:?}\n{:?}", sum.counts, sum.sometimes);
    if !missing.is_empty() {
        println!("never happened: {}", missing.join(", "));
    }
    if options.record {
        record(options, &sum, took)?;
    }
    let Some((seed, violation)) = sum.violations.first_key_value() else { return Ok(()) };
    println!("seed {seed}: {violation}");
    if options.shrink {
        replay(subject, *seed, true)?;
    }
    Err(format!(
        "{} of {} runs fail; see one with: cargo xtask sim {} --seed {seed}",
        sum.violations.len(),
        sum.runs,
        subject.name()
    ))
}

/// Runs seeds again, each in a process of its own.
fn doublecheck(options: &Options, seeds: impl Iterator<Item = u64>, sum: &Sum) -> Result {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut checked = 0;
    for seed in seeds {
        let output = Command::new(&program)
            .args(["sim", options.subject.name(), "--hash", "--seed", &seed.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let hash = format!("{:016x}", options.subject.run(seed, Shown::Nothing).hash);
        if String::from_utf8_lossy(&output.stdout).trim() != hash {
            return Err(format!("seed {seed} runs otherwise in a fresh process"));
        }
        checked += 1;
    }
    println!("{checked} of {} seeds run the same in a fresh process", sum.runs);
    Ok(())
}

/// Writes down what a long run came to.
fn record(options: &Options, sum: &Sum, took: Duration) -> Result {
    let (date, commit) = workspace::stamp()?;
    let row = format!(
        "{date},{commit},simulator,\"{}: {} runs, {:.0} simulated hours, seeds {} to {}\",{:.0},{},{},{},{},\"{} stale writes refused, {} in the unfenced twin, {} frozen leaders woke and were not valid\"\n",
        options.subject.name(),
        sum.runs,
        sum.hours(),
        options.from,
        options.from + sum.runs - 1,
        took.as_secs_f64() / 60.0,
        sum.counts.faults,
        sum.counts.elections,
        sum.violations.len(),
        if sum.violations.is_empty() { "pass" } else { "violation" },
        sum.sometimes.stale_refused,
        sum.sometimes.stale_unfenced,
        sum.sometimes.woke_not_valid,
    );
    let path = workspace::root().join(LEDGER);
    let file = std::fs::OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all(row.as_bytes()))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("written: {LEDGER}");
    Ok(())
}
