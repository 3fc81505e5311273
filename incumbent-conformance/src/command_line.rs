//! The command line of a test target with `harness = false`, as `cargo test` expects it.

use std::io::Write;
use std::process::ExitCode;

use crate::clock;
use crate::report::{CaseReport, Verdict};
use crate::suite::Suite;

impl Suite {
    /// Runs the cases that the command line asks for and prints them as tests are printed.
    ///
    /// Understands names (parts of names), `--exact`, `--skip NAME`, `--list`, `--test-threads N`, and of its own
    /// `--terms N` (rule H) and `--json` (the [`Report`](crate::Report) at the end). Other options of the standard test
    /// harness are accepted and have no effect.
    pub fn main(self) -> ExitCode {
        Suite::main_of([self])
    }

    /// [`main`](Suite::main) for several stores, one after the other.
    pub fn main_of(suites: impl IntoIterator<Item = Suite>) -> ExitCode {
        let mut all_well = true;
        for suite in suites {
            match suite.parse(std::env::args().skip(1)) {
                Ok(Command { list: true, suite, .. }) => suite.list(),
                Ok(Command { suite, json, .. }) => all_well &= suite.run_and_print(json),
                Err(message) => {
                    say(&format!("error: {message}"));
                    return ExitCode::from(2);
                }
            }
        }
        if all_well { ExitCode::SUCCESS } else { ExitCode::from(101) }
    }

    fn list(&self) {
        for (_, case) in self.chosen() {
            say(&format!("{}: test", self.name(case.name)));
        }
    }

    fn run_and_print(&self, json: bool) -> bool {
        let begin = clock::now();
        let chosen = self.chosen().len();
        if chosen == 0 {
            return true;
        }
        say(&format!("\nrunning {chosen} tests"));
        let report = match self.run_with(print) {
            Ok(report) => report,
            Err(error) => {
                say(&format!("error: the suite cannot run: {error:?}"));
                return false;
            }
        };
        if report.failures().next().is_some() {
            say("\nfailures:");
        }
        for (case, reason) in report.failures() {
            say(&format!("\n{case}: {reason}"));
        }
        if json {
            say(&serde_json::to_string(&report).unwrap_or_default());
        }
        let passed = report.count(|verdict| *verdict == Verdict::Ok);
        let failed = report.failures().count();
        let not_applicable = report.cases.len() - passed - failed;
        let word = if failed == 0 { "ok" } else { "FAILED" };
        let took = clock::now().since(begin).as_secs_f64();
        say(&format!(
            "\ntest result: {word}. {passed} passed; {failed} failed; {not_applicable} n/a; finished in {took:.2}s\n"
        ));
        failed == 0
    }

    fn parse(mut self, arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut arguments = arguments.flat_map(|argument| match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => vec![name.to_owned(), value.to_owned()],
            _ => vec![argument],
        });
        let (mut list, mut json) = (false, false);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            let number = |text: String| text.parse().map_err(|_| format!("{text:?} is no number"));
            match argument.as_str() {
                "--list" => list = true,
                "--json" => json = true,
                "--exact" => self = self.exact(),
                "--skip" => self = self.skip(value()?),
                "--terms" => self = self.terms(number(value()?)?),
                "--test-threads" => self = self.jobs(number(value()?)?),
                "--format" | "--color" | "--logfile" | "-Z" => drop(value()?),
                option if option.starts_with('-') => {}
                name => self = self.only(name),
            }
        }
        Ok(Command { suite: self, list, json })
    }
}

struct Command {
    suite: Suite,
    list: bool,
    json: bool,
}

fn print(case: &CaseReport) {
    say(&case.to_string());
}

/// Prints a line; a reader that has gone away is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use incumbent_core::{Backend, BoxFuture, Result};

    use super::*;
    use crate::Harness;

    struct Nothing;

    impl Harness for Nothing {
        fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
            unreachable!("nothing is run")
        }
    }

    fn parse(arguments: &[&str]) -> Command {
        Suite::new(Nothing).parse(arguments.iter().map(|argument| (*argument).to_owned())).unwrap()
    }

    #[test]
    fn names_choose_cases() {
        let all = parse(&["--list", "--format", "terse"]);
        assert!(all.list && all.suite.chosen().len() > 20);
        let chosen = parse(&["r5_", "--skip=r5_release_is_idempotent", "--nocapture"]).suite.chosen();
        assert!(!chosen.is_empty() && chosen.iter().all(|(rule, _)| rule.id == "R5"));
        assert!(chosen.iter().all(|(_, case)| case.name != "r5_release_is_idempotent"));
        assert_eq!(parse(&["--exact", "r5_release_is_idempotent"]).suite.chosen().len(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [&["--terms"][..], &["--terms", "many"]] {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            assert!(Suite::new(Nothing).parse(arguments).is_err());
        }
    }
}
