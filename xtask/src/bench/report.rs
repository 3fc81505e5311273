//! Collects what was measured, judges it against its bar, shows it and stores it.

use std::process::Command;

use serde::Serialize;

use crate::{Result, workspace};

/// The figures of one run.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    date: String,
    commit: String,
    machine: String,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    unit: &'static str,
    measured: f64,
    bar: f64,
    because: String,
    reached: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<f64>,
}

impl Report {
    /// A figure that must not exceed its bar; `because` says how the bar came about.
    pub(crate) fn at_most(
        &mut self,
        what: &'static str,
        unit: &'static str,
        measured: f64,
        bar: f64,
        because: String,
    ) {
        self.row(what, unit, measured, bar, because, Vec::new());
    }

    /// The median of `samples` must not exceed the bar.
    pub(crate) fn median_at_most(
        &mut self,
        what: &'static str,
        unit: &'static str,
        samples: Vec<f64>,
        bar: f64,
        because: String,
    ) {
        self.row(what, unit, median(&samples), bar, because, samples);
    }

    fn row(
        &mut self,
        what: &'static str,
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
    pub(crate) fn finish(mut self, dry_run: bool) -> Result {
        self.date = output("date", &["-u", "+%Y-%m-%d"]);
        self.commit = output("git", &["describe", "--always", "--dirty"]);
        self.machine = format!("{} cores, Linux {}, load {}", cores(), output("uname", &["-r"]), load());
        if !dry_run {
            let name = format!("{}-{}.json", self.date, self.commit);
            let folder = workspace::root().join("reliability/bench");
            std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            let file = folder.join(name);
            let text = serde_json::to_string_pretty(&self).map_err(|error| error.to_string())?;
            std::fs::write(&file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))?;
            println!("written: {}", file.display());
        }
        let missed: Vec<&str> = self.rows.iter().filter(|row| !row.reached).map(|row| row.what).collect();
        if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
    }
}

/// The middle one.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
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
