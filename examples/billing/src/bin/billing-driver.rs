//! Runs ten replicas, strikes whoever leads, and audits the ledger. `run.sh` builds and starts it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use billing::charge::Error;
use billing::driver::replica::worker_beside;
use billing::driver::run::{Outcome, Plan, run};

const USAGE: &str = "usage: billing-driver FOLDER [--on URL] [--unfenced]; run.sh brings the folder";

fn main() -> ExitCode {
    strike().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn strike() -> Result<ExitCode, Error> {
    let (mut on, mut fenced, mut folder) = (None, true, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--on" => on = Some(args.next().ok_or(USAGE)?),
            "--unfenced" => fenced = false,
            _ if arg.starts_with('-') || folder.is_some() => return Err(USAGE.into()),
            _ => folder = Some(PathBuf::from(arg)),
        }
    }
    let folder = folder.ok_or(USAGE)?;
    let on = on.unwrap_or_else(|| format!("file:{}", folder.join("election").display()));
    let worker = worker_beside(&std::env::current_exe()?)?;
    let outcome = run(Plan { worker, ledger: folder.join("ledger.db"), on, fenced })?;
    let verdict = if fenced { fenced_verdict(&outcome) } else { unfenced_verdict(&outcome) };
    let (Ok(what) | Err(what)) = &verdict;
    let audit = outcome.audit;
    writeln!(io::stdout(), "{what}")?;
    writeln!(io::stdout(), "charged {}, twice {}, missing {}", audit.charged, audit.twice, audit.missing)?;
    Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A run in which not everything happened that should have proves nothing.
fn fenced_verdict(outcome: &Outcome) -> Result<String, String> {
    let Outcome { audit, refused, landed, waited, all_dealt } = outcome;
    if audit.twice != 0 || audit.missing != 0 || *landed != 0 {
        return Err("FAILED: not every subscription was charged exactly once".into());
    }
    if !all_dealt || *refused == 0 || *waited == 0 {
        return Err("PROVES NOTHING: not every kind of blow was dealt".into());
    }
    Ok(format!(
        "late writes refused by the fence: {refused}; successors that waited for a frozen leader: {waited}"
    ))
}

fn unfenced_verdict(outcome: &Outcome) -> Result<String, String> {
    match outcome.audit.twice {
        0 => Err("PROVES NOTHING: without the fence no subscription was charged twice".into()),
        _ => {
            Ok("without the fence customers were charged twice, so the run with it does prove something"
                .into())
        }
    }
}
