//! `resign` and `transfer`: asking the leader to go.

use std::process::ExitCode;

use incumbent::{CandidateId, Election, Error, ErrorKind, FencingToken, Leader, Result, clock};
use serde::Serialize;

use crate::args::{ResignArgs, TransferArgs};
use crate::output::{Answer, answer, print, print_json, tell_error};
use crate::store::Store;
use crate::{exit, text};

#[derive(Serialize)]
struct Report<'a> {
    election: &'a str,
    ended_token: FencingToken,
    leader: Option<&'a Leader>,
}

pub(crate) fn resign(args: &ResignArgs) -> ExitCode {
    answer(args.json, async {
        let election = Store::open(&args.store).await?.1.election(args.election.as_str());
        let ended_token = match election.request_handover(None, args.timeout).await {
            Ok(token) => token,
            Err(error) => return refused(args.json, error),
        };
        let leader = election.observe().await?.leader;
        let report = Report { election: election.name(), ended_token, leader: leader.as_ref() };
        tell(args.json, &report)?;
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn transfer(args: &TransferArgs) -> ExitCode {
    answer(args.json, async {
        let election = Store::open(&args.store).await?.1.election(args.election.as_str());
        let give_up_at = clock::now() + args.timeout;
        let ended_token = match election.request_handover(Some(args.to.clone()), args.timeout).await {
            Ok(token) => token,
            Err(error) => return refused(args.json, error),
        };
        let left = give_up_at.since(clock::now());
        let leader =
            tokio::time::timeout(left, next_leader(&election, ended_token)).await.unwrap_or(Ok(None))?;
        let won = leader.as_ref().is_some_and(|leader| is(leader, &args.to));
        tell(args.json, &Report { election: election.name(), ended_token, leader: leader.as_ref() })?;
        Ok(ExitCode::from(if won { exit::OK } else { exit::NO }))
    })
}

/// What the state of the election does not allow is a no; what the store does is an error.
fn refused(json: bool, error: Error) -> Answer {
    match error.kind() {
        // `TimedOut` of the request itself: the leader has not gone. A store that does not answer is no such thing.
        ErrorKind::NotFound | ErrorKind::Unsupported => {}
        ErrorKind::TimedOut if error.backend().is_none() => {}
        _ => return Err(error),
    }
    tell_error(json, &error);
    Ok(ExitCode::from(exit::NO))
}

fn is(leader: &Leader, id: &CandidateId) -> bool {
    leader.contender.id == id.as_str()
}

/// Who leads after the term of `token`.
async fn next_leader(election: &Election, token: FencingToken) -> Result<Option<Leader>> {
    let mut observer = election.observer()?;
    while let Some(report) = observer.next().await {
        match report {
            Ok(observation) => {
                if let Some(leader) = observation.leader
                    && leader.token > Some(token)
                {
                    return Ok(Some(leader));
                }
            }
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn tell(json: bool, report: &Report<'_>) -> Result<()> {
    if json {
        return print_json(report);
    }
    let leader = match report.leader {
        Some(leader) => format!("is now led by {}", text::leader(leader)),
        None => "has no new leader yet".to_owned(),
    };
    print(
        format!("the term with token {} has ended; {} {leader}\n", report.ended_token, report.election)
            .as_bytes(),
    )
}
