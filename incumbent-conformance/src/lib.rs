//! The numbered rules R1–R11 and H as test cases, for any [`Backend`](incumbent_core::Backend).
//!
//! Whoever has written a backend of his own implements [`Harness`]: how to connect, and which faults he can make. A
//! test target with `harness = false` then is one line, and counts every case as a test:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use incumbent_conformance::{Harness, Suite};
//! # use incumbent_core::{Backend, BoxFuture, Error, ErrorKind, Result};
//! # fn my_backend() -> Result<Arc<dyn Backend>> { Err(Error::new(ErrorKind::Unavailable, "the store is down")) }
//! struct MyStore;
//!
//! impl Harness for MyStore {
//!     fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
//!         Box::pin(async { my_backend() })
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     Suite::new(MyStore).main()
//! }
//! ```
//!
//! Cases are chosen by the [`Guarantees`](incumbent_core::Guarantees) that the backend declares. What it lacks, and what its
//! harness cannot do, is printed as `n/a` with the reason and is never left out in silence.
//!
//! Every case writes its calls into a [`History`], and [`check()`] judges it: whatever a case looks for, two leaders or
//! a token out of order are found in each of them.
#![forbid(unsafe_code)]

mod abandon;
mod check;
mod clock;
mod command_line;
mod faulty;
mod harness;
mod history;
mod report;
mod rules;
mod stage;
mod suite;

pub use check::{Tolerance, Violation, check};
pub use faulty::{Faults, Faulty, Hints};
pub use harness::{Harness, Hook};
pub use history::{Answer, Call, Entry, History, Recorder};
pub use report::{CaseReport, Report, Verdict};
pub use suite::Suite;
