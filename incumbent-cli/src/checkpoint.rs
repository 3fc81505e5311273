//! `checkpoint get|put`: the value that one leader leaves for the next.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use incumbent::{CHECKPOINT_MAX, ElectionName, Error, ErrorKind, FencingToken, Result};
use incumbent_guardian::LeaseFileReader;
use serde::Serialize;

use crate::args::{CheckpointAction, CheckpointGetArgs, CheckpointPutArgs};
use crate::exit;
use crate::output::{Answer, answer, print, print_json, tell, tell_error};
use crate::store::Store;

const ELECTION: &str = "INCUMBENT_ELECTION";
const TOKEN: &str = "INCUMBENT_TOKEN";
const LEASE_FILE: &str = "INCUMBENT_LEASE_FILE";

pub(crate) fn checkpoint(action: &CheckpointAction) -> ExitCode {
    match action {
        CheckpointAction::Get(args) => answer(args.json, async { no_if_over(args.json, get(args).await) }),
        CheckpointAction::Put(args) => answer(args.json, async { no_if_over(args.json, put(args).await) }),
    }
}

/// The end of the job's term is a no, not an error.
fn no_if_over(json: bool, answer: Answer) -> Answer {
    match answer {
        Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotLeader) => {
            tell_error(json, &error);
            Ok(ExitCode::from(exit::NO))
        }
        other => other,
    }
}

#[derive(Serialize)]
struct Value<'a> {
    election: &'a str,
    bytes: Option<usize>,
    text: Option<&'a str>,
    hex: Option<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    election: &'a str,
    token: FencingToken,
    bytes: usize,
}

async fn get(args: &CheckpointGetArgs) -> Answer {
    let job = Job::of_environment()?;
    let election = match (&args.election, &job) {
        (Some(election), _) => election.clone(),
        (None, Some(job)) => job.election.clone(),
        (None, None) => return Err(invalid("name the election; only in a job is it known")),
    };
    let (_, connection) = Store::open(&args.store).await?;
    let checkpoint = connection.election(election.as_str()).checkpoint()?;
    let value = match job.filter(|job| job.election == election) {
        Some(job) => {
            job.check()?;
            checkpoint.get_under(job.token).await?
        }
        None => checkpoint.get().await?,
    };
    if args.json {
        let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
        let hex = value.as_deref().filter(|_| text.is_none()).map(hex);
        print_json(&Value { election: election.as_str(), bytes: value.as_ref().map(Vec::len), text, hex })?;
    } else if let Some(value) = &value {
        print(value)?;
    } else {
        tell(&format!("{election} has no checkpoint"));
    }
    Ok(ExitCode::from(if value.is_some() { exit::OK } else { exit::NO }))
}

async fn put(args: &CheckpointPutArgs) -> Answer {
    let Some(job) = Job::of_environment()? else {
        return Err(invalid("a checkpoint can be written only in a command that incumbent run started"));
    };
    let value = read(&args.file)?;
    let (_, connection) = Store::open(&args.store).await?;
    let checkpoint = connection.election(job.election.as_str()).checkpoint()?;
    job.check()?;
    checkpoint.put_under(job.token, &value).await?;
    if args.json {
        print_json(&Written { election: job.election.as_str(), token: job.token, bytes: value.len() })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The job that this process belongs to.
struct Job {
    election: ElectionName,
    token: FencingToken,
}

impl Job {
    /// `None` outside of a job.
    fn of_environment() -> Result<Option<Job>> {
        let Ok(election) = std::env::var(ELECTION) else { return Ok(None) };
        let token = std::env::var(TOKEN).unwrap_or_default();
        let token = token.parse().map_err(|_| invalid(format!("{TOKEN} is {token:?}, which is no token")))?;
        Ok(Some(Job { election: ElectionName::new(election)?, token: FencingToken(token) }))
    }

    /// Spares the store a question whose answer is in the lease file.
    fn check(&self) -> Result<()> {
        let Some(path) = std::env::var_os(LEASE_FILE) else { return Ok(()) };
        let word = LeaseFileReader::open(Path::new(&path)).ok().and_then(|file| file.read().ok());
        let good =
            word.is_some_and(|word| word.token() == self.token && word.is_valid(incumbent::clock::now()));
        let over = || Error::new(ErrorKind::NotLeader, "the term is over; stop, another may lead");
        if good { Ok(()) } else { Err(over()) }
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    let limit = CHECKPOINT_MAX as u64 + 1;
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut value)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut value))
    };
    read.map_err(|error| invalid(format!("{} cannot be read", path.display())).with_source(error))?;
    if value.len() > CHECKPOINT_MAX {
        return Err(invalid(format!(
            "the value is longer than {CHECKPOINT_MAX} bytes, the most that a checkpoint holds"
        )));
    }
    Ok(value)
}

fn hex(value: &[u8]) -> String {
    value.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}
