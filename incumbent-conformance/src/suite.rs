//! Runs the cases: those that touch only their own election side by side, then those that touch the whole store, one by one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use incumbent_core::{Error, ErrorKind, Guarantees, Result};

use crate::clock;
use crate::harness::Harness;
use crate::report::{CaseReport, Report, Verdict};
use crate::rules::{self, Rule};
use crate::stage::{Stage, Stop};

/// How many terms rule H looks back on unless told otherwise.
const TERMS: usize = 500;
/// How many cases run side by side unless told otherwise: they mostly wait.
const JOBS: usize = 6;
/// No case takes longer than this many ttls and seconds, or it hangs.
const PATIENCE: (u32, Duration) = (60, Duration::from_secs(120));
/// And than this for each term that rule H looks back on.
const PATIENCE_PER_TERM: Duration = Duration::from_millis(50);

/// How often a case is begun until the store has answered each of its calls.
const ATTEMPTS: u32 = 3;

/// One test of one rule.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// It makes faults that others would notice, or measures what others disturb.
    pub(crate) alone: bool,
    pub(crate) run: for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<(), Stop>>,
}

/// The rules as test cases, for one store.
pub struct Suite {
    harness: Arc<dyn Harness>,
    pub(crate) label: Option<String>,
    rule: Option<&'static str>,
    filters: Vec<String>,
    exact: bool,
    skips: Vec<String>,
    terms: usize,
    jobs: usize,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite")
            .field("filters", &self.filters)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

impl Suite {
    /// All cases, for the store behind `harness`.
    pub fn new(harness: impl Harness) -> Suite {
        Suite {
            harness: Arc::new(harness),
            label: None,
            rule: None,
            filters: Vec::new(),
            exact: false,
            skips: Vec::new(),
            terms: TERMS,
            jobs: JOBS,
        }
    }

    /// Names the store, where several are tried: the cases are called `LABEL::CASE` then.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Suite {
        self.label = Some(label.into());
        self
    }

    /// Only the cases of one rule, as in `R6`.
    #[must_use]
    pub fn within(mut self, rule: &'static str) -> Suite {
        self.rule = Some(rule);
        self
    }

    /// Only the cases whose name contains `filter`; called again: or this one.
    #[must_use]
    pub fn only(mut self, filter: impl Into<String>) -> Suite {
        self.filters.push(filter.into());
        self
    }

    /// Not the cases whose name contains `filter`.
    #[must_use]
    pub fn skip(mut self, filter: impl Into<String>) -> Suite {
        self.skips.push(filter.into());
        self
    }

    /// Filters are whole names.
    #[must_use]
    pub fn exact(mut self) -> Suite {
        self.exact = true;
        self
    }

    /// How many terms, and how many elections, rule H looks back on. Default 500; 10 000 shows leaks that 500 do not.
    #[must_use]
    pub fn terms(mut self, terms: usize) -> Suite {
        self.terms = terms.max(10);
        self
    }

    /// How many cases run side by side. Default 6: they mostly wait.
    #[must_use]
    pub fn jobs(mut self, jobs: usize) -> Suite {
        self.jobs = jobs.max(1);
        self
    }

    /// What a case is called.
    pub(crate) fn name(&self, case: &str) -> String {
        match &self.label {
            Some(label) => format!("{label}::{case}"),
            None => case.to_owned(),
        }
    }

    /// The rules and those of their cases that are chosen.
    pub(crate) fn chosen(&self) -> Vec<(&'static Rule, Case)> {
        let is_chosen = |case: &str| {
            let name = self.name(case);
            let matches =
                |filter: &String| if self.exact { name == *filter } else { name.contains(filter.as_str()) };
            (self.filters.is_empty() || self.filters.iter().any(matches)) && !self.skips.iter().any(matches)
        };
        let all = rules::ALL.iter().flat_map(|rule| rule.cases.iter().map(move |case| (rule, *case)));
        all.filter(|(rule, case)| self.rule.is_none_or(|only| only == rule.id) && is_chosen(case.name))
            .collect()
    }

