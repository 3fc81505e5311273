//! Counts test results as the test harness prints them.

/// What has passed, failed and been left out so far.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// A line for each failure.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Adds what another has counted.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    /// Takes over the results of one command.
    pub(crate) fn add(&mut self, results: Results, label: &str, ended_well: bool, how: &str) {
        self.passed += results.passed;
        self.failed += results.failed;
        self.failures.extend(results.failures.into_iter().map(|name| format!("{label}: {name}")));
        if !ended_well && results.failed == 0 {
            self.fail(format!("{label}: {how}"));
        } else if !results.any {
            self.pass();
        }
    }

    /// The closing line.
    pub(crate) fn closing_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Whether something ran and nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

/// The results of one command, taken from its output.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    passed: u64,
    failed: u64,
    /// Whether any results were printed.
    any: bool,
    failures: Vec<String>,
}

impl Results {
    /// Takes the next line of output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.any = true;
            let count = |word: &str| {
                let part = rest.split([';', '.']).find_map(|part| part.trim().strip_suffix(word));
                part.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default()
            };
            self.passed += count(" passed");
            // A test that is not run proves nothing: it is deleted or made to run.
            self.failed += count(" failed") + count(" ignored");
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            if outcome == "FAILED" {
                self.failures.push(name.to_owned());
            } else if outcome.starts_with("ignored") {
                self.failures.push(format!("{name} is ignored"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str, ended_well: bool) -> Tally {
        let mut results = Results::default();
        output.lines().for_each(|line| results.read(line));
        let mut tally = Tally::default();
        tally.add(results, "target", ended_well, "exit status 101");
        tally
    }

    #[test]
    fn results_are_summed_and_failures_named() {
        let tally = tally(
            "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
            false,
        );
        assert_eq!((tally.passed, tally.failed), (42, 1));
        assert_eq!(tally.failures, ["target: a::c"]);
        assert_eq!(tally.closing_line(), "42 passed, 1 failed, 0 skipped");
        assert!(!tally.is_good());
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let tally = tally(
            "test a ... ok\ntest b ... ignored, for later\n\
             test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
            true,
        );
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["target: b is ignored"]);
    }

    #[test]
    fn a_command_that_dies_without_results_is_a_failure() {
        let tally = tally("running 3 tests\ntest a ... ok\n", false);
        assert_eq!((tally.passed, tally.failed), (0, 1));
        assert_eq!(tally.failures, ["target: exit status 101"]);
    }

    #[test]
    fn a_command_without_results_that_ends_well_is_one_test() {
        assert_eq!(tally("charged 10000\n", true).passed, 1);
        assert!(!Tally::default().is_good());
    }

    #[test]
    fn a_target_without_tests_adds_nothing() {
        let line =
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(tally(line, true), Tally::default());
    }
}
