//! `simulate`: an algorithm elects, breaks and heals in virtual time; figures, and a page that shows why.

mod page;
mod table;

use std::path::Path;
use std::process::ExitCode;

use incumbent::{Error, ErrorKind, Result};
use incumbent_sim::report::{self, Algorithm, Report, Setup};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::SimulateArgs;
use crate::output::{Answer, conclude, print, print_json};
use crate::{exit, output};

/// With --compare.
#[derive(Serialize)]
struct Compared<'a> {
    reports: &'a [Report],
}

pub(crate) fn simulate(args: &SimulateArgs) -> ExitCode {
    let without_choice = args.algorithm.filter(|algorithm| !algorithm.may_do_without_majority());
    if let Some(algorithm) = without_choice.filter(|_| args.majority) {
        output::tell(&format!(
            "--majority is for bully and ring; {} has no choice, leave it out",
            algorithm.name()
        ));
        return ExitCode::from(exit::USAGE);
    }
    conclude(args.json, run(args))
}

fn run(args: &SimulateArgs) -> Answer {
    let algorithms = args.algorithm.map_or(Algorithm::ALL.to_vec(), |one| vec![one]);
    let bar = bar(args.runs * algorithms.len() as u64)?;
    let reports: Vec<Report> = algorithms
        .into_iter()
        .map(|algorithm| {
            let SimulateArgs { scenario, majority, nodes, seed, .. } = *args;
            report::run_many(Setup { scenario, algorithm, majority, nodes, seed }, args.runs, || bar.inc(1))
        })
        .collect();
    bar.finish_and_clear();
    if let Some(path) = &args.html {
        write(path, &page::page(&reports))?;
    }
    match &reports[..] {
        [report] if args.json => print_json(report)?,
        _ if args.json => print_json(&Compared { reports: &reports })?,
        _ => print(table::for_people(&reports).as_bytes())?,
    }
    let broken = |report: &Report| report.setup.scenario.is_within_bounds() && !report.violations.is_empty();
    Ok(ExitCode::from(if reports.iter().any(broken) { exit::NO } else { exit::OK }))
}

/// Shown only where it takes more than a moment, and only on a terminal.
fn bar(runs: u64) -> Result<ProgressBar> {
    if runs < 20 {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs, {eta} left");
    let style = style.map_err(|error| {
        Error::new(ErrorKind::Internal, "the progress bar cannot be made").with_source(error)
    })?;
    Ok(ProgressBar::new(runs).with_style(style))
}

fn write(path: &Path, page: &str) -> Result<()> {
    std::fs::write(path, page).map_err(|error| {
        let message =
            format!("the page cannot be written to {}; name another file with --html", path.display());
        Error::new(ErrorKind::Internal, message).with_source(error)
    })
}
