//! Collects what was measured, judges it against its bar, shows it and stores it.

use std::process::Command;

use serde::Serialize;

use crate::{Result, workspace};

/// The figures of one run.
#[derive(Serialize)]
pub(crate) struct Report {
    date: String,
    commit: String,
    machine: String,
    rows: Vec<Row>,
    #[serde(skip)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Row {
    what: String,
    unit: &'static str,
    measured: f64,
    bar: f64,
    because: String,
    reached: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<f64>,
}

impl Report {
    /// A report of a run that begins now; a dry one stores nothing.
    pub(crate) fn begin(dry_run: bool) -> Report {
        let machine = format!("{} cores, Linux {}, load {}", cores(), output("uname", &["-r"]), load());
        Report {
            date: output("date", &["-u", "+%Y-%m-%d"]),
            commit: output("git", &["describe", "--always", "--dirty"]),
            machine,
            rows: Vec::new(),
            dry_run,
        }
    }

    /// When and where this was measured, in words.
    pub(crate) fn origin(&self) -> String {
        format!("{} at {} on {}", self.date, self.commit, self.machine)
    }

    /// Writes a file of the workspace, unless it is a dry run.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result {
        if self.dry_run {
            return Ok(());
        }
        let file = workspace::root().join(path);
        let folder = file.parent().expect("it lies in a folder");
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("written: {}", file.display());
        Ok(())
    }

    /// A figure that must not exceed its bar; `because` says how the bar came about.
    pub(crate) fn at_most(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        measured: f64,
        bar: f64,
        because: String,
    ) {
        self.row(what.into(), unit, measured, bar, because, Vec::new());
    }

    /// The median of `samples` must not exceed the bar.
    pub(crate) fn median_at_most(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        samples: Vec<f64>,
        bar: f64,
        because: String,
    ) {
        self.row(what.into(), unit, median(&samples), bar, because, samples);
    }

    fn row(
        &mut self,
        what: String,
        unit: &'static str,
        measured: f64,
        bar: f64,
        because: String,
        samples: Vec<f64>,
    ) {
        let reached = measured <= bar;
        let mark = if reached { "ok  " } else { "MISS" };
        println!("{mark} {what}: {measured:.2} {unit}, at most {bar:.2} ({because})");
        let samples = samples.into_iter().map(|sample| (sample * 1000.0).round() / 1000.0).collect();
        self.rows.push(Row { what, unit, measured, bar, because, reached, samples });
    }

    /// Stores the report, unless it is a dry run.
    ///
    /// # Errors
    /// Names what was missed.
    pub(crate) fn finish(self) -> Result {
        let text = serde_json::to_string_pretty(&self).map_err(|error| error.to_string())?;
        self.write(&format!("reliability/bench/{}-{}.json", self.date, self.commit), &(text + "\n"))?;
        let missed: Vec<&str> =
            self.rows.iter().filter(|row| !row.reached).map(|row| row.what.as_str()).collect();
        if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
    }
}

/// The middle one.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What `percent` of the samples do not exceed.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> f64 {
    let rank = (samples.len() * percent).div_ceil(100).max(1);
    sorted(samples).get(rank - 1).copied().unwrap_or(f64::NAN)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(workspace::root()).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// How many processes wanted a core in the last minutes: 1, 5 and 15.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
}
