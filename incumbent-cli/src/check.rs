//! `check`: is my term still good? Reads one small file; no runtime, no network.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use incumbent::{Error, ErrorKind, clock};
use incumbent_guardian::LeaseFileReader;
use serde::Serialize;

use crate::args::CheckArgs;
use crate::{exit, output, text};

const LEASE_FILE: &str = "INCUMBENT_LEASE_FILE";

#[derive(Serialize)]
struct Report {
    valid: bool,
    token: Option<u64>,
    left_ms: u64,
    reason: Option<String>,
}

pub(crate) fn check(args: &CheckArgs) -> ExitCode {
    let Some(path) = std::env::var_os(LEASE_FILE).filter(|path| !path.is_empty()) else {
        let message = "INCUMBENT_LEASE_FILE is not set; check works in a command that incumbent run started";
        return output::conclude(args.json, Err(Error::new(ErrorKind::InvalidConfig, message)));
    };
    let report = read(Path::new(&path), args.min);
    if args.json {
        return output::conclude(true, output::print_json(&report).map(|()| code(&report)));
    }
    if let Some(reason) = &report.reason {
        output::tell(reason);
    }
    code(&report)
}

fn code(report: &Report) -> ExitCode {
    ExitCode::from(if report.valid { exit::OK } else { exit::NO })
}

fn read(path: &Path, min: Duration) -> Report {
    let over = |reason: String| Report { valid: false, token: None, left_ms: 0, reason: Some(reason) };
    let word = match LeaseFileReader::open(path) {
        Ok(file) => file.read(),
        // No other term uses the path, so nothing but the end of this one removes it.
        Err(error) => return over(format!("the term is over: {}: {error}", path.display())),
    };
    let word = match word {
        Ok(word) => word,
        Err(error) => return over(format!("the term cannot be relied on: {error}")),
    };
    let now = clock::now();
    let left = word.remaining(now);
    let valid = word.is_valid(now) && left >= min;
    let reason = (!valid).then(|| match left {
        Duration::ZERO => "the term is over; stop, another may lead".to_owned(),
        left => format!("only {} of the term is left, less than {}", text::span(left), text::span(min)),
    });
    let left_ms = left.as_millis().try_into().unwrap_or(u64::MAX);
    Report { valid, token: Some(word.token().0), left_ms, reason }
}