    /// Runs the chosen cases and tells `each` as they end. Call it outside of any runtime.
    ///
    /// # Errors
    /// If the store cannot be connected to at all, or the harness asks for a ttl that it cannot keep.
    pub fn run_with(&self, each: impl Fn(&CaseReport) + Sync) -> Result<Report> {
        let guarantees = self.guarantees()?;
        let chosen = self.chosen();
        let results: Mutex<Vec<(usize, CaseReport)>> = Mutex::default();
        let run = |place: usize| {
            let (rule, case) = chosen[place];
            let report = self.run_case(rule, case, &guarantees);
            each(&report);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((place, report));
        };
        let places = |alone: bool| -> Vec<usize> {
            (0..chosen.len()).filter(|place| chosen[*place].1.alone == alone).collect()
        };
        let together = places(false);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.min(together.len()) {
                scope.spawn(|| {
                    while let Some(place) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
                        run(*place);
                    }
                });
            }
        });
        places(true).into_iter().for_each(run);
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(place, _)| *place);
        Ok(Report { guarantees, cases: results.into_iter().map(|(_, report)| report).collect() })
    }

    /// [`run_with`](Suite::run_with) without looking on.
    ///
    /// # Errors
    /// As [`run_with`](Suite::run_with).
    pub fn run(&self) -> Result<Report> {
        self.run_with(|_| {})
    }

    fn guarantees(&self) -> Result<Guarantees> {
        let backend = runtime()?.block_on(async {
            let backend = self.harness.connect().await?;
            Result::Ok(backend.guarantees().clone())
        });
        let guarantees = backend?;
        let ttl = self.harness.ttl();
        if ttl < guarantees.ttl_min {
            let text =
                format!("the harness's ttl {ttl:?} is below the backend's ttl_min {:?}", guarantees.ttl_min);
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(guarantees)
    }

    fn run_case(&self, rule: &Rule, case: Case, guarantees: &Guarantees) -> CaseReport {
        let begin = clock::now();
        let declared =
            guarantees.not_applicable.iter().find(|(part, _)| *part == rule.id || *part == case.name);
        let verdict = match declared {
            Some((_, reason)) => Verdict::NotApplicable { reason: (*reason).to_owned() },
            None => self.verdict(case, guarantees),
        };
        CaseReport { rule: rule.id, case: self.name(case.name), verdict, took: clock::now().since(begin) }
    }

    fn verdict(&self, case: Case, guarantees: &Guarantees) -> Verdict {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let stage = Stage::new(self.harness.clone(), guarantees.clone(), self.terms);
            let outcome = catch_unwind(AssertUnwindSafe(|| play(case, &stage)));
            let outcome = outcome
                .unwrap_or_else(|panic| Err(Stop::Failed(format!("it panicked: {}", text_of(&*panic)))));
            return match outcome {
                Ok(()) => Verdict::Ok,
                Err(Stop::NotApplicable(reason)) => Verdict::NotApplicable { reason },
                Err(Stop::Unanswered(_)) if attempts < ATTEMPTS => continue,
                Err(Stop::Unanswered(reason) | Stop::Failed(reason)) => Verdict::Failed { reason },
            };
        }
    }
}

/// Runs a case in a runtime of its own, then judges its history: what that proves to be broken counts however the case
/// ended.
fn play(case: Case, stage: &Stage) -> Result<(), Stop> {
    let patience = stage.ttl() * PATIENCE.0 + PATIENCE.1 + PATIENCE_PER_TERM * stage.terms as u32;
    let outcome = runtime()?.block_on(async {
        match tokio::time::timeout(patience, (case.run)(stage)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Stop::Failed(format!("it did not end within {patience:?}"))),
        }
    });
    let mut violations = stage.violations();
    if violations.is_empty() {
        return outcome;
    }
    if let Err(Stop::Failed(reason)) = outcome {
        violations.insert(0, reason);
    }
    Err(Stop::Failed(violations.join("\n")))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "no runtime can be started").with_source(error))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}
