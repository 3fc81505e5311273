//! What came out: one row for each case.

use std::fmt;
use std::time::Duration;

use incumbent_core::Guarantees;
use serde::Serialize;

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the backend declares, and the cases were chosen by.
    pub guarantees: Guarantees,
    /// The cases, in the order of the rules.
    pub cases: Vec<CaseReport>,
}

/// The outcome of one case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CaseReport {
    /// The rule, as in `R4`.
    pub rule: &'static str,
    /// The case, as in `r4_adopts_a_grant_whose_answer_was_lost`, after the suite's label if it has one.
    pub case: String,
    /// What came out.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

/// What came out of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The rule is kept.
    Ok,
    /// The rule is broken, or could not be tried.
    Failed {
        /// What happened.
        reason: String,
    },
    /// The case asks for what the backend declares not to have, or what its harness cannot do.
    NotApplicable {
        /// Why.
        reason: String,
    },
}

impl Report {
    /// True if a case passed and none failed.
    pub fn is_ok(&self) -> bool {
        self.failures().next().is_none() && self.count(|verdict| *verdict == Verdict::Ok) > 0
    }

    /// The cases that failed, with what happened.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cases.iter().filter_map(|case| match &case.verdict {
            Verdict::Failed { reason } => Some((case.case.as_str(), reason.as_str())),
            Verdict::Ok | Verdict::NotApplicable { .. } => None,
        })
    }

    /// How many cases have a verdict that `matches`.
    pub fn count(&self, matches: impl Fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|case| matches(&case.verdict)).count()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Ok => f.write_str("ok"),
            Verdict::Failed { .. } => f.write_str("FAILED"),
            Verdict::NotApplicable { reason } => write!(f, "n/a: {reason}"),
        }
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "test {} ... {}", self.case, self.verdict)?;
        match self.verdict {
            Verdict::Ok => write!(f, " <{:.1}s>", self.took.as_secs_f64()),
            Verdict::Failed { .. } | Verdict::NotApplicable { .. } => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    /// The table of cases, then the failures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            writeln!(f, "{case}")?;
        }
        for (case, reason) in self.failures() {
            writeln!(f, "\n{case}: {reason}")?;
        }
        Ok(())
    }
}
