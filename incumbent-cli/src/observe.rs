//! `observe`: a stream of who leads.

use std::process::ExitCode;

use incumbent::{Contender, Error, ErrorKind, FencingToken, Leader, Observation};
use serde::Serialize;

use crate::args::ObserveArgs;
use crate::output::{Answer, ReaderGone, answer, json_line, print_while_read, tell_error, warn};
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

/// Who people were told leads: nobody, or a candidate in a term. `None`: they were told nothing yet.
type Shown = Option<Option<(Contender, Option<FencingToken>)>>;

pub(crate) fn observe(args: &ObserveArgs) -> ExitCode {
    answer(args.json, follow(args))
}

async fn follow(args: &ObserveArgs) -> Answer {
    let (_, connection) = Store::open(&args.store).await?;
    let mut observer = connection.election(args.election.as_str()).observer()?;
    let mut seen = false;
    let mut shown = None;
    let mut reader_gone = ReaderGone::watch()?;
    loop {
        let next = tokio::select! {
            next = observer.next() => next,
            // As after `observe … | head -1`: the next event may be far.
            () = reader_gone.wait() => return Ok(ExitCode::SUCCESS),
        };
        match next {
            Some(Ok(observation)) => {
                seen = true;
                if !show(args, &observation, &mut shown)? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            // Nobody who waits will see that go away.
            Some(Err(error)) if !seen && !error.is_retryable() => return Err(error),
            Some(Err(error)) if args.json => tell_error(true, &error),
            Some(Err(error)) => warn(&format!("{}; trying again", text::error(&error))),
            None => return Err(Error::new(ErrorKind::Internal, "the observer's thread has died")),
        }
    }
}

/// `false` if nobody reads it any more, as after `observe … | head -1`.
fn show(args: &ObserveArgs, observation: &Observation, shown: &mut Shown) -> Result<bool, Error> {
    let Observation { leader, candidates } = observation;
    if args.json {
        return print_while_read(&json_line(&Event {
            event: "observed",
            election: args.election.as_str(),
            leader: leader.as_ref(),
            candidates: candidates.as_deref(),
            at_unix_ms: clock::unix_ms(),
        }));
    }
    // People are told of leaders; candidates come and go.
    let now = leader.as_ref().map(|leader| (leader.contender.clone(), leader.token));
    let before = shown.replace(now);
    if before == *shown {
        return Ok(true);
    }
    // Whoever takes over before our eyes has only just begun.
    let age = |leader| if before.is_none() { text::for_how_long(leader) } else { String::new() };
    let line = match leader {
        None => format!("nobody leads {}", args.election),
        Some(leader) => {
            let address =
                leader.contender.address.as_ref().map(|address| format!(" at {}", text::visible(address)));
            format!(
                "{} is led by {}{}{}",
                args.election,
                text::leader(leader),
                address.unwrap_or_default(),
                age(leader)
            )
        }
    };
    print_while_read(format!("{line}\n").as_bytes())
}
