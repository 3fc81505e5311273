//! `observe`: a stream of who leads.

use std::process::ExitCode;

use incumbent::{Contender, Error, ErrorKind, Leader, Observation};
use serde::Serialize;

use crate::args::ObserveArgs;
use crate::output::{Answer, answer, print, print_json, tell_error};
use crate::store::Store;
use crate::{clock, text};

#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    election: &'a str,
    leader: Option<&'a Leader>,
    candidates: Option<&'a [Contender]>,
    at_unix_ms: u64,
}

pub(crate) fn observe(args: &ObserveArgs) -> ExitCode {
    answer(args.json, follow(args))
}

async fn follow(args: &ObserveArgs) -> Answer {
    let (_, connection) = Store::open(&args.store).await?;
    let mut observer = connection.election(args.election.as_str()).observer()?;
    let mut seen = false;
    let mut shown: Option<Option<Leader>> = None;
    loop {
        match observer.next().await {
            Some(Ok(observation)) => {
                seen = true;
                show(args, &observation, &mut shown)?;
            }
            // Nobody who waits will see that go away.
            Some(Err(error)) if !seen && !error.is_retryable() => return Err(error),
            Some(Err(error)) => tell_error(args.json, &error),
            None => return Err(Error::new(ErrorKind::Internal, "the observer's thread has died")),
        }
    }
}

fn show(
    args: &ObserveArgs,
    observation: &Observation,
    shown: &mut Option<Option<Leader>>,
) -> Result<(), Error> {
    let Observation { leader, candidates } = observation;
    if args.json {
        return print_json(&Event {
            event: "observed",
            election: args.election.as_str(),
            leader: leader.as_ref(),
            candidates: candidates.as_deref(),
            at_unix_ms: clock::unix_ms(),
        });
    }
    // People are told of leaders; candidates come and go.
    if shown.as_ref() == Some(leader) {
        return Ok(());
    }
    *shown = Some(leader.clone());
    let line = match leader {
        None => format!("nobody leads {}", args.election),
        Some(leader) => {
            let address = leader.contender.address.as_ref().map(|address| format!(" at {address}"));
            format!(
                "{} is led by {}{}{}",
                args.election,
                text::leader(leader),
                address.unwrap_or_default(),
                text::for_how_long(leader)
            )
        }
    };
    print(format!("{line}\n").as_bytes())
}
